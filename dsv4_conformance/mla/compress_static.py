"""Chunks of any length with static shapes: what a captured prefill needs of a compressor (spec §6, §14.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_conformance.mla.compressor import OVERLAPPING_RATIO, Compressor
from dsv4_conformance.spec.kv_layout import WINDOW_PAGE


def extend_static(
    compressor: Compressor, ug: Tensor, state_rows: Tensor, positions: Tensor, starts: Tensor, stops: Tensor
) -> Tensor:
    """As ``Compressor.extend``, row by row and without waiting for the device: float32 ``(T, dim)``, row t an entry
    where ``(position + 1) % ratio == 0``, else anything.

    ug ``(T, 2 * width)``: the rows of each chunk one after the other. state_rows, positions, starts, stops: int64
    ``(T,)``: first position of the row's chunk, and the one after its last; rows of nobody have state row 0.
    """
    rows, device = len(ug), ug.device
    tokens = positions[:, None] + torch.arange(1 - compressor.window, 1, device=device)
    own = tokens >= starts[:, None]
    in_chunk = (torch.arange(rows, device=device)[:, None] + tokens - positions[:, None]).clamp(min=0)
    stored = compressor.state[state_rows[:, None] * compressor.ring + tokens % compressor.ring]
    windows = torch.where(own[..., None], ug[in_chunk], stored)
    if compressor.overlapping:
        windows = torch.where((tokens >= 0)[..., None], windows, compressor.nothing)
    entries = compressor.pool(windows, (positions + 1 - compressor.ratio).clamp(min=0))
    # Reads come first: a chunk longer than the ring overwrites what its first windows needed.
    lasting = positions >= stops - compressor.ring
    place = state_rows * compressor.ring + positions % compressor.ring
    compressor.state.index_copy_(0, torch.where(lasting, place, 0), ug)
    if compressor.tail_pages:
        page = positions // WINDOW_PAGE
        kept = (positions % WINDOW_PAGE >= WINDOW_PAGE - OVERLAPPING_RATIO) & (page < compressor.tail_pages)
        at = (state_rows * compressor.tail_pages + page) * OVERLAPPING_RATIO + positions % OVERLAPPING_RATIO
        compressor.tails.view(-1, ug.shape[1]).index_copy_(0, torch.where(kept, at, 0), ug)
    return entries
