"""Indexer of C4 layers: index queries, scores over the paged index keys, selection (spec §7)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from dsv4_conformance.mla.compressor import Compressor
from dsv4_conformance.mla.hadamard import hadamard
from dsv4_conformance.mla.kernels import kv_format
from dsv4_conformance.mla.pools import IndexKeyPool
from dsv4_conformance.mla.rope import apply_rope
from dsv4_conformance.mla.topk import paged, select
from dsv4_conformance.spec.geometry import INDEX_HEAD_DIM
from dsv4_conformance.spec.weights import IndexerSpec

RATIO = 4
CPU_SCRATCH_BYTES = 8 << 20
CUDA_SCRATCH_BYTES = 1 << 30


class Indexer:
    """One indexer with the state of its compressor for ``rows - 1`` sequences, in float32; keys live in a pool outside.

    ``ring`` and ``tail_pages`` are the compressor's; ``select`` and ``paged`` are those of ``mla.topk``. It works on
    the device of the weights.
    """

    select = staticmethod(select)
    paged = staticmethod(paged)

    def __init__(self, spec: IndexerSpec, rows: int, ring: int | None = None, tail_pages: int = 0) -> None:
        geometry, device = spec.geometry, spec.weights.wq_b.device
        self.heads, self.topk, self.quantised = geometry.index_n_heads, geometry.index_topk, spec.quantised
        self.compressor = Compressor(
            spec.weights.compressor,
            RATIO,
            INDEX_HEAD_DIM,
            spec.table,
            geometry.rms_norm_eps,
            rows,
            ring,
            device,
            tail_pages,
        )
        self._wq_b = spec.weights.wq_b.float()
        self._weights_proj = spec.weights.weights_proj.float()
        self._weight_scale = geometry.index_weight_scale
        self._table = spec.table.to(device)
        self._rotation = hadamard(INDEX_HEAD_DIM, device)

    def queries(self, x: Tensor, qr: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Index queries float32 ``(T, heads, 128)`` and head weights float32 ``(T, heads)``, scaled.

        x ``(T, hidden)``, qr ``(T, q_lora)``: the normed query source, positions int64 ``(T,)``. Queries are roped,
        then rotated; of a quantised indexer they have the values that fp8 codes and one scale per head hold.
        """
        iq = linear(qr.float(), self._wq_b).view(-1, self.heads, INDEX_HEAD_DIM)
        iq = apply_rope(iq, self._table, positions) @ self._rotation
        if self.quantised:
            iq = kv_format.dequantise_index_keys(*kv_format.quantise_index_keys(iq))
        return iq, linear(x.float(), self._weights_proj) * self._weight_scale

    def rotate_keys(self, entries: Tensor) -> Tensor:
        """Entries of the index compressor ``(m, 128)`` as they are stored: Hadamard-rotated."""
        return entries @ self._rotation

    def scores_paged(self, iq: Tensor, w: Tensor, pool: IndexKeyPool, page_table: Tensor, entries: int) -> Tensor:
        """``sum over heads of w * relu(iq . key)``, float32 ``(T, entries)``, for each row's first ``entries`` entries.

        page_table: int32 ``(T, pages)``, or ``(1, pages)`` for rows of one sequence, which then read its keys once.
        Entries on a page < 0 have key 0; those that a row does not see may hold anything.
        """
        entry = torch.arange(entries, device=iq.device)
        pages = page_table.long()[:, entry // pool.page_size]
        slots = torch.where(pages < 0, -1, pages * pool.page_size + entry % pool.page_size)
        shared = len(page_table) == 1
        keys = pool.load(slots[0]) if shared else None
        scratch = CUDA_SCRATCH_BYTES if iq.is_cuda else CPU_SCRATCH_BYTES
        step = max(1, scratch // (4 * max(entries, 1) * (self.heads + (0 if shared else INDEX_HEAD_DIM))))
        scores = score_buffer(iq, len(iq), entries)
        for at in range(0, len(iq), step):
            rows = slice(at, at + step)
            key = pool.load(slots[rows]) if keys is None else keys
            dots = (iq[rows] @ key.transpose(-1, -2)).relu_()
            torch.matmul(w[rows, None], dots, out=scores[rows, None])
        return scores


def score_buffer(like: Tensor, rows: int, entries: int) -> Tensor:
    """Scores float32 ``(rows, entries)``, unset, on the device of ``like``: as wide as what the rows see."""
    return torch.empty(rows, entries, dtype=torch.float32, device=like.device)
