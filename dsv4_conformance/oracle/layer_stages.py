"""The stages of one attention layer on one TP rank in float64, each a function of the stage before (spec §2, §15).

A judge can feed a stage with what an implementation itself made of the stage before it. ``x (T, hidden)`` are rows of
one sequence at ``positions`` int64 ``(T,)``.
"""

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.oracle import compressor
from dsv4_conformance.oracle.linear import project, rms_norm, turned
from dsv4_conformance.oracle.rounding import EXACT, Rounding, bf16, cache_row, scaled_fp8
from dsv4_conformance.spec.geometry import HEAD_DIM, INDEX_HEAD_DIM
from dsv4_conformance.spec.weights import CompressorSpec, IndexerSpec, LayerSpec


def local_heads(spec: LayerSpec) -> slice:
    """Query heads of this rank (spec §15). Raises BadInput for a rank or a TP size that the geometry does not have."""
    return _share(spec, spec.geometry.local_heads(spec.tp))


def local_sink(spec: LayerSpec) -> Tensor:
    """attn_sink of this rank's heads, float64 ``(n_local,)`` (spec §15)."""
    return spec.weights.attn_sink[local_heads(spec)].to(torch.float64)


def table(spec: LayerSpec) -> Tensor:
    """The one rope table of this layer: plain for C0, compressed for C4 and C128 (spec §3)."""
    return spec.rope.compressed if spec.ratio else spec.rope.plain


def main_compressor(spec: LayerSpec) -> CompressorSpec:
    """The layer's compressor on its own. Raises BadInput if the layer has none."""
    weights = spec.weights.compressor
    if spec.ratio == 0 or weights is None:
        raise BadInput(f"a layer of ratio {spec.ratio} without compressor weights has no entries; use ratio 4 or 128.")
    return CompressorSpec(spec.ratio, HEAD_DIM, weights, table(spec), spec.geometry.rms_norm_eps)


def layer_indexer(spec: LayerSpec) -> IndexerSpec:
    """The layer's indexer on its own, the same on all ranks. Raises BadInput if the layer has none."""
    weights = spec.weights.indexer
    if spec.ratio != 4 or weights is None:
        raise BadInput(f"a layer of ratio {spec.ratio} without indexer weights selects nothing; use ratio 4.")
    return IndexerSpec(spec.geometry, weights, table(spec), spec.quantised)


def qr_of(spec: LayerSpec, x: Tensor, rounding: Rounding = EXACT) -> Tensor:
    """The normed low-rank query source ``(T, q_lora)``, shared with the indexer (spec §2, step 1)."""
    qr = rms_norm(project(x, spec.weights.wq_a), spec.weights.q_norm, spec.geometry.rms_norm_eps)
    return bf16(qr) if rounding.activations else qr


def queries(spec: LayerSpec, qr: Tensor, positions: Tensor, rounding: Rounding = EXACT) -> Tensor:
    """q ``(T, n_local, 512)`` of this rank's heads: per head normed without weight, then roped (spec §2, step 2)."""
    heads = local_heads(spec)
    wq_b = spec.weights.wq_b[heads.start * HEAD_DIM : heads.stop * HEAD_DIM]
    q = torch.unflatten(project(qr, wq_b), -1, (-1, HEAD_DIM))
    q = rms_norm(q, None, spec.geometry.rms_norm_eps)
    if not rounding.queries:
        return turned(q, table(spec), positions)
    return bf16(turned(bf16(q), table(spec), positions))


def window_keys(spec: LayerSpec, x: Tensor, positions: Tensor, rounding: Rounding = EXACT) -> Tensor:
    """Window keys ``(T, 512)``, normed and roped (spec §2, step 3), as a cache row holds them if quantised."""
    keys = rms_norm(project(x, spec.weights.wkv), spec.weights.kv_norm, spec.geometry.rms_norm_eps)
    if rounding.activations:
        keys = bf16(keys)
    return _stored(spec, turned(keys, table(spec), positions), rounding)


def compressed_entries(spec: LayerSpec, x: Tensor, rounding: Rounding = EXACT) -> Tensor:
    """Compressed entries ``(S // ratio, 512)`` of the sequence ``x (S, hidden)`` from its first token (spec §5), as
    a cache row holds them if quantised."""
    return _stored(spec, compressor.entries(main_compressor(spec), x), rounding)


def unrotated(spec: LayerSpec, o: Tensor, positions: Tensor, rounding: Rounding = EXACT) -> Tensor:
    """o ``(T, n_local, 512)`` turned back by the angle of its query's position (spec §2, step 6)."""
    if not rounding.outputs:
        return turned(o, table(spec), positions, inverse=True)
    return bf16(turned(bf16(o), table(spec), positions, inverse=True))


def output(spec: LayerSpec, o: Tensor, rounding: Rounding = EXACT) -> Tensor:
    """This rank's share ``(T, hidden)`` of the grouped projection of o after its inverse rope; the shares of all ranks
    add up to the layer's output (spec §2, step 7; §15)."""
    geometry = spec.geometry
    local_heads(spec)  # refuses a rank that does not exist
    count, rank = geometry.o_groups // spec.tp, geometry.o_lora_rank
    groups = _share(spec, count)
    rows = slice(groups.start * rank, groups.stop * rank)
    o = o.to(torch.float64).reshape(o.shape[0], count, geometry.heads_per_group * HEAD_DIM)
    if rounding.wo_a:
        o = scaled_fp8(torch.unflatten(o, -1, (-1, INDEX_HEAD_DIM))).flatten(-2)
    wo_a = torch.unflatten(spec.weights.wo_a[rows].to(torch.float64), 0, (-1, rank))
    y = torch.einsum("tgi,gri->tgr", o, wo_a).flatten(1)
    return project(bf16(y) if rounding.activations else y, spec.weights.wo_b[:, rows])


def _share(spec: LayerSpec, count: int) -> slice:
    if not 0 <= spec.rank < spec.tp:
        raise BadInput(f"rank {spec.rank} does not exist among {spec.tp} ranks; pass a rank from 0 to {spec.tp - 1}.")
    return slice(spec.rank * count, (spec.rank + 1) * count)


def _stored(spec: LayerSpec, rows: Tensor, rounding: Rounding) -> Tensor:
    if spec.quantised or rounding.kv_rows:
        return cache_row(rows)
    return bf16(rows) if rounding.activations else rows
