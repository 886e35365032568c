"""Projection, RMS norm and rope from a float32 table in float64: what compressor, indexer and layer are made of."""

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.oracle.rope import rotate


def project(x: Tensor, weight: Tensor) -> Tensor:
    """``x weight^T`` in float64: x ``(..., in)``, weight ``(out, in)`` -> ``(..., out)``; no biases (spec §1.1).

    Raises BadInput unless the widths agree.
    """
    if x.shape[-1] != weight.shape[-1]:
        raise BadInput(
            f"rows of width {x.shape[-1]} meet a weight of shape {tuple(weight.shape)}; "
            f"pass rows of width {weight.shape[-1]}."
        )
    return x.to(torch.float64) @ weight.to(torch.float64).T


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dim, float64; weight None means 1 (spec §0)."""
    x = x.to(torch.float64)
    normed = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    return normed if weight is None else normed * weight.to(torch.float64)


def turned(x: Tensor, table: Tensor, positions: Tensor, inverse: bool = False) -> Tensor:
    """Rope on the last 64 dims of x float64 ``(n, ..., D)``, row k at ``positions[k]`` int64 ``(n,)`` (spec §3).

    ``table``: float32 ``(max_pos, 64)``, cos and sin interleaved. ``inverse`` turns by the conjugate angle. Raises
    BadInput for a position that the table does not hold.
    """
    low, high = (int(positions.min()), int(positions.max())) if positions.numel() else (0, -1)
    if low < 0 or high >= table.shape[0]:
        raise BadInput(
            f"positions {low} to {high} do not fit a rope table of {table.shape[0]} "
            "rows; pass a table that covers them."
        )
    angles = torch.unflatten(table[positions].to(torch.float64), -1, (-1, 2))
    return rotate(x, angles.view(-1, *(1,) * (x.dim() - 2), *angles.shape[1:]), inverse)
