"""Comparison of what stateful surfaces return with the float64 truth: one budget per precision (spec §20)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.errors import HarnessError
from dsv4_conformance.numerics.budgets import OUT_FACTOR, ulp_bf16
from dsv4_conformance.spec.weights import Precision

FLOAT32 = 1e-5
FLOAT32_DERIVATION = (
    "1e-5 x the largest |value| of the output: float32 arithmetic in any order and any chunking was measured at up to "
    "3e-6 on outputs of magnitude 8 (class B)"
)
BFLOAT16_DERIVATION = (
    "2 x max error over a row of an independent reference that rounds activations to bf16 (half a bf16 ulp at least) "
    "against float64, + 1 bf16 ulp at the row's largest |value|"
)


@dataclass(frozen=True)
class TensorVerdict:
    """One tensor. ``ratio``: worst error in budgets (> 1 fails; inf where special values differ); ``place``: row, then
    where in the row."""

    output: str
    ratio: float
    error: float
    budget: float
    place: tuple[int, ...]
    special: str | None
    derivation: str

    @property
    def passed(self) -> bool:
        """Whether the tensor is right."""
        return self.special is None and self.ratio <= 1.0

    def sentence(self, row_name: Callable[[int], str] | None = None) -> str:
        """The verdict in one sentence; ``row_name`` says what a row is, by default "row N"."""
        inner = self.place[1:]
        name = row_name or (lambda row: f"row {row}")
        where = name(self.place[0]) if self.place else "its only value"
        where += f", element {inner[0] if len(inner) == 1 else list(inner)}" if inner else ""
        if self.special is not None:
            return f"{self.output}: {self.special} at {where}"
        if self.budget == 0:
            return f"{self.output}: error {self.error:.3g} where the value must be exact, at {where}"
        return f"{self.output}: error {self.error:.3g} is {self.ratio:.3g} budgets ({self.budget:.3g}) at {where}"


def close(
    name: str, got: Tensor, want: Tensor, precision: Precision = "float32", reference: Tensor | None = None
) -> TensorVerdict:
    """Judge ``got`` float ``(rows, ...)`` against ``want`` float64, same shape: special values first, then errors.

    Float32 may err by FLOAT32_DERIVATION, bfloat16 by BFLOAT16_DERIVATION, which needs ``reference``: the same output
    by an independent computation in bf16. Raises HarnessError if it is missing or if shapes differ.
    """
    if got.shape != want.shape:
        raise HarnessError(
            f"{name}: {tuple(got.shape)} cannot be compared with {tuple(want.shape)}; check shapes first."
        )
    exact, found = want.to(torch.float64), got.detach().to(want.device, torch.float64)
    budget, derivation = _budget(name, exact, precision, reference)
    if exact.numel() == 0:
        return TensorVerdict(name, 0.0, 0.0, 0.0, (), None, derivation)
    special = _special(found, exact)
    if special is not None:
        text, flat = special
        place = _place(flat, exact)
        return TensorVerdict(name, torch.inf, torch.inf, float(budget.flatten()[flat]), place, text, derivation)
    error = torch.where(exact.isfinite(), (found - exact).abs(), 0.0)
    ratio = torch.where(error == 0, 0.0, error / budget)
    flat = int(ratio.flatten().argmax())
    worst, apart, allowed = (float(x.flatten()[flat]) for x in (ratio, error, budget))
    return TensorVerdict(name, worst, apart, allowed, _place(flat, exact), None, derivation)


def _budget(name: str, want: Tensor, precision: Precision, reference: Tensor | None) -> tuple[Tensor, str]:
    """Allowed error of every element, and why."""
    size = want.abs().where(want.isfinite(), torch.zeros_like(want))
    if precision == "float32":
        largest = size.max() if size.numel() else size.sum()
        return (FLOAT32 * largest).expand_as(want), FLOAT32_DERIVATION
    if reference is None:
        raise HarnessError(f"{name}: a bfloat16 output is judged by a reference in bf16; give one.")
    apart = (reference.to(want.device, torch.float64) - want).abs().where(want.isfinite(), torch.zeros_like(want))
    inner = tuple(range(1, want.dim()))
    if inner and want.numel():
        size, apart = size.amax(inner, keepdim=True), apart.amax(inner, keepdim=True)
    ulp = ulp_bf16(size)
    return (OUT_FACTOR * torch.maximum(apart, ulp / 2) + ulp).expand_as(want), BFLOAT16_DERIVATION


def _special(got: Tensor, want: Tensor) -> tuple[str, int] | None:
    """What differs in NaN, +inf or -inf, and the flat place of the first difference."""
    differs = torch.zeros_like(want, dtype=torch.bool)
    for test in (torch.isnan, torch.isposinf, torch.isneginf):
        differs |= test(got) != test(want)
    if not bool(differs.any()):
        return None
    flat = int(differs.flatten().to(torch.uint8).argmax())
    given, right = (float(x.flatten()[flat]) for x in (got, want))
    return f"{given:.6g} where {right:.6g} is right", flat


def _place(flat: int, like: Tensor) -> tuple[int, ...]:
    return tuple(int(x) for x in torch.unravel_index(torch.tensor(flat), like.shape))
