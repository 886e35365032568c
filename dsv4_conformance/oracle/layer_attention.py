"""Attention of the queries of one sequence over its window and its compressed entries, in float64 (spec §4, §8)."""

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.oracle.attention import combine, logits_of
from dsv4_conformance.oracle.compressor import visible
from dsv4_conformance.oracle.rounding import EXACT, Rounding, bf16

WINDOW = 128
CHUNK = 32
"""Query rows that share one product with the keys of all of them: a longer chunk wastes work outside each window."""


def attention_rows(
    q: Tensor,
    positions: Tensor,
    window_rows: Tensor,
    compressed_rows: Tensor | None = None,
    selected: Tensor | None = None,
    sink: Tensor | None = None,
    *,
    ratio: int,
    scale: float,
    window: int = WINDOW,
    rounding: Rounding = EXACT,
) -> Tensor:
    """o ``(T, H, 512)`` before the inverse rope, of q ``(T, H, 512)`` at ``positions`` int64 ``(T,)``.

    ``window_rows (S, 512)``: row p is the key of position p; the query at t sees ``t - window + 1 .. t``.
    ``compressed_rows (n, 512)``: entry i of the sequence, or None at ratio 0. ``selected``: integers ``(T, k)``, the
    entries each query attends to as a multiset, -1 = none; None means all ``(t + 1) // ratio``. ``sink (H,)`` or None.
    Rows that no query sees may hold anything. Raises BadInput if a row that a query sees does not exist.
    """
    out = q.new_empty(q.shape, dtype=torch.float64)
    for start in range(0, q.shape[0], CHUNK):
        part = slice(start, start + CHUNK)
        at = positions[part]
        seen = at[:, None] - torch.arange(window, device=at.device)
        scopes = [_counted(seen.clamp(min=-1), window_rows, "window_rows")]
        if ratio:
            if compressed_rows is None:
                raise BadInput(f"attention of ratio {ratio} got no compressed rows; pass them, if only (0, 512).")
            chosen = _all_visible(at, ratio) if selected is None else selected[part].to(torch.int64)
            scopes.append(_counted(chosen, compressed_rows, "compressed_rows"))
        keys, times = (torch.cat(parts, dim) for parts, dim in zip(zip(*scopes, strict=True), (0, 1), strict=True))
        out[part] = _attend(q[part], keys, times, sink, scale, rounding)
    return out


def _all_visible(positions: Tensor, ratio: int) -> Tensor:
    count = visible(positions, ratio)
    place = torch.arange(int(count.max()), device=positions.device)
    return torch.where(place < count[:, None], place, -1)


def _counted(lists: Tensor, rows: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Keys ``(N, 512)`` that any of the lists ``(T, k)`` names, and how often each list names each, ``(T, N)``."""
    needed = torch.unique(lists[lists >= 0])
    if needed.numel() and int(needed[-1]) >= rows.shape[0]:
        raise BadInput(f"a query attends to row {int(needed[-1])} of {name}, which has {rows.shape[0]}; pass that row.")
    place = torch.searchsorted(needed, lists.contiguous()).masked_fill_(lists < 0, needed.shape[0])
    times = rows.new_zeros(lists.shape[0], needed.shape[0] + 1, dtype=torch.float64)
    times.scatter_add_(1, place, torch.ones_like(place, dtype=torch.float64))
    return rows[needed].to(torch.float64), times[:, :-1]


def _attend(q: Tensor, keys: Tensor, times: Tensor, sink: Tensor | None, scale: float, rounding: Rounding) -> Tensor:
    """Attention of q ``(R, H, 512)`` over keys shared by all rows, of which row r sees key j ``times[r, j]`` times.

    All (row, head) pairs are heads of one query row to the core; naming a key m times adds ln m to its logit, and
    ln 0 hides it.
    """
    rows, heads = q.shape[:2]
    logits = logits_of(q.reshape(1, rows * heads, -1), keys[None], scale)
    logits.view(rows, heads, -1).add_(times.log()[:, None])
    sinks = None if sink is None else sink.to(torch.float64).repeat(rows)
    if rounding.weights:
        return _with_bf16_weights(logits[0], keys, sinks).view(rows, heads, -1)
    hears = (times > 0)[:, None].expand(rows, heads, -1).reshape(1, rows * heads, -1)
    return combine(logits, keys[None], hears, sinks).out.view(rows, heads, -1)


def _with_bf16_weights(logits: Tensor, keys: Tensor, sinks: Tensor | None) -> Tensor:
    """As ``combine``, with ``e^(s - max)`` rounded to bf16 towards the values but not in the sum (spec §2.1)."""
    top = logits.amax(-1, keepdim=True)
    weights = (logits - top).exp()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks[:, None] - top).exp()
    return bf16(weights) @ keys / total
