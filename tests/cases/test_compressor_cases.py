"""Cases of compressor, indexer and selection: what their families hold, and that the data is what its name says."""

from itertools import islice

import pytest
import torch

from dsv4_conformance.cases.case import Case
from dsv4_conformance.cases.compressor_case import CompressorCase, IndexerCase, Scores, TopkCase, short
from dsv4_conformance.cases.compressor_families import COMPRESSOR_FAMILIES, DRAFTS, KINDS
from dsv4_conformance.cases.compressor_inputs import (
    Streams,
    compressor_spec,
    index_streams,
    indexer_spec,
    marks,
    peaks,
    token_streams,
    topk_lengths,
    topk_pages,
    topk_scores,
)
from dsv4_conformance.cases.families import family
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.profiles import get_profile
from dsv4_conformance.cases.schedule import BATCHES, steps
from dsv4_conformance.errors import HarnessError
from dsv4_conformance.oracle import compressor

CPU = "cpu"
SCORES: tuple[Scores, ...] = (
    "normal", "rising", "falling", "equal", "clustered", "few", "zeros", "infinite", "not_numbers"
)  # fmt: skip


def take(name: str, surface: str, count: int) -> list[Case]:
    return list(islice(family(name, surface, "laptop", 0), count))


def compressors(name: str, count: int) -> list[CompressorCase]:
    cases = [case for case in take(name, "Compressor", count) if isinstance(case, CompressorCase)]
    assert len(cases) == count
    return cases


def distinct(x: torch.Tensor) -> int:
    return len(set(x.flatten().tolist()))


def starts(case: CompressorCase, kinds: tuple[str, ...] = BATCHES) -> list[tuple[str, int, int]]:
    """Kind, first position and tokens of every part of every batch, drafts taken back included."""
    lengths: dict[int, int] = {}
    found: list[tuple[str, int, int]] = []
    for step in steps(case.schedule):
        for sequence, count in step.parts:
            if step.kind in BATCHES:
                if step.kind in kinds:
                    found.append((step.kind, lengths.get(sequence, 0), count))
                lengths[sequence] = lengths.get(sequence, 0) + count
            else:
                lengths[sequence] = count
    return found


# Kills: a family for the compressors of one layer kind only.
@pytest.mark.parametrize("name", [n for n in COMPRESSOR_FAMILIES if "pooling" not in n and "sel" not in n])
def test_the_default_profile_holds_all_three_compressors(name: str) -> None:
    if "index" in name or name == "compressed_prefixes":
        return
    count = get_profile("default").cases_for("INV-20", name)
    assert {(case.ratio, case.dim) for case in compressors(name, count)} == set(KINDS)


# Kills: schedules that start calls at some residues only, or never cross a page.
@pytest.mark.parametrize("ratio", [4, 128])
def test_cut_streams_start_calls_everywhere_in_the_default_profile(ratio: int) -> None:
    count = get_profile("default").cases_for("INV-20", "cut_streams")
    calls = [call for case in compressors("cut_streams", count) if case.ratio == ratio for call in starts(case)]
    assert {start % 4 for _, start, _ in calls} == {0, 1, 2, 3}
    assert {1, 126, 127} <= {start % 128 for _, start, _ in calls} or ratio == 4
    assert any(n == 1 for *_, n in calls) and any(n > 2 * ratio for *_, n in calls)
    assert any(start < 256 < start + n for _, start, n in calls)
    assert any(start % ratio and start // ratio == (start + n) // ratio for _, start, n in calls)  # inside a window


# Kills: verify steps from some residues only, of which all or none is kept, or that drop more than can be taken back.
@pytest.mark.parametrize("ratio", [4, 128])
def test_rejected_drafts_start_and_stop_everywhere_in_the_default_profile(ratio: int) -> None:
    count = get_profile("default").cases_for("INV-20", "rejected_drafts")
    cases = [case for case in compressors("rejected_drafts", count) if case.ratio == ratio]
    begun = {start % 4 for case in cases for _, start, _ in starts(case, ("verify",))}
    assert begun == {0, 1, 2, 3}
    dropped, kept, torn = set(), set(), 0
    for case in cases:
        length: dict[int, int] = {}
        before: dict[int, int] = {}
        for step in steps(case.schedule):
            for sequence, n in step.parts:
                if step.kind == "keep":
                    dropped.add(length[sequence] - n)
                    kept.add(n - before[sequence])
                    torn += length[sequence] // ratio > n // ratio
                    length[sequence] = n
                else:
                    before[sequence] = length.get(sequence, 0)
                    length[sequence] = before[sequence] + n
    assert max(dropped) <= DRAFTS and {0, 1} <= dropped and {0, 1} <= kept
    assert torn  # an entry that was complete is taken back


# Kills: sequences that always share a residue, or never share a call.
def test_sequences_together_share_calls_at_different_residues() -> None:
    cases = compressors("sequences_together", 12)
    assert all(any(len(step.parts) > 1 for step in steps(case.schedule)) for case in cases)


# Kills: state poisoned under a living sequence, lives without an end.
@pytest.mark.parametrize("name", ["stale_state", "reused_state"])
def test_state_is_poisoned_or_reused_before_a_sequence_starts(name: str) -> None:
    for case in compressors(name, 24):
        alive: set[int] = set()
        released = poisoned = 0
        for step in steps(case.schedule):
            if step.kind == "poison":
                assert not alive
                poisoned += 1
            elif step.kind == "release":
                alive -= {sequence for sequence, _ in step.parts}
                released += 1
            else:
                alive |= {sequence for sequence, _ in step.parts}
        assert poisoned if name == "stale_state" else released


# Kills: prefixes that are no whole pages, that nobody continues, or whose source never goes on.
def test_prefixes_are_whole_pages_and_go_on() -> None:
    cases = [case for case in take("compressed_prefixes", "AttentionLayer", 8) if isinstance(case, LayerCase)]
    forks = [step for case in cases for step in steps(case.schedule) if step.kind == "fork"]
    assert {step.parts[0][1] for step in forks} == {256, 512}
    assert {case.ratio for case in cases} == {4, 128} and {case.quantised for case in cases} == {True, False}
    assert any(" r0 x" in case.schedule for case in cases) and any("d0+1" in case.schedule for case in cases)


# Kills: index schedules in which nothing is left out, or that never stand at n(t) = index_topk.
def test_index_streams_pass_the_width_of_a_selection() -> None:
    count = get_profile("default").cases_for("INV-37", "index_streams")
    cases = [case for case in take("index_streams", "Indexer", count) if isinstance(case, IndexerCase)]
    assert {case.quantised for case in cases} == {True, False}
    text = " ".join(case.schedule for case in cases)
    assert "v0" in text and "r0" in text and "+1" in text and "p0:254 d0 d0 d0 d0" in text


# Kills: lengths on one side of topk, none, or beyond the row; few rows with more than topk entries.
@pytest.mark.parametrize("few", [False, True])
def test_lengths_lie_around_topk(few: bool) -> None:
    lengths = topk_lengths(TopkCase("Indexer", 16, 300, 64, few=few), CPU).tolist()
    assert max(lengths) <= (64 if few else 300) and {0, 1, 63, 64} <= set(lengths)
    assert few or {65, 66, 128, 299, 300} <= set(lengths)


# Kills: kinds of scores that are not what they are called; tails that a selection could not notice.
@pytest.mark.parametrize("kind", SCORES)
def test_scores_are_what_their_kind_says(kind: Scores) -> None:
    case = TopkCase("Indexer", 12, 300, 64, kind)
    scores, lengths = topk_scores(case, CPU), topk_lengths(case, CPU)
    inside = torch.arange(300) < lengths[:, None]
    row = scores[2]  # all 300 are inside
    assert bool(scores[~inside].isnan().any()) and bool(scores[~inside].isposinf().any())
    holds = {
        "normal": distinct(row) == 300,
        "rising": bool((row.diff() >= 0).all()),
        "falling": bool((row.diff() <= 0).all()),
        "equal": distinct(row) == 1,
        "clustered": bool(((row > 1) & (row < 1.25)).all()) and distinct(row) > 250,
        "few": distinct(row) == 8,
        "zeros": bool((row.signbit() & (row == 0)).any()) and bool((~row.signbit() & (row == 0)).any()),
        "infinite": bool(row.isposinf().any()) and bool(row.isneginf().any()) and bool(row.isfinite().any()),
        "not_numbers": bool(row.isnan().any()) and bool(row.isfinite().any()),
    }
    assert holds[kind]


# Kills: page tables of one layout, or whose slots int32 cannot name.
def test_page_tables_reach_the_last_slot_of_int32() -> None:
    case = TopkCase("Indexer", 12, 300, 64)
    one, other = topk_pages(case, CPU), topk_pages(case, CPU, layout=1)
    assert one.dtype == torch.int32 and one.shape == (12, 7) and not torch.equal(one, other)
    assert int(one.long().max()) * 64 + 63 == 2**31 - 1 and int(one.min()) == 0


# Kills: rejected tokens that come again, streams that share tokens, tokens that depend on how they are taken.
def test_tokens_do_not_depend_on_how_they_are_taken_and_never_come_again() -> None:
    one, other = Streams(7, 64, 20, CPU), Streams(7, 64, 20, CPU)
    whole = one.take(0, 12)
    assert torch.equal(torch.cat([other.take(0, n) for n in (1, 4, 7)]), whole) and torch.equal(other.held(0), whole)
    assert not torch.equal(one.take(1, 12), whole)
    one.keep(0, 5)
    again = one.take(0, 7)
    assert torch.equal(one.held(0)[:5], whole[:5]) and not bool((again == whole[5:]).all(1).any())
    one.keep(0, 0)
    assert not bool((one.take(0, 12) == whole).all(1).any())
    one.fork(1, 2, 4)
    assert torch.equal(one.held(2), one.held(1)[:4])


# Kills: special weights that do not single out what the tests compute their answers from.
def test_special_data_is_what_the_relations_need() -> None:
    for ratio in (4, 128):
        case = CompressorCase("Compressor", ratio, f"p0:{3 * ratio}", data="equal")
        x = token_streams(case, CPU).take(0, 3 * ratio)
        spec = compressor_spec(case, CPU)
        _, scores = compressor.slots(spec, *compressor.projected(spec, x))
        assert bool((scores[1] == scores[1, :1]).all()) and distinct(scores[1]) > 100
        case = case.with_(data="ape_peak")
        spec = compressor_spec(case, CPU)
        _, scores = compressor.slots(spec, *compressor.projected(spec, x))
        assert torch.equal(scores[1].argmax(0), peaks(case, CPU))
        assert bool((scores[1].topk(2, 0).values.diff(dim=0) == -64).all())
        case = case.with_(data="gate_peak")
        marked = token_streams(case, CPU).take(0, 3 * ratio)
        place = torch.arange(3) * ratio + marks(case, 3, CPU)
        assert torch.nonzero(marked[:, 0]).flatten().tolist() == place.tolist()
    halves = compressor_spec(CompressorCase("Compressor", 4, "p0:8", data="halves"), CPU).weights
    for weight in (halves.wkv, halves.wgate):
        assert not weight[:512, 32:].any() and not weight[512:, :32].any() and weight[:512, :32].any()


# Kills: a kind of data that some ratio never gets in the default profile.
def test_peaks_come_by_bias_and_by_gate_at_both_ratios() -> None:
    cases = compressors("pooling_peaks", get_profile("default").cases_for("INV-25", "pooling_peaks"))
    assert {(case.ratio, case.data) for case in cases} == {(r, d) for r in (4, 128) for d in ("ape_peak", "gate_peak")}


# Kills: opposite heads that are not, query sources that are the tokens.
def test_index_inputs() -> None:
    case = IndexerCase("Indexer", "p0:300", data="opposite")
    heads = indexer_spec(case, CPU).weights.wq_b.view(64, -1)
    assert torch.equal(heads[1::2], -heads[::2]) and indexer_spec(case, CPU).table.shape == (512, 64)
    tokens, sources = index_streams(case, CPU)
    assert not torch.equal(tokens.take(0, 3)[:, :64], sources.take(0, 3))


# Kills: an id that grows with the schedule, or loses its repeats.
def test_ids_count_repeats() -> None:
    assert short("p0:5 d0 d0 d0 k0:6") == "p0:5_d0*3_k0:6"
    assert short(" ".join(f"p0:{n}" for n in range(1, 20))).endswith("p0:10_.._p0:19")
    assert CompressorCase("Compressor", 4, "d0 d0", 128, data="equal").label() == "C4-d128-x64-equal-d0*2"
    assert TopkCase("Indexer", 3, 9, 64, "few", True).label() == "topk64-3x9-few-few"
    assert IndexerCase("Indexer", "p0:3", quantised=True).label() == "index-tiny-fp8-p0:3"


# Kills: a family under a name that no suite can ask for.
def test_families_are_registered() -> None:
    for name in COMPRESSOR_FAMILIES:
        assert next(family(name, "Compressor", "laptop", 0)).surface == "Compressor"
    with pytest.raises(HarnessError):
        family("cut_stream", "Compressor", "laptop", 0)
