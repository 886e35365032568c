"""Families of layer cases: schedules that can be run, and what the first cases of each already cover."""

import re
from itertools import islice, pairwise

import pytest

from dsv4_conformance.cases.draws import Draws
from dsv4_conformance.cases.families import FAMILIES, family
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.layer_families import LAYER_FAMILIES, draw_schedule
from dsv4_conformance.cases.layer_inputs import CASE_GEOMETRIES
from dsv4_conformance.cases.profiles import Size, load_profiles
from dsv4_conformance.cases.schedule import BATCHES, longest, steps
from dsv4_conformance.cases.schedule_rules import Held

LAYER = "AttentionLayer"
VARIED = ("layer_schedules", "layer_prefills", "layer_decodes", "layer_prefixes", "layer_prefill_replays")


def cases(name: str, count: int, size: Size = "laptop", seed: int = 0) -> list[LayerCase]:
    found = list(islice(family(name, LAYER, size, seed), count))
    assert all(isinstance(case, LayerCase) for case in found)
    return [case for case in found if isinstance(case, LayerCase)]


def test_families_are_registered() -> None:
    assert set(VARIED) <= set(LAYER_FAMILIES) <= set(FAMILIES)


# Kills: a step of a dead sequence, drafts taken back that state has lost, forks inside a page, a rank without heads.
@pytest.mark.parametrize("size", ["laptop", "gpu"])
@pytest.mark.parametrize("name", sorted(LAYER_FAMILIES))
def test_every_case_can_be_run(name: str, size: Size) -> None:
    for case in cases(name, 40, size):
        held = Held()
        for step in steps(case.schedule):
            held.take(step)
        geometry = CASE_GEOMETRIES[case.geometry]
        assert case.tp in geometry.tp_sizes and 0 <= case.rank < case.tp
        assert longest(case.schedule) <= (1200 if size == "laptop" else 3000)


# Kills: the same case twice, cases that depend on what was asked before, a seed that changes nothing.
@pytest.mark.parametrize("name", VARIED)
def test_cases_are_distinct_and_follow_from_the_seed(name: str) -> None:
    many = cases(name, 30)
    assert len(set(many)) == 30 and cases(name, 7) == many[:7]
    assert not set(many) & set(cases(name, 30, seed=1))


# Kills: an order in which a small count sees one schedule at every ratio and never the next.
@pytest.mark.parametrize("name", VARIED)
def test_the_first_cases_differ_in_all_that_varies(name: str) -> None:
    first = cases(name, 6)
    assert {case.ratio for case in first[:4]} == {0, 4, 128}
    assert {(case.precision, case.quantised) for case in first} == {
        ("float32", False),
        ("float32", True),
        ("bfloat16", True),
    }
    assert {case.path for case in first} == {"sparse", "paged"}
    assert first[0].schedule != first[1].schedule


# Kills: a schedule that some ratio never runs, or runs at one flavour alone however many cases there are.
@pytest.mark.parametrize("size", ["laptop", "gpu"])
def test_many_cases_cover_every_ratio_flavour_and_path(size: Size) -> None:
    many = cases("layer_schedules", 60, size)
    seen = {(case.ratio, case.precision, case.quantised, case.path) for case in many}
    assert len(seen) == 3 * 3 * 2
    for schedule in {case.schedule for case in many[:4]}:
        assert {case.ratio for case in many if case.schedule == schedule} == {0, 4, 128}


# Kills: a default profile in which no C4 layer chooses among its entries, no C128 layer has one, nothing is taken back.
def test_the_default_profile_runs_the_edges() -> None:
    counts = load_profiles()["default"].cases_for("INV-42", "layer_schedules")
    few = cases("layer_schedules", counts)
    assert max(longest(case.schedule) for case in few if case.ratio == 4) > 4 * 64 + 4
    assert max(longest(case.schedule) for case in few if case.ratio == 128) > 256
    for kind in ("keep", "fork", "release", "idle", "verify", "decode"):
        assert any(step.kind == kind for case in few for step in steps(case.schedule)), kind
    for ratio in (4, 128):
        assert any(step.kind == "keep" for case in few if case.ratio == ratio for step in steps(case.schedule))


# Kills: comparisons of two runs at a precision that cannot be compared, of a batch with itself.
def test_relations_are_run_exactly_and_in_batches() -> None:
    first = cases("layer_exact", 3)
    assert all(case.precision == "float32" and not case.quantised for case in cases("layer_exact", 20))
    for case in first:
        assert max(len(step.parts) for step in steps(case.schedule)) > 1
        held = sum(count for step in steps(case.schedule) for sequence, count in step.parts if sequence == 0)
        assert held > 128  # a later token that completes an entry of 4 and of 128


# Kills: window layers of another ratio, prompts that do not leave the window; indexed ones that select at all.
def test_window_and_indexed_cases_stay_within_their_bounds() -> None:
    for case in cases("layer_window", 10):
        assert case.ratio == 0 and longest(case.schedule) > 129 + 1
    indexed = cases("layer_indexed", 10)
    assert all(case.ratio == 4 and longest(case.schedule) // 4 <= 64 for case in indexed)
    assert max(longest(case.schedule) // 4 for case in indexed[:2]) == 64


# Kills: ranks of one, the first of them costly, a head count or rank set that the small profiles leave out.
def test_ranks_come_in_every_size() -> None:
    few, many = cases("layer_ranks", 3), cases("layer_ranks", 18)
    assert {case.geometry for case in few} == {"tiny", "tiny64", "tiny128"} and few[0].geometry == "tiny"
    assert {case.tp for case in many} == {2, 4, 8, 16} and all(case.rank == 0 for case in many)
    assert {case.ratio for case in few} == {0, 4, 128}
    local = {CASE_GEOMETRIES[case.geometry].local_heads(case.tp) for case in many}
    assert {4, 8, 64} <= local


# Kills: replays whose decode has as many rows as are captured, or never fewer than before; prefills of one size.
def test_replays_vary_in_rows() -> None:
    for case in cases("layer_decodes", 3):
        rows = [len(step.parts) for step in steps(case.schedule) if step.kind == "decode"]
        assert max(rows) < 4 and any(a > b for a, b in pairwise(rows))
    for case in cases("layer_prefill_replays", 2):
        rows = [sum(count for _, count in step.parts) for step in steps(case.schedule) if step.kind == "prefill"]
        assert any(a > b for a, b in pairwise(rows)) and any(a < b for a, b in pairwise(rows))


# Kills: drawn schedules that cannot be run, that never reject, release or pad, or that grow without bound.
def test_drawn_schedules_are_varied_and_can_be_run() -> None:
    words = []
    for index in range(60):
        text = draw_schedule(Draws("test", index), 300)
        held = Held()
        for step in steps(text):
            held.take(step)
        words.append(text)
        assert 250 < sum(count for s in steps(text) if s.kind in BATCHES for _, count in s.parts) < 700
    everything = " ".join(words)
    assert all(re.search(rf"(^| ){kind}", everything) for kind in "pdvkrx") and "~" in everything and "+" in everything
    assert len(set(words)) == 60
