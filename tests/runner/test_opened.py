"""Guarded calls of surface methods and of sessions: arguments that change, exceptions, refusals, methods missing."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput, ConformanceFailure, ContractViolation
from dsv4_conformance.runner.opened import Opened, call, cloned, refusal, tensors_in


@dataclass
class Inner:
    """A dataclass with tensors."""

    x: Tensor
    n: int = 3


class Pair(NamedTuple):
    """A tuple with tensors."""

    a: Tensor
    b: Any


ONE, TWO, THREE, FOUR = (torch.full((2,), float(value)) for value in range(1, 5))


# Kills: a kind of container that hides a tensor, a name that does not lead to it, a class taken for its instance.
def test_tensors_are_found_by_name_wherever_they_are() -> None:
    value = {"k": [ONE, Inner(TWO)], 7: Pair(THREE, (FOUR, None, "text", Inner))}
    found = dict(tensors_in("arg", value))
    assert {name: float(tensor[0]) for name, tensor in found.items()} == {
        "arg['k'][0]": 1,
        "arg['k'][1].x": 2,
        "arg[7][0]": 3,
        "arg[7][1][0]": 4,
    }
    assert list(tensors_in("it", ONE)) == [("it", ONE)] and list(tensors_in("none", None)) == []


# Kills: a tensor that is shared with its taker, an argument that is another one after the copy.
def test_copies_share_no_tensor() -> None:
    value = (Inner(ONE, 5), [TWO, (THREE, "text")], 3, None)
    copy = cloned(value)
    assert [float(x[0]) for _, x in tensors_in("", copy)] == [1, 2, 3] and isinstance(copy[0], Inner)
    assert copy[0].n == 5 and copy[1][1][1] == "text" and copy[2:] == (3, None) and type(copy[1]) is list
    mine, theirs = ({x.data_ptr() for _, x in tensors_in("", v)} for v in (value, copy))
    assert not mine & theirs


def scale(x: Any, **_: Any) -> None:
    next(iter(tensors_in("", x)))[1].mul_(2)


# Kills: arguments that are not watched: positional, named, nested, views; permitted ones that are.
def test_a_changed_argument_is_named() -> None:
    given: tuple[tuple[Any, str], ...] = (
        (ONE.clone(), "argument 0"),
        (Inner(ONE.clone()), "argument 0.x"),
        ([1, ONE.clone()], r"argument 0\[1\]"),
        (torch.ones(4)[::2], "argument 0"),
    )
    for argument, who in given:
        with pytest.raises(ContractViolation, match=f"^mine changed its input {who} "):
            call("mine", scale, argument)
    with pytest.raises(ContractViolation, match=r"^mine changed its input x "):
        call("mine", lambda nothing, x: x.mul_(2), None, x=ONE.clone())
    changed = ONE.clone()
    call("mine", lambda a, b: a.mul_(2), changed, TWO.clone(), writes=(0,))
    assert changed.tolist() == [2, 2]
    with pytest.raises(ContractViolation, match="argument 1"):
        call("mine", lambda a, b: b.mul_(2), ONE.clone(), TWO.clone(), writes=(0,))
    assert call("mine", lambda a, b=0: (a, b), 5, b=6) == (5, 6)


def raising(error: BaseException) -> Any:
    def function(*_: Any, **__: Any) -> None:
        raise error

    return function


# Kills: an exception of the adapter that ends the run, or that loses its kind and words; Ctrl-C and lack of memory that
# are laid to the adapter.
class Own(BaseException):
    """What an adapter may raise that is no Exception."""


RAISED = [
    ValueError("no\nsuch page"),
    BadInput("too long."),
    SystemExit(3),
    GeneratorExit(),
    Own("mine"),
    pytest.skip.Exception("x"),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_what_an_adapter_raises_is_its_failure(error: BaseException) -> None:
    with pytest.raises(ConformanceFailure, match=f"^mine raised {type(error).__name__}") as caught:
        call("mine", raising(error))
    assert "\n" not in str(caught.value) and caught.value.__cause__ is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), torch.OutOfMemoryError()])
def test_what_no_adapter_is_to_blame_for_passes_through(error: BaseException) -> None:
    for guarded in (call, refusal):
        with pytest.raises(type(error)):
            guarded("mine", raising(error))


# Kills: a refusal that any exception makes, one that nothing makes.
def test_refusals_are_bad_input_and_nothing_else() -> None:
    for error in (BadInput("too few."), ValueError("too few."), AssertionError("too few.")):
        assert refusal("mine", raising(error), 1, x=2) == "too few."
    with pytest.raises(ConformanceFailure, match="mine must refuse this input and raised RuntimeError: CUDA error"):
        refusal("mine", raising(RuntimeError("CUDA error")))
    with pytest.raises(ConformanceFailure, match=r"mine took an input that it must refuse\."):
        refusal("mine", lambda: None)


# Kills: a session's calls that are not counted or guarded, a graph whose own calls are not, a method that is missing.
def test_a_session_and_what_it_opens_are_guarded() -> None:
    counted: list[int] = []
    graph = SimpleNamespace(replay=scale)
    session = SimpleNamespace(step=scale, capture=lambda rows, mode="": graph, check=raising(BadInput("no.")), data=3)
    opened = Opened(session, "It.open_layer()", lambda: counted.append(1))
    with pytest.raises(ContractViolation, match=r"It\.open_layer\(\)\.step changed its input argument 0 "):
        opened.step(ONE.clone())
    captured = opened.capture(3, mode="decode")
    assert isinstance(captured, Opened) and captured.unwrap() is graph and opened.unwrap() is session
    with pytest.raises(ContractViolation, match=r"It\.open_layer\(\)\.capture\.replay changed its input argument 0 "):
        captured.replay(ONE.clone())
    assert opened.refused("check") == "no."
    assert len(counted) == 4
    for missing in ("truncate", "data"):
        with pytest.raises(ConformanceFailure, match=rf"It\.open_layer\(\)\.{missing} does not exist; the surface"):
            getattr(opened, missing)
    with pytest.raises(ConformanceFailure, match=r"It\.open_layer\(\)\.fork does not exist"):
        opened.refused("fork", 1)
