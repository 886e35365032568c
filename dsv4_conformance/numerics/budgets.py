"""Error budgets: how far from float64 a right implementation may be, and why (docs/semantics.md §20)."""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.oracle.attention import Answer

OUT_FACTOR = 2.0
OUT_DERIVATION = (
    "2 x max error over 512 dims of a low-precision reference (bf16 q, K, P, out; float32 logits and sums; worse of "
    "two P-rounding phases; half a bf16 ulp at least) against float64 in the same row and head, + 1 bf16 ulp at the "
    "row's largest |out|"
)
LOGIT_DERIVATION = (
    "2**-24 x (4 sqrt(512) x max(1, max |logit|) + 8 + sqrt(keys) + 2 |value|): random-walk bound of a float32 dot "
    "product of 512, base-2 exponent and its sum over the keys, and rounding of the value itself"
)


@dataclass(frozen=True)
class Budgets:
    """Allowed absolute errors per (row, head), float64 ``(R, H)``; 0 means exact."""

    out: Tensor
    lse: Tensor
    max_logits: Tensor

    def at(self, chosen: Tensor | slice | tuple[slice, Tensor | slice]) -> "Budgets":
        """The budgets of some rows, or of some heads as ``(slice(None), heads)``."""
        return Budgets(self.out[chosen], self.lse[chosen], self.max_logits[chosen])


def ulp_bf16(x: Tensor) -> Tensor:
    """Distance to the next bf16 above ``|x|``, float64; the smallest subnormal's spacing below 2**-126; 0 for 0."""
    exponent = torch.frexp(x.abs().clamp(min=2.0**-126)).exponent.to(torch.float64) - 1
    return torch.exp2(exponent - 7).masked_fill_(x == 0, 0)


def out_budget(out: Tensor, references: list[Tensor]) -> Tensor:
    """Budget ``(R, H)`` of out float64 ``(R, H, 512)`` from the low-precision references (OUT_DERIVATION)."""
    errors = [torch.linalg.vector_norm(out - reference, math.inf, dim=-1) for reference in references]
    ulp = ulp_bf16(torch.linalg.vector_norm(out, math.inf, dim=-1))
    # The last rounding of a right output errs by up to half an ulp. A reference that errs by less was lucky, as in rows
    # of few keys whose P happen to be representable; its luck must not set what others may err.
    error = torch.maximum(functools.reduce(torch.maximum, errors), ulp / 2)
    return OUT_FACTOR * error + ulp


_UNIT = 2.0**-24


def _spread(largest: Tensor, keys: Tensor) -> Tensor:
    """The part of a logit budget that does not depend on the value: ``(R, H)``."""
    spread = largest.to(torch.float64).clamp(min=1).mul_(_UNIT * 4 * math.sqrt(512))
    return spread.add_(keys.to(torch.float64).sqrt_().add_(8).mul_(_UNIT)[:, None])


def _with_rounding(spread: Tensor, value: Tensor) -> Tensor:
    return torch.add(spread, value.abs(), alpha=2 * _UNIT).masked_fill_(value.isinf(), 0)


def logit_budget(value: Tensor, largest: Tensor, keys: Tensor) -> Tensor:
    """A-priori budget ``(R, H)`` of lse or max_logits (LOGIT_DERIVATION); 0 where the value is infinite.

    ``largest``: max |logit| over the row's keys ``(R, H)``; ``keys``: valid keys per row ``(R,)``.
    """
    return _with_rounding(_spread(largest, keys), value)


def logit_budgets(answer: Answer, largest: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """logit_budget of lse and of max_logits together."""
    spread = _spread(largest, keys)
    return _with_rounding(spread, answer.lse), _with_rounding(spread, answer.max_logits)
