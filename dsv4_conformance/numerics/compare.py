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
        if self.budget == 0:
            return f"{self.output}: error {self.error:.3g} where the value must be exact, at {where}"
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


Compared = tuple[str, Tensor, Tensor, Tensor]
"""Name, got ``(R, H[, 512])``, want (float64, same shape), budget (float64 ``(R, H)``)."""


def compare_all(pairs: list[Compared]) -> list[Verdict]:
    """Judge outputs with one device sync where all special values agree."""
    return read_verdicts(pairs, summarise(pairs))


def summarise(pairs: list[Compared]) -> Tensor:
    """What read_verdicts needs of each pair, on the device, without a sync."""
    return torch.stack([_summary(got, want, budget) for _, got, want, budget in pairs])


def read_verdicts(pairs: list[Compared], summary: Tensor) -> list[Verdict]:
    """The verdicts behind a summary; waits for the device."""
    verdicts = []
    for (name, got, want, budget), (differs, ratio, error, allowed, place) in zip(pairs, summary.tolist(), strict=True):
        row, head = divmod(int(place), budget.shape[1])
        special = None
        if differs:
            found = special_difference(got, want)
            assert found is not None
            special, (row, head) = found
            ratio = error = float("inf")
            allowed = float(budget[row, head])
        verdicts.append(Verdict(name, ratio, error, allowed, row, head, special))
    return verdicts


def _summary(got: Tensor, want: Tensor, budget: Tensor) -> Tensor:
    """``(special values differ, worst ratio, its error, its budget, its flat place)`` as float64, without a sync.

    want holds no NaN, so special values differ exactly where the error is not finite.
    """
    if got.dim() == 3:  # out: no infinity is right in it, so that infinite differences are errors
        error = torch.linalg.vector_norm(want - got, torch.inf, dim=-1)
    else:
        error = torch.where(got == want, 0.0, (want - got).abs_())
    ratio = torch.where(error == 0, 0.0, error / budget).nan_to_num_(nan=torch.inf, posinf=torch.inf)
    worst, place = ratio.flatten().max(0)
    differs = (~error.isfinite()).any()
    picked = [torch.take(x, place) for x in (error, budget)]  # indexing by a device scalar would wait for it
    return torch.stack([differs.to(torch.float64), worst, *picked, place.to(torch.float64)])


def compare(output: str, got: Tensor, want: Tensor, budget: Tensor) -> Verdict:
    """Judge one output."""
    return compare_all([(output, got, want, budget)])[0]


PUBLISHED = {"decode": (1e-3, 2.01 / 128, 5e-6), "prefill": (8e-4, 3.01 / 128, 7e-6)}
"""FlashMLA's own test tolerances for out: absolute, relative, cosine (spec §20.1). Reported, never the verdict."""


def published_rule(kind: str, got: Tensor, want: Tensor) -> tuple[bool, float]:
    """Whether FlashMLA's published rule accepts ``got``, and 1 - cosine as that rule defines it (in float32)."""
    absolute, relative, cosine = PUBLISHED[kind]
    got, want = got.to(torch.float32), want.to(torch.float32)
    off = (got - want).abs_()
    near = (off < absolute).logical_or_(off < relative * (want.abs() + 1e-6)).all()
    apart_square, square = off.square_().sum(), want.square().sum()
    total = got.square_().sum() + square
    # 1 - 2 sum(ab) / sum(a^2 + b^2) = sum((a - b)^2) / sum(a^2 + b^2), without the cancellation.
    distance = torch.where(square >= 1e-12, apart_square / total, 0.0)
    each, apart = torch.stack((near.to(torch.float32), distance)).tolist()
    return bool(each) and apart <= cosine, apart
