"""Sessions led through schedules: counts, shapes, lookback, stretches, and what a schedule may not ask."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from dsv4_conformance.cases.compressor_case import CompressorCase, IndexerCase
from dsv4_conformance.cases.compressor_inputs import compressor_spec, token_streams
from dsv4_conformance.errors import ConformanceFailure, ContractViolation, HarnessError, NotApplicable
from dsv4_conformance.implementations.state_api import Selection, StateConvention
from dsv4_conformance.oracle.rounding import cache_row
from dsv4_conformance.runner.driving import LedCompressor
from dsv4_conformance.runner.indexing import judge_keys, judge_selections, led, scores_of
from dsv4_conformance.runner.subject import Subject
from tests.miniatures.compressor import Compressing, Ring
from tests.miniatures.indexer import Indexing, Small

CPU = torch.device("cpu")


def compressing(
    schedule: str, session: type[Ring] = Ring, lookback: int = 8, precision: Any = "float32"
) -> LedCompressor:
    class Adapter(Compressing):
        surfaces: ClassVar[Any] = {"Compressor": StateConvention(precision, lookback)}

    Adapter.session = session
    case = CompressorCase("Compressor", 4, schedule)
    subject = Subject(Adapter("cpu"), CPU, "INV-20")
    return LedCompressor(subject, compressor_spec(case, CPU), token_streams(case, CPU), schedule)


# Kills: stretches that forget their start, entries counted from the wrong one, tokens of rejected drafts judged.
def test_a_stretch_is_what_came_between_two_cuts() -> None:
    run = compressing("p0:6 v0:7+1:5 k0:10 d0 d0 r1 p1:4")
    found = [(s.sequence, s.start, len(s.x), first, len(e)) for s, first, e in run.entries()]
    assert found == [(0, 0, 13, 0, 3), (1, 0, 5, 0, 1), (0, 10, 12, 2, 1), (1, 0, 4, 0, 1)]
    run.judge()
    assert run.subject.record()["checked"] and run.subject.record()["metrics"]["entries_ratio"] < 0.2


# Kills: a wrong entry after a cut, told with another number or sequence.
def test_a_wrong_entry_is_told_with_its_place() -> None:
    class Wrong(Ring):
        def entry(self, row: int, last: int, start: int) -> Tensor:
            return super().entry(row, last, start) + (last == 15 and row == 1)

    run = compressing("p0:4 p1:13 k1:10 p1:6", Wrong)
    with pytest.raises(ConformanceFailure, match=r"error .* at row 1, .*, counted from entry 2 of sequence 1\."):
        run.judge()


# Kills: counts that nobody compares, results of other shapes and types.
@pytest.mark.parametrize(
    ("returned", "failure", "said"),
    [
        (lambda e: e[:0], ConformanceFailure, "push of tokens 0 to 3 at ratio 4 returned 0 entries instead of 1"),
        (lambda e: torch.cat((e, e)), ConformanceFailure, "returned 2 entries instead of 1"),
        (lambda e: e[:, :5], ContractViolation, "promises"),
        (lambda e: e.double(), ContractViolation, "float64"),
        (lambda e: None, ConformanceFailure, "returned 0 entries instead of 1"),
    ],
)
def test_wrong_counts_and_shapes_are_failures(returned: Any, failure: type[Exception], said: str) -> None:
    class Wrong(Ring):
        def push(self, segments: Any) -> Any:
            return [returned(entries) for entries in super().push(segments)]

    with pytest.raises(failure, match=said):
        compressing("p0:4", Wrong)


# Kills: one result for two segments.
@pytest.mark.parametrize("returned", [lambda given: given[:1], lambda given: given[0]], ids=["one", "no list"])
def test_every_segment_has_a_result(returned: Any) -> None:
    class Wrong(Ring):
        def push(self, segments: Any) -> Any:
            return returned(super().push(segments))

    with pytest.raises(ContractViolation, match="2 segments; the surface promises one for each"):
        compressing("p0:4+1:4", Wrong)


# Kills: more taken back than declared, a case left out although the adapter can do it.
def test_what_lies_beyond_the_lookback_is_not_applicable() -> None:
    compressing("p0:9 k0:6", lookback=3)
    with pytest.raises(NotApplicable, match="takes back 4 tokens; the adapter declares a lookback of 3"):
        compressing("p0:9 k0:5", lookback=3)


# Kills: NaN written under a living sequence, or not at all.
def test_state_is_poisoned_only_while_nobody_lives() -> None:
    run = compressing("p0:3 r0 x")
    assert all(bool(tensor.isnan().all()) for tensor in run.session.state())
    for schedule in ("p0:3 x", "p0:3 f0>1:256", "i"):
        with pytest.raises(HarnessError):
            compressing(schedule)


# Kills: a bfloat16 adapter held to float32, a float32 adapter given bfloat16's budget.
def test_the_declared_precision_sets_the_budget() -> None:
    class Rounded(Ring):
        def finished(self, pooled: Tensor, last: int) -> Tensor:
            return super().finished(pooled, last).bfloat16().float()

    compressing("p0:23", Rounded, precision="bfloat16").judge()
    with pytest.raises(ConformanceFailure, match="budgets"):
        compressing("p0:23", Rounded).judge()

    class Wrong(Rounded):
        def finished(self, pooled: Tensor, last: int) -> Tensor:
            return super().finished(pooled, last) * 1.05

    with pytest.raises(ConformanceFailure, match="budgets"):
        compressing("p0:23", Wrong, precision="bfloat16").judge()


def indexing(session: type[Small], schedule: str = "p0:270 d0", quantised: bool = False) -> Any:
    class Adapter(Indexing):
        pass

    Adapter.session = session
    return led(Subject(Adapter("cpu"), CPU, "INV-37"), IndexerCase("Indexer", schedule, quantised=quantised))


# Kills: rows without a scorer that are judged, scores of two calls joined at the wrong width.
def test_scores_of_several_calls_are_joined() -> None:
    (stretch,) = indexing(Small, "p0:6 p0:5").finish()
    scores = scores_of(stretch, torch.ones(11, dtype=torch.bool))
    assert scores is not None and scores.shape == (11, 2)
    assert bool(scores[:6, 1].isnan().all()) and bool(scores[6:].isfinite().all())


# Kills: an adapter that shows no scores or no paged indices, and fails for it.
def test_scores_and_paged_indices_are_optional() -> None:
    class Silent(Small):
        def take(self, segment: Any) -> Selection:
            return Selection(super().take(segment).raw, None, None)

        def page_table(self, sequence: int) -> Any:
            return None

    run = indexing(Silent)
    judge_selections(run.subject, run)
    assert run.subject.record()["metrics"]["tokens_that_choose"] == 12


# Kills: a selection judged without its keys: wrong keys are consistent with themselves.
@pytest.mark.parametrize("quantised", [False, True])
def test_wrong_keys_are_told_with_their_entry(quantised: bool) -> None:
    class Wrong(Small):
        def rotated_keys(self, entries: Tensor) -> Tensor:
            keys = super().rotated_keys(entries)
            keys[-2] *= 1.1
            return keys

    run = indexing(Wrong, "p0:40", quantised)
    (stretch,) = run.finish()
    judge_selections(run.subject, run)
    with pytest.raises(ConformanceFailure, match=r"index keys.*(entry 8|row 8)"):
        judge_keys(run.subject, run, stretch)
    right = indexing(Small, "p0:40", quantised)
    judge_keys(right.subject, right, right.finish()[0])


# Kills: selections of another type or width, segments without a selection.
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.raw, "no \\(raw, paged, scores\\)"),
        (lambda s: s._replace(raw=s.raw.long()), "int64"),
        (lambda s: s._replace(raw=s.raw[:, :5]), r"\(9, 5\) torch.int32; the surface promises"),
        (lambda s: s._replace(paged=s.paged[:1]), r"\(1, 64\) torch.int32; the surface promises"),
        (lambda s: s._replace(scores=s.scores.double()), "float64"),
    ],
)
def test_selections_have_the_promised_form(change: Any, said: str) -> None:
    class Wrong(Small):
        def take(self, segment: Any) -> Any:
            return change(super().take(segment))

    with pytest.raises(ContractViolation, match=said):
        indexing(Wrong, "p0:9")


# Kills: entries as rows hold them judged like exact ones, under another floor, or by half an fp8 step.
def test_entries_declared_as_stored_are_held_to_the_rounding_contract() -> None:
    class Stored(Ring):
        gain = 1.0

        def entry(self, row: int, last: int, start: int) -> Tensor:
            return cache_row(super().entry(row, last, start)[None].double() * self.gain)[0].float()

    class Wide(Stored):
        gain = 1 + 2.0**-7

    for session, convention, right in (
        (Stored, StateConvention(stored="fp8"), True),
        (Stored, StateConvention(), False),
        (Wide, StateConvention(stored="fp8"), False),
        (Ring, StateConvention(stored="fp8"), False),
    ):
        run = compressing("p0:20", session)
        run.subject.implementation.surfaces = {"Compressor": convention}  # type: ignore[misc]
        if right:
            run.judge()
            assert run.subject.record()["metrics"]["entries_error"] == 0
        else:
            with pytest.raises(ConformanceFailure, match="counted from entry 0 of sequence 0"):
                run.judge()


# Kills: a floor that is not the declared one.
def test_small_stored_entries_are_held_to_the_declared_floor() -> None:
    small = 2.0**-9

    class Small(Ring):
        def entry(self, row: int, last: int, start: int) -> Tensor:
            return cache_row(super().entry(row, last, start)[None].double() * small)[0].float()

    run = compressing("p0:20", Small)
    right = replace(run.spec, weights=replace(run.spec.weights, norm=run.spec.weights.norm * small))
    for floor, passes in (("amax_1e-4", True), ("scale_1e-4", False)):
        declared = StateConvention(stored="fp8", ue8m0_floor=floor)  # type: ignore[arg-type]
        run.subject.implementation.surfaces = {"Compressor": declared}  # type: ignore[misc]
        if passes:
            run.judge(right)
        else:
            with pytest.raises(ConformanceFailure, match="entries: error"):
                run.judge(right)
