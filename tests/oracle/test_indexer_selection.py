"""The judge of selections: what it must accept (any order, any tie) and every way to be wrong."""

import math

import pytest
import torch

from dsv4_conformance.errors import BadInput
from dsv4_conformance.oracle.indexer import selection_faults

SCORES = [5.0, 1.0, 4.0, 1.5, 3.0, 2.0, 0.0, 9.0]  # the last is not visible


def faults(claimed: list[int], seen: int = 7, topk: int = 3, band: float = 0.0) -> list[str]:
    return selection_faults(torch.tensor([SCORES]), torch.tensor([claimed]), torch.tensor([seen]), topk, band)


# Kills: an order that is asked for, fill that is asked for at the end, a visible count off by one.
def test_right_selections() -> None:
    assert faults([0, 2, 4]) == faults([4, 0, 2]) == faults([-1, 2, 4, -1, 0]) == []
    assert faults([2, 0, 1], seen=3) == faults([0, -1, 1], seen=2) == faults([-1, -1, -1], seen=0) == []


# Kills: each check left out.
@pytest.mark.parametrize(
    ("claimed", "seen", "what"),
    [
        ([0, 2, 5], 7, "row 0 names an entry of score 2 and leaves out one of 3"),
        ([7, 0, 2], 7, "row 0 names 1 entries outside its 7 visible ones"),
        ([0, 2, -2], 7, "row 0 names 1 entries outside its 7 visible ones"),
        ([0, 2, 2**31 - 1], 7, "row 0 names 1 entries outside its 7 visible ones"),
        ([0, 0, 2], 7, "row 0 names 1 entries more than once"),
        ([0, 2, -1], 7, "row 0 names 2 entries instead of 3"),
        ([0, 2, 4, 5], 7, "row 0 names 4 entries instead of 3"),
        ([0, 1, -1], 3, "row 0 names 2 entries instead of 3"),
        ([0, 1, 2], 2, "row 0 names 1 entries outside its 2 visible ones"),
        ([0, -1, -1], 0, "row 0 names 1 entries outside its 0 visible ones"),
    ],
)
def test_wrong_selections(claimed: list[int], seen: int, what: str) -> None:
    assert faults(claimed, seen) == [what]


# Kills: a band that is doubled, ignored, or taken relative.
def test_swaps_inside_the_band_are_right() -> None:
    assert faults([0, 2, 5], band=1.0) == []
    assert faults([0, 2, 5], band=0.99) != []
    assert faults([0, 2, 1], band=1.99) != []
    assert faults([0, 2, 1], band=2.0) == []
    rows = selection_faults(
        torch.tensor([SCORES] * 2), torch.tensor([[0, 2, 5]] * 2), torch.tensor([7, 7]), 3, torch.tensor([1.0, 0.5])
    )
    assert rows == ["row 1 names an entry of score 2 and leaves out one of 3"]


# Kills: NaN scores that hide a wrong choice; scores that are read where all entries fit.
def test_nan_scores() -> None:
    nan = torch.full((1, 8), math.nan)
    assert selection_faults(nan, torch.tensor([[0, 1, 2]]), torch.tensor([3]), 3) == []
    assert selection_faults(nan, torch.tensor([[0, 1, 2]]), torch.tensor([4]), 3) != []
    half = torch.tensor([[1.0, 2.0, math.nan, 3.0]])
    assert selection_faults(half, torch.tensor([[0, 1, 3]]), torch.tensor([4]), 3) != []


# Kills: faults of one row blamed on another.
def test_rows_are_judged_apart() -> None:
    claimed = torch.tensor([[0, 2, 4], [0, 2, 5], [0, 1, -1], [0, 1, 1]], dtype=torch.int32)
    got = selection_faults(torch.tensor([SCORES] * 4), claimed, torch.tensor([7, 7, 2, 2]), 3)
    assert [text.split(" ")[1] for text in got] == ["1", "3"]


# Kills: a shape error of torch instead of a sentence; a refusal of short score rows that nobody reads.
def test_scores_are_needed_only_beyond_topk() -> None:
    few = torch.empty(1, 0)
    assert selection_faults(few, torch.tensor([[0, 1, 2]]), torch.tensor([3]), 3) == []
    with pytest.raises(BadInput, match="sees 4 entries but has 0 scores"):
        selection_faults(few, torch.tensor([[0, 1, 2]]), torch.tensor([4]), 3)
    assert selection_faults(few[:0], torch.empty(0, 3, dtype=torch.int32), torch.empty(0, dtype=torch.int64), 3) == []
