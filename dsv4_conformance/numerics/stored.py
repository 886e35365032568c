"""Comparison of rows as a cache holds them with what its rounding contract makes of the float64 truth (spec §9, §20).

A tolerance of half an fp8 step would hide what a contract forbids. Its roundings are monotone, so what a writer that
computes in float32 can store lies between the roundings of the truth minus and plus the error of that computation: for
nearly every element that is one value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_conformance.errors import HarnessError
from dsv4_conformance.numerics.state import FLOAT32, TensorVerdict
from dsv4_conformance.oracle.kv_format import E4M3_MAX, Floor, scale_exponent
from dsv4_conformance.oracle.rounding import bf16, e4m3
from dsv4_conformance.spec.geometry import HEAD_DIM, INDEX_HEAD_DIM
from dsv4_conformance.spec.kv_layout import PageLayout

DERIVATION = (
    "0 beyond the rounding contract (bf16, then e4m3 under the smallest power of two that fits a tile): stored values "
    "lie between the contract's roundings of the float64 value -+ 1e-5 x the largest |value| of the output, the error "
    "that float32 arithmetic may have before it rounds"
)


def stored(name: str, got: Tensor, want: Tensor, floor: Floor = "amax_1e-4") -> TensorVerdict:
    """Judge dequantised rows ``got`` float ``(n, 512)`` or ``(n, 128)`` against ``want`` float64, not yet rounded.

    512: seven tiles of 64 under the declared ``floor``, then 64 bf16 values (spec §9.2). 128: one tile. Raises
    HarnessError for other shapes. The budget is 0: every value outside its bounds is wrong.
    """
    if got.shape != want.shape or got.dim() != 2 or got.shape[1] not in (HEAD_DIM, INDEX_HEAD_DIM):
        raise HarnessError(f"{name}: {tuple(got.shape)} and {tuple(want.shape)} are no rows of a cache.")
    if not len(want):
        return TensorVerdict(name, 0.0, 0.0, 0.0, (), None, DERIVATION)
    found, exact = got.detach().to(want.device, torch.float64), want.to(torch.float64)
    strange = ~found.isfinite()
    found = found.masked_fill(strange, 0)
    slack = FLOAT32 * exact.abs().max()
    if exact.shape[1] == INDEX_HEAD_DIM:
        outside = _tile_distance(found, exact, slack, floor)
    else:
        tiles = [torch.unflatten(x[:, : PageLayout.NOPE], -1, (PageLayout.TILES, -1)) for x in (found, exact)]
        nope = _tile_distance(tiles[0], tiles[1], slack, floor).flatten(1)
        rope, right = found[:, PageLayout.NOPE :], exact[:, PageLayout.NOPE :]
        outside = torch.cat((nope, _beyond(rope, bf16(rope), bf16(right - slack), bf16(right + slack))), 1)
    flat = int((strange if strange.any() else outside).to(torch.float64).argmax())
    row, column = divmod(flat, exact.shape[1])
    value = float(got[row, column])
    special = f"{value:.6g} where {float(exact[row, column]):.6g} is right" if strange.any() else None
    error = torch.inf if special else float(outside[row, column])
    return TensorVerdict(name, torch.inf if error else 0.0, error, 0.0, (row, column), special, DERIVATION)


def _beyond(got: Tensor, rounded: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """How far ``got`` lies outside [low, high], or from what the format can hold: ``rounded`` is ``got`` in it."""
    return torch.maximum(torch.maximum(low - got, got - high), (got - rounded).abs())


def _tile_distance(got: Tensor, want: Tensor, slack: Tensor, floor: Floor) -> Tensor:
    """``_beyond`` per element of tiles ``(..., width)``, under the one scale, of those that the maximum -+ slack allow,
    that fits its tile better."""
    top = want.abs().amax(-1, keepdim=True)
    low, high = bf16(want - slack), bf16(want + slack)
    best = torch.full_like(want, torch.inf)
    for edge in ((top - slack).clamp_(min=0), top + slack):
        scale = torch.exp2(scale_exponent(bf16(edge), floor).to(torch.float64))
        distance = _beyond(got, *(e4m3((x / scale).clamp(-E4M3_MAX, E4M3_MAX)) * scale for x in (got, low, high)))
        better = distance.amax(-1, keepdim=True) < best.amax(-1, keepdim=True)
        best = torch.where(better, distance, best)
    return best
