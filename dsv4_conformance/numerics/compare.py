"""Comparison of an output with the truth: special values exactly and first, then errors in units of the budget."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Verdict:
    """One output of one call. ``ratio``: worst error in budgets (> 1 fails; inf where special values differ)."""

    output: str
    ratio: float
    error: float
    budget: float
    row: int
    head: int
    special: str | None
    """What differs in NaN / +inf / -inf positions, or None."""

    @property
    def passed(self) -> bool:
        """Whether the output is right."""
        return self.special is None and self.ratio <= 1.0

    def sentence(self) -> str:
        """The verdict in one sentence."""
        where = f"query row {self.row}, head {self.head}"
        if self.special is not None:
            return f"{self.output}: {self.special} at {where}"
        return f"{self.output}: error {self.error:.3g} is {self.ratio:.3g} budgets ({self.budget:.3g}) at {where}"


def _first(mask: Tensor) -> tuple[int, int]:
    row, head = torch.nonzero(mask)[0, :2].tolist()
    return row, head


def special_difference(got: Tensor, want: Tensor) -> tuple[str, tuple[int, int]] | None:
    """First position ``(row, head)`` where NaN, +inf or -inf stand in one tensor only, and what differs there."""
    if bool(got.isfinite().all()) and bool(want.isfinite().all()):
        return None
    for name, test in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        extra = test(got) & ~test(want)
        if bool(extra.any()):
            row, head = _first(extra)
            wanted = want[row, head].flatten()[extra[row, head].flatten()][0]
            return f"{name} where {wanted.item():.6g} is right", (row, head)
    for name, test in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        missing = test(want) & ~test(got)
        if bool(missing.any()):
            row, head = _first(missing)
            given = got[row, head].flatten()[missing[row, head].flatten()][0]
            return f"{given.item():.6g} where {name} is right", (row, head)
    return None


def errors(got: Tensor, want: Tensor) -> Tensor:
    """Max absolute error per (row, head), float64; equal special values count 0."""
    difference = torch.where(got == want, 0.0, (got.to(torch.float64) - want).abs())
    difference = difference.masked_fill(got.isnan() & want.isnan(), 0.0)
    return difference.amax(-1) if difference.dim() == 3 else difference


def in_budgets(error: Tensor, budget: Tensor) -> Tensor:
    """``error / budget``, 0 where both are 0, +inf where only the budget is 0 or the error is NaN."""
    ratio = torch.where(error == 0, 0.0, error / budget)
    return ratio.nan_to_num(nan=torch.inf, posinf=torch.inf)


def compare(output: str, got: Tensor, want: Tensor, budget: Tensor) -> Verdict:
    """Judge ``got`` ``(R, H[, 512])`` against ``want`` (float64) with ``budget (R, H)``."""
    special = special_difference(got, want)
    if special is not None:
        what, (row, head) = special
        return Verdict(output, float("inf"), float("inf"), float(budget[row, head]), row, head, what)
    error = errors(got, want)
    ratio = in_budgets(error, budget)
    place = int(ratio.argmax())
    row, head = divmod(place, ratio.shape[1])
    return Verdict(
        output, float(ratio[row, head]), float(error[row, head]), float(budget[row, head]), row, head, None
    )


PUBLISHED = {"decode": (1e-3, 2.01 / 128, 5e-6), "prefill": (8e-4, 3.01 / 128, 7e-6)}
"""FlashMLA's own test tolerances for out: absolute, relative, cosine (spec §20.1). Reported, never the verdict."""


def published_rule(kind: str, got: Tensor, want: Tensor) -> tuple[bool, float]:
    """Whether FlashMLA's published rule accepts ``got``, and 1 - cosine as that rule defines it."""
    absolute, relative, cosine = PUBLISHED[kind]
    got = got.to(torch.float64)
    off = (got - want).abs()
    each = bool(((off < absolute) | (off / (want.abs() + 1e-6) < relative)).all())
    square = (want * want).sum()
    distance = 1 - 2 * (got * want).sum() / ((got * got).sum() + square) if float(square) >= 1e-12 else square * 0
    return each and float(distance) <= cosine, float(distance)
