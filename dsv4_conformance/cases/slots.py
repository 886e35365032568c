"""Rows that say which slot they belong to, exact in every cache, and pools whose pages lie far apart (spec §9)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dsv4_conformance.oracle import kv_format
from dsv4_conformance.spec.kv_layout import PageLayout

DIGITS = 4
"""Hexadecimal digits of a slot number that a row holds, again and again: slots below 65536 have rows of their own."""


def named_rows(names: Tensor, width: int = PageLayout.HEAD_DIM) -> Tensor:
    """float64 ``(n, width)``: dim d of row ``names[i]`` is its digit d % 4, and an e4m3 code holds it exactly under a
    power of two; tiles of 64 have powers of their own, by name and tile, so that scales differ as well."""
    place = torch.arange(width, device=names.device)
    digits = (names[:, None] >> (4 * (place % DIGITS))) & 15
    power = (names[:, None] + 3 * (place // PageLayout.TILE)) % 7 - 3
    return digits.to(torch.float64) * torch.exp2(power.to(torch.float64))


def named_keys(names: Tensor) -> Tensor:
    """float32 ``(n, 128)`` index keys: the same, under one power of two per key, which element 0 makes the scale."""
    place = torch.arange(128, device=names.device)
    digits = ((names[:, None] >> (4 * (place % DIGITS))) & 15).to(torch.float64)
    digits[:, 0] = 448.0
    return (digits * torch.exp2((names % 7 - 3).to(torch.float64))[:, None]).float()


def name_slots(pages: Tensor) -> None:
    """Write into every slot of a pool the row that names it."""
    slots = torch.arange(pages.shape[0] * pages.shape[1], device=pages.device)
    kv_format.pack(named_rows(slots).to(torch.bfloat16), slots, pages)


def far_pages(ids: Sequence[int], page_bytes: int, device: torch.device) -> Tensor:
    """uint8 ``(max(ids) + 1, page_bytes)``, of which the pages ``ids`` are 0xff and nothing else is ever touched: on a
    CPU the others cost no memory."""
    pool = torch.empty((max(ids) + 1, page_bytes), dtype=torch.uint8, device=device)
    pool[list(ids)] = 0xFF
    return pool


def kernel_view(pool: Tensor, page_size: int) -> Tensor:
    """A pool of main-cache pages as kernels take it: ``(num_pages, P, 1, 584)``."""
    token = PageLayout.TOKEN_BYTES
    return pool.as_strided((pool.shape[0], page_size, 1, token), (pool.shape[1], token, token, 1))


def far_ids(page_bytes: int, limit: int) -> list[int]:
    """Page numbers around every 2^31 bytes up to ``limit`` bytes, and near ones; 0 is left out."""
    wraps = range(2**31, limit + 1, 2**31)
    found = [page for wrap in wraps for page in (wrap // page_bytes - 1, wrap // page_bytes, wrap // page_bytes + 1)]
    return [1, 2, *found]
