"""Rotary positions: YaRN frequencies, cos/sin tables, rotation of the last 64 dims (spec §3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dsv4_conformance.spec.geometry import ROPE_DIM, YarnScaling

PAIRS = ROPE_DIM // 2


def frequencies(base: float, scaling: YarnScaling | None) -> Tensor:
    """Angle per position of each dim pair, float64 ``(32,)``; None = no scaling, as in C0 layers (spec §3).

    YaRN keeps pairs that turn often within the original context, divides by the factor those that turn rarely, and
    ramps in between, whatever the length of the sequence.
    """
    pair = torch.arange(PAIRS, dtype=torch.float64)
    plain = torch.pow(torch.tensor(base, dtype=torch.float64), -pair / PAIRS)
    if scaling is None:
        return plain

    def pair_that_turns(times: float) -> float:
        context = scaling.original_max_position_embeddings
        return ROPE_DIM * math.log(context / (2 * math.pi * times)) / (2 * math.log(base))

    low = max(math.floor(pair_that_turns(scaling.beta_fast)), 0)
    high = float(min(math.ceil(pair_that_turns(scaling.beta_slow)), ROPE_DIM - 1))
    if high == low:
        high += 0.001
    ramp = ((pair - low) / (high - low)).clamp(0.0, 1.0)
    return plain * (1 - ramp) + plain / scaling.factor * ramp


def make_table(base: float, scaling: YarnScaling | None, max_pos: int, device: torch.device | str) -> Tensor:
    """float32 ``(max_pos, 64)``: row p = ``cos(p f_0), sin(p f_0), cos(p f_1), ...`` (spec §3).

    Angles are float64, so that the table is right to its last bit at any position; engines that multiply in float32 are
    up to 1.3e-2 rad off at a million, which is why tests pass tables around.
    """
    angles = torch.arange(max_pos, dtype=torch.float64)[:, None] * frequencies(base, scaling)
    table = torch.empty(max_pos, PAIRS, 2, dtype=torch.float32)
    table[..., 0] = angles.cos()
    table[..., 1] = angles.sin()
    return table.flatten(1).to(device)


def apply_rope(x: Tensor, table: Tensor, positions: Tensor, inverse: bool = False) -> Tensor:
    """x ``(T, D)`` or ``(T, heads, D)`` with its last 64 dims rotated to positions int64 ``(T,)``, in x's dtype.

    table: float32 ``(max_pos, 64)``; positions below max_pos. ``inverse`` rotates by the opposite angle. The arithmetic
    is float32, or float64 for a float64 x; the other dims are copied bit by bit (spec §3).
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    turns = table[positions].to(dtype).view(positions.shape[0], *[1] * (x.dim() - 2), PAIRS, 2)
    cos, sin = turns.unbind(-1)
    if inverse:
        sin = -sin
    a, b = x[..., -ROPE_DIM:].to(dtype).reshape(*x.shape[:-1], PAIRS, 2).unbind(-1)
    rotated = x.clone()
    rotated[..., -ROPE_DIM:] = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return rotated
