"""Sparse attention of the built-in implementation, in torch, for CPU and CUDA (spec §8, §10, §11).

It rounds where the FlashMLA contract rounds: bf16 operands, fp32 logits and sums, probabilities rounded to bf16 before
they meet the values, fp32 accumulation, bf16 output. Index lists keep their positions (nothing is compacted), so the
bits of a row depend on the shapes of the call and on that row alone (INV-17).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.kernels.kv_format import load_rows
from dsv4_conformance.spec.geometry import HEAD_DIM

CPU_SCRATCH_BYTES = 8 << 20  # about a second-level cache; more than that is slower, not faster
CUDA_SCRATCH_BYTES = 1 << 30


class PagedScope(Protocol):
    """One paged key scope of a decode call."""

    @property
    def pages(self) -> Tensor:
        """V4 pages uint8 ``(num_pages, P, 1, 584)`` (spec §9.1)."""

    @property
    def indices(self) -> Tensor:
        """Slots int32 ``(b, s_q, topk)``, -1 = hole."""

    @property
    def topk_length(self) -> Tensor | None:
        """int32 ``(b,)``: leftmost list entries to process; None = all."""


class DecodeOutput(NamedTuple):
    """out bf16 ``(b, s_q, h_q, 512)``; lse fp32 ``(b, h_q, s_q)``, natural log, sink-free, +inf without keys."""

    out: Tensor
    lse: Tensor


class PrefillOutput(NamedTuple):
    """out bf16 ``(s_q, h_q, 512)``; max_logits and lse fp32 ``(s_q, h_q)``, -inf and +inf without keys."""

    out: Tensor
    max_logits: Tensor
    lse: Tensor


def sparse_decode(
    q: Tensor,
    window: PagedScope,
    extra: PagedScope | None,
    sink: Tensor | None,
    scale: float,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> DecodeOutput:
    """Attend from q bf16 ``(b, s_q, h_q, 512)`` to the listed slots of one or two paged scopes (spec §8, §10).

    sink: fp32 ``(h_q,)`` or None. scale multiplies dot products. Results go into ``out`` / ``lse`` when given. List
    entries outside ``[0, num_pages * P)`` or at positions >= topk_length are holes; an index counts once per
    occurrence. Raises BadInput if lists, lengths or sinks are not as many as the queries.
    """
    b, s_q, h_q, _ = q.shape
    for name, scope in (("window", window), ("extra", extra)):
        if scope is not None:
            _as_many(f"{name} lists", scope.indices.shape[:2], (b, s_q))
            _as_many(f"{name} lengths", None if scope.topk_length is None else scope.topk_length.shape, (b,))
    _as_many("sinks", None if sink is None else sink.shape, (h_q,))
    scopes = [(scope.pages, _paged_list(scope)) for scope in (window, extra) if scope is not None]
    width = sum(slots.shape[1] for _, slots in scopes)
    queries = q.reshape(b * s_q, h_q, HEAD_DIM)
    result = _empty_result(b * s_q, h_q, q.device)
    for rows in _chunks(b * s_q, h_q, width, q.device):
        keys = torch.empty(len(queries[rows]), width, HEAD_DIM, dtype=_operand_dtype(q.device), device=q.device)
        start = 0
        for pages, slots in scopes:
            load_rows(pages, slots[rows], keys.narrow(1, start, slots.shape[1]))
            start += slots.shape[1]
        valid = torch.cat([slots[rows] for _, slots in scopes], 1) >= 0
        _attend(queries[rows], keys, valid, sink, scale, [part[rows] for part in result])
    return DecodeOutput(
        _deliver(result.out.view(q.shape), out),
        _deliver(result.lse.view(b, s_q, h_q).transpose(1, 2).contiguous(), lse),
    )


def sparse_prefill(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    topk_length: Tensor | None,
    sink: Tensor | None,
    scale: float,
    out: Tensor | None = None,
    max_logits: Tensor | None = None,
    lse: Tensor | None = None,
) -> PrefillOutput:
    """Attend from q bf16 ``(s_q, h_q, 512)`` to the listed rows of kv bf16 ``(s_kv, 1, 512)`` (spec §8, §11).

    indices: int32 ``(s_q, 1, topk)``; entries < 0, >= s_kv or at positions >= topk_length int32 ``(s_q,)`` are holes.
    Results go into ``out`` / ``max_logits`` / ``lse`` when given. Raises BadInput if lists, lengths or sinks are not as
    many as the queries.
    """
    s_q, h_q, _ = q.shape
    _as_many("lists", indices.shape[:1], (s_q,))
    _as_many("lengths", None if topk_length is None else topk_length.shape, (s_q,))
    _as_many("sinks", None if sink is None else sink.shape, (h_q,))
    listed = _holes_marked(indices[:, 0], topk_length, kv.shape[0])
    result = _empty_result(s_q, h_q, q.device)
    for rows in _chunks(s_q, h_q, listed.shape[1], q.device):
        keys = _workspace_rows(kv[:, 0], listed[rows]).to(_operand_dtype(q.device))
        _attend(q[rows], keys, listed[rows] >= 0, sink, scale, [part[rows] for part in result])
    return PrefillOutput(*(_deliver(part, given) for part, given in zip(result, (out, max_logits, lse), strict=True)))


def _as_many(name: str, given: torch.Size | None, queries: tuple[int, ...]) -> None:
    """Raise BadInput where torch would broadcast, or read rows of another query."""
    if given is not None and tuple(given) != queries:
        raise BadInput(f"{name} are {tuple(given)} and the queries {queries}; pass one for each.")


def _attend(q: Tensor, keys: Tensor, valid: Tensor, sink: Tensor | None, scale: float, result: list[Tensor]) -> None:
    """Softmax attention of q ``(n, h_q, 512)`` over keys ``(n, m, 512)`` where valid ``(n, m)``; spec §8.

    Invalid keys must be zero. Writes out ``(n, h_q, 512)``, max_logits and lse ``(n, h_q)`` into ``result``.
    """
    out, max_logits, lse = result
    lonely = ~valid.any(1, keepdim=True)
    logits = _matmul(q.to(keys.dtype), keys.transpose(1, 2)).mul_(scale)
    logits.masked_fill_(~valid[:, None], float("-inf"))
    torch.amax(logits, -1, out=max_logits)
    weights = logits.sub_(max_logits[..., None]).exp_()  # NaN in lonely rows, whose results are set below
    total = weights.sum(-1)
    lse.copy_((max_logits + total.log()).masked_fill_(lonely, float("inf")))
    values = _matmul(weights.to(torch.bfloat16).to(keys.dtype), keys)
    nothing = lonely
    if sink is not None:
        # The rounding of total is the same with a sink of -inf as without a sink: exp(-inf) adds an exact zero.
        total = total + (sink - max_logits).exp_()
        nothing = lonely | (sink == float("inf"))
    out.copy_(values.div_(total[..., None]).masked_fill_(nothing[..., None], 0.0))


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """Batched product with fp32 accumulation and result; operands as _operand_dtype says."""
    return torch.bmm(a, b, out_dtype=torch.float32) if a.is_cuda else torch.bmm(a, b)


def _operand_dtype(device: torch.device) -> torch.dtype:
    # Products of bf16 values are exact in fp32, so float32 operands give a CPU the arithmetic of a bf16 tensor core.
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _paged_list(scope: PagedScope) -> Tensor:
    """Slots int32 ``(b * s_q, topk)``, -1 for whatever must not be dereferenced."""
    b, s_q, topk = scope.indices.shape
    lengths = None if scope.topk_length is None else scope.topk_length.repeat_interleave(s_q, output_size=b * s_q)
    return _holes_marked(scope.indices.reshape(b * s_q, topk), lengths, scope.pages.shape[0] * scope.pages.shape[1])


def _holes_marked(indices: Tensor, lengths: Tensor | None, capacity: int) -> Tensor:
    """indices ``(n, topk)`` with -1 outside ``[0, capacity)`` and at positions >= lengths ``(n,)``."""
    hole = (indices < 0) | (indices >= capacity)
    if lengths is not None:
        hole |= torch.arange(indices.shape[1], device=indices.device) >= lengths[:, None]
    return indices.masked_fill(hole, -1)


def _workspace_rows(rows: Tensor, listed: Tensor) -> Tensor:
    """Rows of a bf16 ``(s_kv, 512)`` workspace at listed ``(n, topk)``, zero where listed is -1."""
    if rows.shape[0] == 0:
        return rows.new_zeros(*listed.shape, HEAD_DIM)
    taken = rows.index_select(0, listed.clamp(min=0).flatten()).view(*listed.shape, HEAD_DIM)
    return taken.masked_fill_((listed < 0)[..., None], 0.0)


class _Result(NamedTuple):
    out: Tensor
    max_logits: Tensor
    lse: Tensor


def _empty_result(rows: int, h_q: int, device: torch.device) -> _Result:
    statistics = torch.empty(2, rows, h_q, device=device)
    return _Result(torch.empty(rows, h_q, HEAD_DIM, dtype=torch.bfloat16, device=device), *statistics)


def _chunks(rows: int, h_q: int, width: int, device: torch.device) -> Iterator[slice]:
    """Row ranges whose scratch stays within the device's allowance; they depend on shapes only."""
    per_key = 12 * HEAD_DIM  # gathered bytes, their fp32 values and the operand
    per_pair = 12  # logits, probabilities and their rounded copies
    row_bytes = width * (per_key + per_pair * h_q) + 8 * h_q * HEAD_DIM
    allowance = CUDA_SCRATCH_BYTES if device.type == "cuda" else CPU_SCRATCH_BYTES
    step = max(1, allowance // row_bytes)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _deliver(result: Tensor, given: Tensor | None) -> Tensor:
    return result if given is None else given.copy_(result)
