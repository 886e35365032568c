"""Small layers with random weights, and runs of them, for the tests of mla's layer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.implementations.state_api import Segment
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.rope import make_table
from dsv4_conformance.spec.geometry import TINY
from dsv4_conformance.spec.weights import (
    CompressorWeights,
    IndexerWeights,
    LayerSpec,
    LayerWeights,
    Precision,
    RopeTables,
)

SMALL = replace(
    TINY, name="small", hidden_size=24, q_lora_rank=16, num_attention_heads=4, o_groups=2, o_lora_rank=8, index_topk=8
)
"""Selects among the entries from token 36 on."""
TABLES = RopeTables(make_table(10000.0, None, 1024, "cpu"), make_table(160000.0, TINY.rope_scaling, 1024, "cpu"))
FLAVOURS: tuple[tuple[Precision, bool], ...] = (("float32", False), ("float32", True), ("bfloat16", True))


def draw(*shape: int, seed: int, size: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * size


def compressor_weights(ratio: int, dim: int, seed: int) -> CompressorWeights:
    width, hidden = (2 if ratio == 4 else 1) * dim, SMALL.hidden_size
    wkv, wgate = (draw(width, hidden, seed=seed + k, size=0.3) for k in (0, 1))
    return CompressorWeights(wkv, wgate, draw(ratio, width, seed=seed + 2), 1 + draw(dim, seed=seed + 3, size=0.3))


def make_spec(ratio: int, precision: Precision = "float32", quantised: bool = False, **changes: Any) -> LayerSpec:
    g = SMALL
    heads, hidden = g.num_attention_heads, g.hidden_size
    index = IndexerWeights(
        draw(64 * 128, g.q_lora_rank, seed=1, size=0.2), draw(64, hidden, seed=2), compressor_weights(4, 128, 10)
    )
    weights = LayerWeights(
        wq_a=draw(g.q_lora_rank, hidden, seed=3),
        q_norm=1 + draw(g.q_lora_rank, seed=4, size=0.3),
        wq_b=draw(heads * 512, g.q_lora_rank, seed=5),
        wkv=draw(512, hidden, seed=6),
        kv_norm=1 + draw(512, seed=7, size=0.3),
        wo_a=draw(g.o_groups * g.o_lora_rank, g.heads_per_group * 512, seed=8, size=0.03),
        wo_b=draw(hidden, g.o_groups * g.o_lora_rank, seed=9),
        attn_sink=draw(heads, seed=20),
        compressor=compressor_weights(ratio, 512, 30) if ratio else None,
        indexer=index if ratio == 4 else None,
    )
    opened = {"max_sequences": 3, "max_tokens": 512} | changes
    return LayerSpec(g, ratio, weights, TABLES, precision, quantised, **opened)


def open_layer(ratio: int, precision: Precision = "float32", quantised: bool = False, **changes: Any) -> AttentionLayer:
    return AttentionLayer(make_spec(ratio, precision, quantised, **changes), "cpu")


def tokens(count: int, seed: int = 0) -> Tensor:
    """Tokens as bf16 holds them."""
    return draw(count, SMALL.hidden_size, seed=1000 + seed).bfloat16().float()


def new(*parts: tuple[int, Tensor]) -> list[Segment]:
    return [Segment(sequence, x) for sequence, x in parts]


def close(got: Sequence[Any], want: Sequence[Any], size: float = 2e-5) -> None:
    """o and out alike up to ``size`` of their largest value."""
    for a, b in zip(got[:2], want[:2], strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=0, atol=size * float(b.abs().max()))


def snapshot(layer: AttentionLayer) -> tuple[Any, ...]:
    """Everything that a refused call must leave as it was."""
    s = layer.sequences
    alive = {n: (q.state_row, list(q.pages), q.length, q.own_from, q.reached) for n, q in s._alive.items()}
    contents = {name: tensor.clone() for name, tensor in layer.caches.storage().items()}
    return alive, list(s._free_rows), list(s.pages._free), dict(s.pages._holders), contents


def same(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    stored, now = before[-1], after[-1]
    return before[:-1] == after[:-1] and all(torch.equal(stored[name], now[name]) for name in stored)
