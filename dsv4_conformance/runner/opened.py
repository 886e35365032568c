"""Guarded calls of any surface method, and of the sessions that stateful surfaces open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput, ConformanceFailure
from dsv4_conformance.runner.guards import Fingerprint
from dsv4_conformance.texts import summary_of

SESSIONS = ("capture",)
"""Session methods that open another session."""


def tensors_in(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a call's argument by name: in lists, tuples, mappings and dataclasses, nested ones too."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from tensors_in(f"{name}[{key!r}]", inner)
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from tensors_in(f"{name}[{place}]", inner)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(f"{name}.{field.name}", getattr(value, field.name))


def cloned(value: Any) -> Any:
    """``value`` with every tensor of its dataclasses, lists and tuples copied, for its taker to do with as it likes."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, list) or type(value) is tuple:
        return type(value)(cloned(inner) for inner in value)
    if is_dataclass(value) and not isinstance(value, type) and any(True for _ in tensors_in("", value)):
        return replace(value, **{f.name: cloned(getattr(value, f.name)) for f in fields(value) if f.init})
    return value


def call(who: str, function: Callable[..., Any], *given: Any, writes: tuple[int, ...] = (), **named: Any) -> Any:
    """``function(*given, **named)``; no tensor among the arguments may change, except at positions ``writes``.

    Raises ConformanceFailure if it raised anything, SystemExit included, and ContractViolation if it changed an
    argument. Memory errors and Ctrl-C pass through.
    """
    arguments = [(f"argument {place}", value) for place, value in enumerate(given) if place not in writes]
    prints = [
        Fingerprint.of(name, tensor)
        for label, value in [*arguments, *named.items()]
        for name, tensor in tensors_in(label, value)
    ]
    try:
        result = function(*given, **named)
    except (torch.OutOfMemoryError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit, pytest's skip, or one of its own: all are the adapter's
        raise ConformanceFailure(f"{who} raised {summary_of(error)}") from error
    for fingerprint in prints:
        fingerprint.check(who)
    return result


def refusal(who: str, function: Callable[..., Any], *given: Any, **named: Any) -> str:
    """The sentence with which ``function`` refuses bad input; ConformanceFailure if it takes it, or fails otherwise."""
    try:
        function(*given, **named)
    except (torch.OutOfMemoryError, MemoryError, KeyboardInterrupt):
        raise
    except (BadInput, ValueError, AssertionError) as error:
        return str(error)
    except BaseException as error:  # SystemExit, pytest's skip, or one of its own: all are the adapter's
        raise ConformanceFailure(f"{who} must refuse this input and raised {summary_of(error)}") from error
    raise ConformanceFailure(f"{who} took an input that it must refuse.")


class Opened:
    """A session of the implementation under test: every method is called as ``call`` calls it."""

    def __init__(self, session: Any, who: str, counted: Callable[[], None]) -> None:
        self._session, self._who, self._counted = session, who, counted

    def __getattr__(self, method: str) -> Callable[..., Any]:
        who, function = self._promised(method)

        def called(*given: Any, **named: Any) -> Any:
            self._counted()
            result = call(who, function, *given, **named)
            return Opened(result, who, self._counted) if method in SESSIONS else result

        return called

    def refused(self, method: str, *given: Any, **named: Any) -> str:
        """The sentence with which ``method`` refuses bad input."""
        self._counted()
        return refusal(*self._promised(method), *given, **named)

    def unwrap(self) -> Any:
        """The adapter's own session: what another method of the adapter must be given."""
        return self._session

    def _promised(self, method: str) -> tuple[str, Callable[..., Any]]:
        """A method of the session and what to call it in sentences."""
        who, function = f"{self._who}.{method}", getattr(self._session, method, None)
        if not callable(function):
            raise ConformanceFailure(f"{who} does not exist; the surface promises it.")
        return who, function
