"""One rank's projections of an attention layer: queries, the shared key, and the grouped output (spec §2, §15)."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_conformance.mla.norm import rms_norm
from dsv4_conformance.mla.rope import apply_rope
from dsv4_conformance.spec.geometry import HEAD_DIM
from dsv4_conformance.spec.weights import LayerSpec


class Projections:
    """Rank ``spec.rank`` owns heads ``[rank n, (rank + 1) n)``, the output groups they make and the matching columns
    of ``wo_b``; ``wq_a`` and ``wkv`` are replicated. Works in float32; a bfloat16 layer rounds q, keys and o
    once each."""

    def __init__(self, spec: LayerSpec, table: Tensor) -> None:
        g, w = spec.geometry, spec.weights
        self.heads = g.local_heads(spec.tp)
        self._groups = g.o_groups // spec.tp
        own = slice(spec.rank * self.heads * HEAD_DIM, (spec.rank + 1) * self.heads * HEAD_DIM)
        lora = slice(spec.rank * self._groups * g.o_lora_rank, (spec.rank + 1) * self._groups * g.o_lora_rank)
        self._wq_a, self._q_norm, self._wq_b = w.wq_a, w.q_norm, w.wq_b[own]
        self._wkv, self._kv_norm = w.wkv, w.kv_norm
        self._wo_a = w.wo_a[lora].view(self._groups, g.o_lora_rank, -1)
        self._wo_b = w.wo_b[:, lora]
        self._eps, self._table = g.rms_norm_eps, table
        self._dtype = torch.bfloat16 if spec.precision == "bfloat16" else torch.float32

    def query_source(self, x: Tensor) -> Tensor:
        """``qr`` float32 ``(T, q_lora)``: what queries and the indexer start from (step 1)."""
        return rms_norm(x @ self._wq_a.T, self._q_norm, self._eps)

    def queries(self, qr: Tensor, positions: Tensor, padded: int) -> Tensor:
        """Queries ``(T, padded, 512)`` of this rank's heads, normed per head, then roped (step 2).

        Heads from ``self.heads`` on hold anything: no kernel may let them reach the others, and nothing fills them.
        """
        q = (qr @ self._wq_b.T).view(len(qr), self.heads, HEAD_DIM)
        q = apply_rope(rms_norm(q, None, self._eps), self._table, positions)
        if padded == self.heads:
            return q.to(self._dtype)
        wide = torch.empty(len(qr), padded, HEAD_DIM, dtype=self._dtype, device=q.device)
        wide[:, : self.heads] = q
        return wide

    def keys(self, x: Tensor, positions: Tensor) -> Tensor:
        """Window keys ``(T, 512)``, normed and roped (step 3)."""
        return apply_rope(rms_norm(x @ self._wkv.T, self._kv_norm, self._eps), self._table, positions).to(self._dtype)

    def unrotated(self, o: Tensor, positions: Tensor) -> Tensor:
        """o ``(T, heads, 512)`` after the inverse rope at the query's position (step 6), in o's dtype."""
        return apply_rope(o, self._table, positions, inverse=True)

    def output(self, o: Tensor) -> Tensor:
        """This rank's share ``(T, hidden)`` of the grouped output projection, float32 (step 7); shares are summed."""
        grouped = o.float().reshape(len(o), self._groups, self._wo_a.shape[2])
        return torch.einsum("tgi,gri->tgr", grouped, self._wo_a).flatten(1) @ self._wo_b.T
