"""An independent low-precision attention: rounds where the kernel contract rounds, and nowhere else.

Contract (spec §2.1, §8): bf16 q and keys, float32 logits and sums, P rounded to bf16 before P V, float32 accumulation,
bf16 output. Its error against float64 is what a right kernel may also have; budgets.py turns it into a budget.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

PHASES = (0.0, 0.37)
"""P is rounded relative to the row's maximum logit plus each of these. Kernels round relative to a running maximum, so
the rounding of one P falls at another place of its binade; the worse of two places keeps a lucky one from setting the
budget of a row with few keys."""


def _logits(q: Tensor, keys: Tensor) -> Tensor:
    if q.is_cuda:
        return torch.bmm(q, keys.transpose(1, 2), out_dtype=torch.float32)
    return torch.bmm(q.to(torch.float32), keys.to(torch.float32).transpose(1, 2))


def _values(p: Tensor, keys: Tensor) -> Tensor:
    if p.is_cuda:
        return torch.bmm(p, keys, out_dtype=torch.float32)
    return torch.bmm(p.to(torch.float32), keys.to(torch.float32))


@dataclass(frozen=True)
class Reference:
    """``outs``: bf16 ``(R, H, 512)`` per phase; ``reach``: max |logit| per (row, head), float32 ``(R, H)``."""

    outs: list[Tensor]
    reach: Tensor


def low_precision(q: Tensor, keys: Tensor, valid: Tensor, sink: Tensor | None, scale: float, top: Tensor) -> Reference:
    """The reference for bf16 q ``(R, H, 512)`` over finite bf16 keys ``(R, N, 512)`` where ``valid (R, N)``.

    ``top``: each row's largest logit ``(R, H)``, -inf in rows without keys; weights are taken relative to it.
    """
    hidden = ~valid[:, None, :]
    logits = _logits(q, keys).mul_(scale).masked_fill_(hidden, 0)
    reach = torch.linalg.vector_norm(logits, math.inf, dim=-1)
    lonely = top == -torch.inf
    top = top.masked_fill(lonely, 0).to(torch.float32)
    weights = logits.sub_(top[..., None]).exp_().masked_fill_(hidden, 0)
    total = weights.sum(-1)
    if sink is not None:
        total = total + torch.exp(sink - top)
    outs = []
    for phase in PHASES:
        # Relative to top + phase, weights, their sum and the sink's share all shrink alike before P is rounded.
        shrink = math.exp(-phase)
        p = (weights * shrink).to(torch.bfloat16) if phase else weights.to(torch.bfloat16)
        out = _values(p, keys).div_((total * shrink)[..., None])
        outs.append(out.masked_fill_(lonely[..., None], 0).to(torch.bfloat16))
    return Reference(outs, reach)
