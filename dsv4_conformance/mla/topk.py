"""Exact selection of index entries, of static shapes and without waiting for the device (spec §7, §9.4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dsv4_conformance.spec.kv_layout import C4_PAGE


def select(scores: Tensor, lengths: Tensor, topk: int) -> Tensor:
    """int32 ``(T, topk)``: entries of each row, distinct, valid ones first, then -1 (spec §7).

    scores: float ``(T, N)``, of which row t has its first ``lengths[t]``, int64 ``(T,)``; beyond them anything may
    stand. A row of at most topk entries takes them all in ascending order, whatever their scores; N may then be smaller
    than its length. A longer row takes its topk largest scores, equal ones at the edge in any order.
    """
    rows, width = scores.shape
    lengths = lengths[:, None]
    visible = torch.arange(width, device=scores.device) < lengths
    # Entries that are not visible must lose even against a score of minus infinity.
    lowest = torch.finfo(scores.dtype).min
    ranked = torch.where(visible, scores.clamp(min=lowest), -math.inf)
    best = ranked.new_full((rows, topk), -1, dtype=torch.int32)
    count = min(topk, width)
    best[:, :count] = ranked.topk(count, 1).indices
    entries = torch.arange(topk, dtype=torch.int32, device=scores.device)
    return torch.where(lengths <= topk, torch.where(entries < lengths, entries, -1), best)


def paged(raw: Tensor, page_table: Tensor) -> Tensor:
    """Slots int32 ``(T, topk)`` of raw entries int32 ``(T, topk)``; -1 stays -1 (spec §9.4).

    page_table: int32 ``(T, pages)`` of 256-token pages, 64 entries each; it covers every entry of raw.
    """
    entries = raw.long().clamp(min=0)
    slots = page_table.long().gather(1, entries // C4_PAGE) * C4_PAGE + entries % C4_PAGE
    return torch.where(raw < 0, -1, slots).int()
