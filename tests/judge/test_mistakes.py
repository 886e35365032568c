"""A dump with a known mistake is rejected, and the mistake is named."""

from pathlib import Path

import pytest
import torch

from dsv4_conformance.cases.case import ScopeShape
from dsv4_conformance.judge.dump import load, with_outputs
from dsv4_conformance.judge.explaining import Explanation, explain
from dsv4_conformance.judge.judging import judge
from dsv4_conformance.judge.mistakes import LOOK
from dsv4_conformance.numerics.mutants import MUTANTS
from tests.judge.dumps import Tensors, decode_call, mistaken, prefill_call, right, write

LONG = ScopeShape(160, 128, 2, lengths="full")
"""An extra scope of more than one block of 64, so that losing a block is not losing the scope."""

FEW = ScopeShape(96, 64, 2)
"""An extra scope with few keys in the first row, so that a sink of 0 shows."""

NOT_IN_PREFILL = {"extra_scope_lost", "scale_exponent_plus_one", "scale_exponent_minus_one"}


def explained(tmp_path: Path, tensors: Tensors, outputs: tuple[str, ...] | None = None) -> Explanation:
    dump = load(write(tmp_path, tensors))
    if outputs is not None:
        dump = with_outputs(dump, outputs)
    found = judge(dump)
    assert not found.right
    return explain(dump, int(found.rows[found.worst_row()]), found.heads)


def named(told: Explanation) -> list[str]:
    return [mistake.name for mistake in told.mistakes if mistake.explains]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_decode_mistake_is_named(mutant: str, tmp_path: Path) -> None:
    call = decode_call(extra=FEW if mutant.startswith("sink_") else LONG)
    told = explained(tmp_path, mistaken(call, mutant))
    assert named(told) == [mutant]
    assert told.mistakes[0].distance < 1
    assert told.mistakes[0].look


@pytest.mark.parametrize("mutant", sorted(set(MUTANTS) - NOT_IN_PREFILL))
def test_prefill_mistake_is_named(mutant: str, tmp_path: Path) -> None:
    assert mutant in named(explained(tmp_path, mistaken(prefill_call(), mutant)))


@pytest.mark.parametrize("mutant", ["sink_of_another_rank", "key_dropped", "extra_scope_lost", "neighbours_keys"])
def test_out_alone_is_enough(mutant: str, tmp_path: Path) -> None:
    assert named(explained(tmp_path, mistaken(decode_call(extra=LONG), mutant), ("out",))) == [mutant]


def test_sinks_of_infinity_do_not_hide_a_dropped_sink(tmp_path: Path) -> None:
    """The right budget of a head with sink +inf is 0; that of the mistake's answer is not."""
    call = decode_call(sink="special")
    assert call.sink is not None
    assert call.sink.isinf().any()
    assert named(explained(tmp_path, mistaken(call, "sink_dropped"))) == ["sink_dropped"]


def test_mistake_in_some_heads_is_named(tmp_path: Path) -> None:
    call = decode_call(extra=LONG)
    tensors, whole = right(call), mistaken(call, "extra_scope_lost")
    tensors["out"][:, :, 2:5] = whole["out"][:, :, 2:5]
    tensors["lse"][:, 2:5] = whole["lse"][:, 2:5]
    told = explained(tmp_path, tensors)
    assert named(told) == ["extra_scope_lost"]
    assert told.mistakes[0].distance_all > 100


def test_unknown_mistake_is_not_named(tmp_path: Path) -> None:
    tensors = right(decode_call())
    generator = torch.Generator().manual_seed(5)
    tensors["out"][1] += torch.randn(tensors["out"][1].shape, generator=generator).bfloat16()
    told = explained(tmp_path, tensors)
    assert not told.explained
    assert told.mistakes[0].distance > 10


def test_small_error_is_not_explained_by_a_mistake_that_changes_nothing(tmp_path: Path) -> None:
    """Losing the extra scope changes nothing where it is empty; the error is 2 budgets, within NEAR of that."""
    call = decode_call(extra=ScopeShape(96, 64, 2, lengths="zero"))
    tensors = right(call)
    dump = load(write(tmp_path, tensors))
    budget = float(judge(dump).budget["out"][0, 0])
    tensors["out"][0, 0, 0, int(tensors["out"][0, 0, 0].abs().argmin())] += 2.2 * budget
    told = explained(tmp_path, tensors)
    assert not told.explained


def test_single_row_is_not_its_own_neighbour(tmp_path: Path) -> None:
    call = decode_call(b=1, s_q=1)
    told = explained(tmp_path, mistaken(call, "key_dropped"))
    assert not {"window_plus_one", "neighbours_keys"} & {mistake.name for mistake in told.mistakes}


def test_every_mistake_says_where_to_look() -> None:
    assert set(LOOK) == set(MUTANTS)
