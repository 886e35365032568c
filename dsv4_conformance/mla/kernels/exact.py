"""Attention in the precision of its operands: float32 layers on a CPU, and whatever has no fused kernel (spec §8).

Nothing is rounded on the way, so a float32 layer can be held to 1e-5 of its output.
"""

from __future__ import annotations

import torch
from torch import Tensor

SCRATCH_BYTES = 64 << 20


def attend(q: Tensor, keys: Tensor, valid: Tensor, sink: Tensor | None, scale: float) -> Tensor:
    """Attention of q ``(T, h, 512)`` over keys ``(T, n, 512)`` where valid ``(T, n)``; out as q. Invalid keys are 0."""
    logits = torch.bmm(q, keys.transpose(1, 2)).mul_(scale).masked_fill_(~valid[:, None], -torch.inf)
    top = logits.amax(-1)
    shift = top.masked_fill(top == -torch.inf, 0.0)
    weights = logits.sub_(shift[..., None]).exp_()
    total = weights.sum(-1)
    silent = total == 0
    if sink is not None:
        total = total + torch.exp(sink.to(q.dtype) - shift)
        silent = silent | (sink == torch.inf)
    return torch.bmm(weights, keys).div_(total[..., None]).masked_fill_(silent[..., None], 0.0)


def attend_rows(q: Tensor, rows: Tensor, indices: Tensor, sink: Tensor | None, scale: float) -> Tensor:
    """Attention of q ``(T, h, 512)`` over ``rows (s, 512)`` at indices int ``(T, n)``; a negative index is a hole.

    Works through the queries in pieces, so that the gathered keys stay within 64 MiB.
    """
    out = torch.empty_like(q)
    step = max(1, SCRATCH_BYTES // max(1, indices.shape[1] * rows.shape[1] * rows.element_size()))
    for start in range(0, len(q), step):
        part = slice(start, start + step)
        listed = indices[part].long()
        hole = listed < 0
        keys = rows[listed.clamp(min=0)].masked_fill_(hole[..., None], 0.0)
        out[part] = attend(q[part], keys, ~hole, sink, scale)
    return out
