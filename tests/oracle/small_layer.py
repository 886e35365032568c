"""A layer small enough for loops in plain Python, with random weights; and vectors turned through complex numbers."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dsv4_conformance.oracle.rope import angle_table, base_frequencies, yarn_frequencies
from dsv4_conformance.spec.geometry import TINY, Geometry
from dsv4_conformance.spec.weights import CompressorWeights, IndexerWeights, LayerSpec, LayerWeights, RopeTables

SMALL = replace(
    TINY,
    name="small",
    hidden_size=20,
    num_attention_heads=4,
    q_lora_rank=12,
    o_groups=2,
    o_lora_rank=6,
    sliding_window=16,
    index_n_heads=6,
    index_topk=5,
)
PLAIN = base_frequencies(10000.0)
YARN = yarn_frequencies(160000.0, 16.0, 65536, 32.0, 1.0)
POSITIONS = torch.arange(512)
TABLES = RopeTables(*(angle_table(f, POSITIONS).flatten(1).to(torch.float32) for f in (PLAIN, YARN)))


def draws(seed: int) -> "Draws":
    return Draws(torch.Generator().manual_seed(seed))


class Draws:
    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def normal(self, *shape: int, size: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=self._generator) * size

    def matrix(self, rows: int, width: int) -> Tensor:
        return self.normal(rows, width, size=width**-0.5)

    def norm(self, width: int) -> Tensor:
        return 1 + self.normal(width, size=0.3)


def compressor_weights(ratio: int, dim: int, hidden: int, seed: int = 2) -> CompressorWeights:
    d, width = draws(seed), (2 if ratio == 4 else 1) * dim
    return CompressorWeights(d.matrix(width, hidden), d.matrix(width, hidden), d.normal(ratio, width), d.norm(dim))


def layer_spec(
    ratio: int, geometry: Geometry = SMALL, seed: int = 1, *, quantised: bool = False, tp: int = 1, rank: int = 0
) -> LayerSpec:
    g, d = geometry, draws(seed)
    heads, lora, hidden = g.num_attention_heads, g.q_lora_rank, g.hidden_size
    index = IndexerWeights(
        d.matrix(g.index_n_heads * 128, lora),
        d.matrix(g.index_n_heads, hidden),
        compressor_weights(4, 128, hidden, seed + 100),
    )
    weights = LayerWeights(
        wq_a=d.matrix(lora, hidden),
        q_norm=d.norm(lora),
        wq_b=d.matrix(heads * 512, lora),
        wkv=d.matrix(512, hidden),
        kv_norm=d.norm(512),
        wo_a=d.matrix(g.o_groups * g.o_lora_rank, g.heads_per_group * 512),
        wo_b=d.matrix(hidden, g.o_groups * g.o_lora_rank),
        attn_sink=d.normal(heads),
        compressor=compressor_weights(ratio, 512, hidden, seed + 200) if ratio else None,
        indexer=index if ratio == 4 else None,
    )
    return LayerSpec(g, ratio, weights, TABLES, quantised=quantised, tp=tp, rank=rank)


def tokens(count: int, width: int = SMALL.hidden_size, seed: int = 7) -> Tensor:
    return draws(seed).normal(count, width)


def turned_by(vector: Tensor, row: Tensor) -> Tensor:
    """The last 64 dims of a float64 vector as 32 complex numbers times ``row``: cos and sin of one position."""
    angles = torch.view_as_complex(row.to(torch.float64).view(32, 2))
    pairs = torch.view_as_complex(vector[-64:].reshape(32, 2).contiguous())
    return torch.cat((vector[:-64], torch.view_as_real(pairs * angles).flatten()))


def conjugate(row: Tensor) -> Tensor:
    return row * torch.tensor([1.0, -1.0]).repeat(32)


def normed(vector: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    length = math.sqrt(math.fsum(a * a for a in vector.tolist()) / vector.shape[0] + eps)
    return vector / length if weight is None else vector / length * weight.to(torch.float64)


def assert_close(got: Tensor, want: Tensor, size: float = 1e-11) -> None:
    torch.testing.assert_close(got, want, rtol=size, atol=size)


def times(weight: Tensor, vector: Tensor | Sequence[float]) -> Tensor:
    """A matrix times a vector in float64."""
    return weight.to(torch.float64) @ torch.as_tensor(vector, dtype=torch.float64)
