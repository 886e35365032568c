"""Core attention over window and extra scopes in float64, by definition (spec §8, §10, §11)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

D = 512
Fetch = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Scope:
    """One list of keys per query row.

    ``fetch``: int64 slots ``(...)`` -> rows ``(..., 512)`` (values exact in bf16). ``indices``: ``(R, N)`` integers;
    ``length``: ``(R,)`` leftmost entries to process, None = all. ``limit``: None (decode: only -1 is a hole; other
    values inside the length are the caller's promise) or s_kv (prefill: < 0 and >= limit are holes). ``slots``: how
    many rows exist; no definition needs it, but a mistaken reader does (numerics/mutants.py).
    """

    fetch: Fetch
    indices: Tensor
    length: Tensor | None
    limit: int | None = None
    slots: int = 0
    fetch_into: Callable[[Tensor, Tensor], object] | None = None

    def valid(self) -> Tensor:
        """bool ``(R, N)``: entries that name a key (spec §10, §11)."""
        named = self.indices != -1 if self.limit is None else (self.indices >= 0) & (self.indices < self.limit)
        if self.length is not None:
            place = torch.arange(self.indices.shape[1], device=self.indices.device)
            named = named & (place < self.length[:, None])
        return named

    def rows(self, chosen: Tensor | slice) -> "Scope":
        """The scope of some query rows."""
        length = None if self.length is None else self.length[chosen]
        return replace(self, indices=self.indices[chosen], length=length)


def _read_rows(scope: Scope, valid: Tensor, zero: bool, out: Tensor) -> None:
    """Write the rows a scope names to ``out (R, N, 512)``; invalid places as in Problem.gather."""
    slots = scope.indices.to(torch.int64)
    spare = -1 if zero else int(slots.masked_fill(~valid, -1).amax())
    if spare < 0:  # nothing is valid, or places must be 0
        slots = slots.masked_fill(~valid, 0)
    else:
        # Invalid places repeat the row's first key, or in rows without one any key: finite, and of weight 0.
        first = torch.gather(slots, 1, valid.to(torch.int8).argmax(1, keepdim=True))
        slots = torch.where(valid, slots, first.masked_fill_(~valid.any(1, keepdim=True), spare))
    if scope.fetch_into is not None:
        scope.fetch_into(slots, out)
    else:
        out.copy_(scope.fetch(slots))
    if spare < 0:
        out.masked_fill_(~valid[..., None], 0)


@dataclass(frozen=True)
class Problem:
    """Queries q ``(R, H, 512)`` against the multiset union of ``scopes``; sink ``(H,)`` or None; logit ``scale``."""

    q: Tensor
    scopes: tuple[Scope, ...]
    sink: Tensor | None
    scale: float

    def rows(self, chosen: Tensor | slice) -> "Problem":
        """The problem of some query rows."""
        return replace(self, q=self.q[chosen], scopes=tuple(scope.rows(chosen) for scope in self.scopes))

    def heads(self, chosen: Tensor | slice) -> "Problem":
        """The problem of some heads."""
        return replace(self, q=self.q[:, chosen], sink=None if self.sink is None else self.sink[chosen])

    def gather(self, zero: bool = True) -> tuple[Tensor, Tensor]:
        """Keys ``(R, N, 512)`` in stored precision and their validity ``(R, N)``; scopes in order.

        Invalid places hold 0, or with ``zero=False`` any finite row: what they hold cannot reach an answer, since their
        weight is exactly 0, and clearing a large gather costs a pass over it.
        """
        valid = torch.cat([scope.valid() for scope in self.scopes], 1)
        keys = torch.empty((*valid.shape, D), dtype=self.q.dtype, device=self.q.device)
        start = 0
        for scope in self.scopes:
            part = slice(start, start := start + scope.indices.shape[1])
            _read_rows(scope, valid[:, part], zero, keys[:, part])
        return keys, valid

    def chunks(self, max_bytes: int = 1 << 30) -> Iterator[tuple[slice, "Problem"]]:
        """Split by query rows so that keys, logits and weights of one chunk stay near ``max_bytes`` in float64."""
        rows, heads = self.q.shape[:2]
        width = sum(scope.indices.shape[1] for scope in self.scopes)
        per_row = 8 * (width * (D * 3 // 2) + 3 * heads * width + 4 * heads * D)
        step = max(1, max_bytes // per_row)
        for start in range(0, rows, step):
            part = slice(start, min(start + step, rows))
            yield part, self.rows(part)


@dataclass(frozen=True)
class Answer:
    """out float64 ``(R, H, 512)``, lse ``(R, H)`` natural and sink-free, max_logits ``(R, H)`` (spec §8)."""

    out: Tensor
    lse: Tensor
    max_logits: Tensor

    def at(self, chosen: Tensor | slice | tuple[slice, Tensor | slice]) -> "Answer":
        """The answer of some rows, or of some heads as ``(slice(None), heads)``."""
        return Answer(self.out[chosen], self.lse[chosen], self.max_logits[chosen])


def logits_of(q: Tensor, keys: Tensor, scale: float) -> Tensor:
    """``s_j = scale <q_h, k_j>`` over all 512 dims, float64 ``(R, H, N)``."""
    return torch.bmm(q.to(torch.float64).mul(scale), keys.to(torch.float64).transpose(1, 2))


def combine(logits: Tensor, keys: Tensor, valid: Tensor, sink: Tensor | None) -> Answer:
    """The answer from logits ``(R, H, N)`` (overwritten) over keys ``(R, N, 512)``, which are also the values.

    ``valid``: bool ``(R, N)``, or ``(R, H, N)`` where it differs by head. ``sink``: ``(H,)`` or None.
    ``out = sum_j e^{s_j} k_j / (L + e^{sink})`` with ``L = sum_j e^{s_j}``, ``lse = ln L``. Rows without keys: out 0,
    lse +inf, max_logits -inf, whatever the sink (spec §8, edge table).
    """
    logits.masked_fill_(~(valid if valid.dim() == 3 else valid[:, None, :]), -torch.inf)
    top = logits.amax(-1)
    lonely = top == -torch.inf
    shift = top.masked_fill(lonely, 0)
    weights = logits.sub_(shift[..., None]).exp_()
    total = weights.sum(-1)
    denominator = total if sink is None else total + torch.exp(sink.to(torch.float64) - shift)
    out = torch.bmm(weights, keys.to(torch.float64)).div_(denominator[..., None])
    out.masked_fill_(lonely[..., None], 0)
    lse = (total.log() + shift).masked_fill_(lonely, torch.inf)
    return Answer(out, lse, top)


def attend(q: Tensor, keys: Tensor, valid: Tensor, sink: Tensor | None, scale: float) -> Answer:
    """Attention of q ``(R, H, 512)`` over keys ``(R, N, 512)`` where ``valid (R, N)``, in float64 (spec §8)."""
    keys = keys.to(torch.float64)
    return combine(logits_of(q, keys, scale), keys, valid, sink)


def attention(problem: Problem, max_bytes: int = 1 << 30) -> Answer:
    """The answer to a whole problem, chunked over rows to stay near ``max_bytes`` of scratch."""
    parts = [attend(part.q, *part.gather(), part.sink, part.scale) for _, part in problem.chunks(max_bytes)]
    return join_rows(parts)


def join_rows(parts: list[Answer]) -> Answer:
    """Answers of consecutive rows as one."""
    if len(parts) == 1:
        return parts[0]
    return Answer(*(torch.cat([getattr(p, name) for p in parts]) for name in ("out", "lse", "max_logits")))
