"""Failing cases become small."""

from typing import Any

import pytest

from dsv4_conformance.cases.case import AttentionCase, Case, ScopeShape
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.state_case import ChunkCase
from dsv4_conformance.soak.shrink import shrink, simpler
from dsv4_conformance.soak.worker import stem

LARGE = AttentionCase(
    "SparseDecode", 9, 5, 80, ScopeShape(200, 192, 61), ScopeShape(300, 256, 2), data="edge", duplicates=True, seed=77
)


# Kills: fields that are never tried, and steps too small to arrive.
def test_everything_that_does_not_matter_becomes_plain() -> None:
    found, tried = shrink(LARGE, lambda case: True)
    plain = AttentionCase(
        "SparseDecode", 1, 1, 1, ScopeShape(1, 1, 64, "none"), sink="none", holes="none", poison="none", strided=False
    )
    assert found == plain
    assert tried < 60


# Kills: candidates taken although they pass.
@pytest.mark.parametrize(
    ("needed", "left"),
    [
        (lambda case: case.b >= 4, {"b": 4}),
        (lambda case: case.window.topk > 130, {"window": ScopeShape(1, 131, 64, "none")}),
        (lambda case: case.extra is not None, {"extra": ScopeShape(1, 1, 64, "none")}),
        (lambda case: case.data == "edge" and case.duplicates, {"data": "edge", "duplicates": True}),
    ],
)
def test_what_matters_stays(needed: Any, left: dict[str, Any]) -> None:
    found, _ = shrink(LARGE, needed)
    for name, value in left.items():
        assert getattr(found, name) == value


def test_the_number_of_tries_is_bounded() -> None:
    tried: list[Case] = []

    def fails(case: Case) -> bool:
        tried.append(case)
        return len(tried) % 7 == 0

    _, count = shrink(LARGE, fails, tries=20)
    assert count == len(tried) == 20


# Kills: requests that lose one of their two lengths.
def test_requests_are_dropped_whole() -> None:
    case = ChunkCase("SparsePrefillChunkCache", (300, 5, 260), (3, 5, 130))
    found, _ = shrink(case, lambda c: len(c.seq_lens) == len(c.extend_lens) and 260 in c.seq_lens)  # type: ignore[attr-defined]
    assert isinstance(found, ChunkCase) and len(found.seq_lens) == len(found.extend_lens) == 1


def test_schedules_are_shortened_and_stay_schedules() -> None:
    case = LayerCase("AttentionLayer", 4, "p0:70+1:5 d0+1 v0:4 k0:72 p0:130", quantised=True, precision="bfloat16")
    found, _ = shrink(case, lambda c: "v0" in c.schedule)  # type: ignore[attr-defined]
    assert isinstance(found, LayerCase) and found.schedule == "p0:1 v0:4" and found.precision == "float32"
    assert all(candidate.ratio == 4 for candidate in simpler(case))  # type: ignore[attr-defined]


def test_sentences_are_told_apart_by_their_first_words() -> None:
    assert stem("out: error 1.9 is 12 budgets") == stem("out: error 0.5 is 3 budgets") != stem("lse: error 1.9")
