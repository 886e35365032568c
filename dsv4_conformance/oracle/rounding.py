"""Roundings that production makes and the definition does not, each switchable, in float64 (spec §2.1, §9.2, §9.3)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.oracle.kv_format import E4M3_MAX, scale_exponent
from dsv4_conformance.spec.kv_layout import PageLayout


@dataclass(frozen=True)
class Rounding:
    """Which tensors of a layer are rounded; all False is the exact definition. Letters are those of spec §2.1.

    A quantised layer rounds ``kv_rows`` and ``index`` whatever stands here: its caches are what it computes with.
    """

    kv_rows: bool = False
    """(a) window keys and compressed entries become what a 584-byte cache row holds."""
    queries: bool = False
    """(b) q becomes bf16 after the head norm and again after rope."""
    weights: bool = False
    """(c) softmax weights become bf16, relative to the largest, where they meet the values; their sum stays exact."""
    outputs: bool = False
    """(d) o becomes bf16 before and after the inverse rope."""
    index: bool = False
    """(e) index queries and keys become fp8 with one float32 scale per 128-vector."""
    wo_a: bool = False
    """(f) what enters wo_a becomes fp8 with one float32 scale per 128 dims."""
    activations: bool = False
    """Beyond the letters: what a bf16 layer keeps between its stages becomes bf16: qr, window keys, compressed entries,
    index queries, index keys and head weights, and the grouped output before wo_b."""


EXACT = Rounding()


def bf16(x: Tensor) -> Tensor:
    """Finite x rounded to the nearest bf16, ties to even, as float64.

    Not through float32, which a cast from float64 may visit: a value just above a tie would round twice.
    """
    step = _power_of_two(x).clamp_(min=2.0**-126).mul_(2.0**-7)
    return (x / step).round_().mul_(step)


def e4m3(x: Tensor) -> Tensor:
    """x float64 within ±448 rounded to the nearest e4m3fn value, ties to even, as float64; NaN stays."""
    step = _power_of_two(x).clamp_(min=2.0**-6).mul_(2.0**-3)  # below 2**-6 e4m3 is subnormal, and the step stays
    return (x / step).round_().mul_(step)


def cache_row(rows: Tensor) -> Tensor:
    """What a 584-byte cache row holds of ``(n, 512)``: float64, exact in bf16 (spec §9.2).

    Rows become bf16 first, and the nope dims are quantised from that (the order of the reference model, spec §22).
    """
    rows = bf16(rows)
    tiles = torch.unflatten(rows[:, : PageLayout.NOPE], -1, (PageLayout.TILES, PageLayout.TILE))
    scale = torch.exp2(scale_exponent(tiles.abs().amax(-1, keepdim=True)).to(torch.float64))
    nope = e4m3((tiles / scale).clamp_(-E4M3_MAX, E4M3_MAX)).mul_(scale)
    return torch.cat((nope.flatten(-2), rows[:, PageLayout.NOPE :]), -1)


def scaled_fp8(vectors: Tensor) -> Tensor:
    """``(..., 128)`` as e4m3 with one float32 scale ``max(amax, 1e-4) / 448`` per vector, float64 (spec §9.3)."""
    vectors = vectors.to(torch.float64)
    scale = (vectors.abs().amax(-1, keepdim=True).clamp_(min=1e-4) / E4M3_MAX).to(torch.float32).to(torch.float64)
    return e4m3((vectors / scale).clamp_(-E4M3_MAX, E4M3_MAX)).mul_(scale)


def power_scaled_fp8(vectors: Tensor) -> Tensor:
    """``(..., 128)`` as e4m3 with the smallest power of two per vector that is no less than ``max(amax, 1e-4) / 448``,
    float64: what some engines store in place of ``scaled_fp8`` (vLLM's indexer; a declared convention)."""
    vectors = vectors.to(torch.float64)
    scale = torch.exp2(scale_exponent(vectors.abs().amax(-1, keepdim=True)).to(torch.float64))
    return e4m3((vectors / scale).clamp_(-E4M3_MAX, E4M3_MAX)).mul_(scale)


def _power_of_two(x: Tensor) -> Tensor:
    """The largest power of two that is no larger than |x|, from the exponent bits of float64."""
    return (x.to(torch.float64).view(torch.int64) & 0x7FF0_0000_0000_0000).view(torch.float64)
