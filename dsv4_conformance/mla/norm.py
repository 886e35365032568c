"""Root-mean-square norm (spec §0)."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """``x * rsqrt(mean(x^2) + eps) * weight`` over the last dim, rounded once, to x's dtype; no weight means 1.

    x ``(..., n)``, weight ``(n,)``. The arithmetic is float32, or float64 for a float64 x.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        normed = normed * weight.to(wide.dtype)
    return normed.to(x.dtype)
