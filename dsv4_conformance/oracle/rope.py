"""Rotary embedding and YaRN frequencies in float64, by definition (spec §3)."""

import math

import torch
from torch import Tensor


def base_frequencies(base: float, rope_dim: int = 64) -> Tensor:
    """``f_j = base ** (-2j / rope_dim)``, float64 ``(rope_dim / 2,)``, radians per position (spec §3)."""
    return base ** (-torch.arange(0, rope_dim, 2, dtype=torch.float64) / rope_dim)


def yarn_ramp(
    base: float, original_max: int, beta_fast: float, beta_slow: float, rope_dim: int = 64
) -> tuple[int, int]:
    """First and last pair index of the YaRN ramp, ``(lo, hi)`` (spec §3)."""

    def pair_of(rotations: float) -> float:
        return rope_dim * math.log(original_max / (2 * math.pi * rotations)) / (2 * math.log(base))

    return max(math.floor(pair_of(beta_fast)), 0), min(math.ceil(pair_of(beta_slow)), rope_dim - 1)


def yarn_frequencies(
    base: float, factor: float, original_max: int, beta_fast: float, beta_slow: float, rope_dim: int = 64
) -> Tensor:
    """Frequencies with the YaRN ramp between ``f_j`` and ``f_j / factor``, float64 ``(rope_dim / 2,)`` (spec §3).

    Applied at every sequence length; there is no attention factor in DSV4.
    """
    plain = base_frequencies(base, rope_dim)
    lo, hi = yarn_ramp(base, original_max, beta_fast, beta_slow, rope_dim)
    width = hi - lo if hi != lo else 0.001
    ramp = ((torch.arange(rope_dim // 2, dtype=torch.float64) - lo) / width).clamp(0, 1)
    return plain * (1 - ramp) + plain / factor * ramp


def angle_table(frequencies: Tensor, positions: Tensor) -> Tensor:
    """``(cos, sin)`` float64 ``(*positions.shape, pairs, 2)`` at integer positions."""
    angle = positions.to(torch.float64)[..., None] * frequencies.to(positions.device)
    return torch.stack((angle.cos(), angle.sin()), dim=-1)


def rotate(x: Tensor, table: Tensor, inverse: bool = False) -> Tensor:
    """Rotate the LAST ``2 * pairs`` dims of x float64 ``(..., D)`` by ``table (..., pairs, 2)``; other dims untouched.

    Interleaved pairs ``(D - 2 pairs + 2j, + 2j + 1)``; ``inverse`` uses the conjugate angle (spec §3).
    """
    pairs = table.shape[-2]
    plain, turned = x[..., : -2 * pairs], torch.unflatten(x[..., -2 * pairs :], -1, (pairs, 2))
    a, b = turned.unbind(-1)
    cos, sin = table.unbind(-1)
    if inverse:
        sin = -sin
    rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    return torch.cat((plain, rotated), dim=-1)
