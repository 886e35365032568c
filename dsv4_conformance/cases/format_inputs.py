"""Tensors of format and slot-mapping cases: token rows, index keys, page tables (spec §9)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.cases.case import FormatCase
from dsv4_conformance.cases.generator import below, bf16_values, words
from dsv4_conformance.cases.pages import page_buffer

TILE = 64


def _tile_gain(case: FormatCase, tiles: int, low: int, high: int, device: torch.device) -> Tensor:
    """A power of two per (token, tile), exponent in ``[low, high)``, float64 ``(n, tiles, 1)``."""
    exponent = below(case.digest(), "gain", (case.tokens, tiles), high - low, device) + low
    return torch.exp2(exponent.to(torch.float64))[..., None]


def rows(case: FormatCase, width: int, device: torch.device) -> Tensor:
    """bf16 ``(tokens, width)`` of the case's kind, 64-dim tiles with a gain each:

    normal: 4 binades around 1; tiny: tile maxima from 2**-30 to 2**-12, across every floor rule; powers: tile maximum
    exactly 448 * 2**k, or the next bf16 above it in odd tokens; zeros: every other tile 0 or -0; huge: up to 2**100;
    wide: tiles that span 2**-14 to 1, so that codes reach fp8 subnormals and 0.
    """
    n, tiles = case.tokens, width // TILE
    base = bf16_values(words(case.digest(), "rows", (n, width // 2), device), 124)
    x = torch.unflatten(base.to(torch.float64), -1, (tiles, TILE))
    if case.data == "tiny":
        x = x * _tile_gain(case, tiles, -30, -12, device)
    elif case.data == "powers":
        top = torch.full((n, 1), 448.0, dtype=torch.float64, device=device)
        top[1::2] = 450.0
        gain = _tile_gain(case, tiles, -20, 20, device)
        x = x.clamp(-1.75, 1.75) * 64 * gain
        x[..., 17] = (
            top * gain[..., 0] * torch.where(below(case.digest(), "sign", (n, tiles), 2, device) == 0, 1.0, -1.0)
        )
    elif case.data == "zeros":
        x[:, ::2] = torch.where(x[:, ::2] < 0, -0.0, 0.0)
    elif case.data == "huge":
        x = x * _tile_gain(case, tiles, 0, 100, device)
    elif case.data == "wide":
        exponent = below(case.digest(), "wide", (n, tiles, TILE), 14, device).to(torch.float64)
        x = x * torch.exp2(-exponent)
    return x.flatten(-2).to(torch.bfloat16)


@dataclass(frozen=True)
class Placement:
    """Empty pages and where the tokens go: slots int64 ``(tokens,)``, distinct, none in page 0."""

    pages: Tensor
    slots: Tensor


def placement(case: FormatCase, device: torch.device) -> Placement:
    """Poisoned pages (0xff everywhere) for the case's tokens, in a permuted order with slots left over."""
    num_pages = -(-case.tokens // case.page_size) + 2
    places = (num_pages - 1) * case.page_size
    order = torch.argsort(below(case.digest(), "places", (places,), 2**31, device), stable=True)
    pages = page_buffer(num_pages, case.page_size, "nan", device)
    return Placement(pages, order[: case.tokens] + case.page_size)


def page_tables(case: FormatCase, requests: int, device: torch.device) -> Tensor:
    """Disjoint page tables int32 ``(requests, pages)`` over shuffled pages from 1 on."""
    pages = -(-case.tokens // 256) + 1
    order = torch.argsort(below(case.digest(), "tables", (requests * pages,), 2**31, device), stable=True)
    return (order + 1).view(requests, pages).to(torch.int32)
