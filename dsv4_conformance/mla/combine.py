"""Combined index rows of sparse prefill: compressed entries first, then the window, oldest first (spec §13.3)."""

from __future__ import annotations

import torch
from torch import Tensor

WINDOW = 128
"""Positions that a query sees in its window, itself included (spec §4)."""

ROW_MULTIPLE = 128
"""Kernels for 128 heads read index rows in blocks of 128; widths are padded with -1 to a multiple of it."""


def row_width(topk: int) -> int:
    """Width of a row of ``topk`` compressed entries and a window."""
    return -(-(topk + WINDOW) // ROW_MULTIPLE) * ROW_MULTIPLE


def lengths_of(positions: Tensor, ratio: int, topk: int) -> tuple[Tensor, Tensor]:
    """Compressed entries and window positions int32 ``(rows,)`` of query positions int32; position -1 = nobody: 0."""
    seen = positions + 1
    compressed = torch.zeros_like(seen) if ratio == 0 else torch.clamp(seen // ratio, max=topk)
    return compressed, torch.clamp(seen, max=WINDOW)


def window_part(positions: Tensor, first_row: Tensor, ratio: int, topk: int) -> tuple[Tensor, Tensor]:
    """Index rows int32 ``(rows, width)`` with the window in its place and -1 elsewhere, and lengths int32 ``(rows,)``.

    ``first_row``: int32 ``(rows,)``, the workspace row of position 0 of the query's request if its window region went
    back that far (negative when it does not).
    """
    compressed, window = lengths_of(positions, ratio, topk)
    place = torch.arange(row_width(topk), dtype=torch.int32, device=positions.device) - compressed[:, None]
    oldest = first_row + positions - window + 1
    inside = (place >= 0) & (place < window[:, None])
    return torch.where(inside, oldest[:, None] + place, -1), compressed + window


def with_entries(window: Tensor, positions: Tensor, base: Tensor, entries: Tensor, ratio: int) -> Tensor:
    """``window`` rows with the compressed entries int32 ``(rows, topk)`` of each query at ``base`` int32 ``(rows,)``.

    Only the entries within the query's length are read; a hole (-1) among them stays a hole.
    """
    topk = entries.shape[1]
    compressed, _ = lengths_of(positions, ratio, topk)
    used = torch.arange(topk, dtype=torch.int32, device=entries.device) < compressed[:, None]
    rows = window.clone()
    named = torch.where(entries < 0, -1, entries + base[:, None])
    rows[:, :topk] = torch.where(used, named, window[:, :topk])
    return rows
