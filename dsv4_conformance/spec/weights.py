"""Weights, rope tables and shapes that a stateful surface is opened with: what oracle, implementation and cases share.

Names are the checkpoint's (spec §1.1). A weight of a case is float32 with values that bf16 holds exactly, so that an
engine that stores bf16 has the same weights; ``ape``, the norms and the sink are float32. No torch at run time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from dsv4_conformance.spec.geometry import Geometry

Precision = Literal["float32", "bfloat16"]
"""What a surface computes and stores activations in. Caches of a quantised layer are fp8 pages in either."""


@dataclass(frozen=True)
class CompressorWeights:
    """One compressor (spec §5), coff = 2 at ratio 4 and 1 at 128; d = 512 (main) or 128 (index).

    ``wkv``, ``wgate``: ``(coff * d, hidden)``; ``ape``: ``(ratio, coff * d)``; ``norm``: ``(d,)``. At ratio 4 the first
    d rows of wkv and wgate make the A half (overlap, next window), the last d the B half (own window).
    """

    wkv: Tensor
    wgate: Tensor
    ape: Tensor
    norm: Tensor


@dataclass(frozen=True)
class IndexerWeights:
    """The indexer of a C4 layer (spec §7): ``wq_b (index_n_heads * 128, q_lora)``, ``weights_proj (index_n_heads,
    hidden)`` and an index compressor of ratio 4 and d = 128."""

    wq_b: Tensor
    weights_proj: Tensor
    compressor: CompressorWeights


@dataclass(frozen=True)
class LayerWeights:
    """One attention layer, whole (not sharded): H heads, G output groups of rank R (spec §1.1).

    ``wq_a (q_lora, hidden)``, ``q_norm (q_lora,)``, ``wq_b (H * 512, q_lora)``, ``wkv (512, hidden)``,
    ``kv_norm (512,)``, ``wo_a (G * R, H / G * 512)``, ``wo_b (hidden, G * R)``, ``attn_sink (H,)``; ``compressor``
    unless the ratio is 0, ``indexer`` at ratio 4.
    """

    wq_a: Tensor
    q_norm: Tensor
    wq_b: Tensor
    wkv: Tensor
    kv_norm: Tensor
    wo_a: Tensor
    wo_b: Tensor
    attn_sink: Tensor
    compressor: CompressorWeights | None = None
    indexer: IndexerWeights | None = None


@dataclass(frozen=True)
class RopeTables:
    """Two tables float32 ``(max_pos, 64)``, row p = ``cos(p f_0), sin(p f_0), cos(p f_1), ...`` (spec §3).

    ``plain``: rope_theta, no scaling (C0 layers). ``compressed``: compress_rope_theta with YaRN (C4, C128 layers, their
    window keys and indexer included). Choosing the right one is part of what is judged.
    """

    plain: Tensor
    compressed: Tensor


@dataclass(frozen=True)
class CompressorSpec:
    """What a Compressor session is opened with. ``table``: the layer's rope table, float32 ``(max_pos, 64)``.

    ``dim`` is 512 (main) or 128 (index); entries are normed and roped, neither Hadamard-rotated nor quantised.
    """

    ratio: int
    dim: int
    weights: CompressorWeights
    table: Tensor
    eps: float


@dataclass(frozen=True)
class IndexerSpec:
    """What an Indexer session is opened with (C4). ``quantised``: index keys are stored and queries rounded as fp8 e4m3
    with one fp32 scale per 128-vector (spec §7, §9.3); else both stay exact."""

    geometry: Geometry
    weights: IndexerWeights
    table: Tensor
    quantised: bool


@dataclass(frozen=True)
class LayerSpec:
    """What an AttentionLayer session is opened with: one layer on rank ``rank`` of ``tp`` attention-TP ranks.

    ``weights`` are whole; the layer takes its share (spec §15). ``quantised``: KV rows go to 584-byte fp8 pages and
    index keys to 132-byte rows; else pools hold exact rows. ``max_tokens``: positions a sequence may reach (its
    page table's capacity); ``max_sequences``: sequences alive at once. ``workspace_rows``: rows of the sparse-prefill
    workspace that prefills must make do with, chunk by chunk; 0 = it grows to what a batch needs (spec §13.1).
    """

    geometry: Geometry
    ratio: int
    weights: LayerWeights
    rope: RopeTables
    precision: Precision = "float32"
    quantised: bool = True
    tp: int = 1
    rank: int = 0
    max_sequences: int = 8
    max_tokens: int = 2048
    workspace_rows: int = 0
