"""Weights, rope tables and token streams of stateful cases: bit-identical on every device (spec §1.1, §3).

Weights are powers of two times values that bf16 holds, scaled by about ``fan_in ** -0.5``: activations stay near 1,
logits spread over a few units and no key, channel or head is like another.
"""

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from dsv4_conformance.cases.generator import bf16_values, words
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.schedule import longest, sequences
from dsv4_conformance.oracle.rope import angle_table, base_frequencies, yarn_frequencies
from dsv4_conformance.spec.geometry import GEOMETRIES, TINY, Geometry
from dsv4_conformance.spec.weights import CompressorWeights, IndexerWeights, LayerSpec, LayerWeights, RopeTables

CASE_GEOMETRIES = {
    **GEOMETRIES,
    "tiny64": replace(TINY, name="tiny64", num_attention_heads=64, o_groups=8),
    "tiny128": replace(TINY, name="tiny128", num_attention_heads=128, o_groups=16),
}
"""Geometries that a case may name: also the tiny model with the heads and output groups of Flash and of Pro."""
PAGE = 256
SINK_RANGE = (-1.0, 7.0)
"""About lse - 5 to lse + 3 of a window of 128 keys: every sink takes part."""


def matrix(root: int, name: str, rows: int, columns: int, device: torch.device | str) -> Tensor:
    """float32 ``(rows, columns)``, exact in bf16, magnitudes over 4 binades, RMS near ``columns ** -0.5``."""
    values = bf16_values(words(root, name, (rows, -(-columns // 2)), device), 124)[:, :columns]
    power = round(torch.tensor(float(columns)).log2().item() / 2)
    return values.float() * 2.0**-power


def _around_one(root: int, name: str, count: int, device: torch.device | str) -> Tensor:
    """float32 ``(count,)`` in [1/2, 3/2): norm weights."""
    return words(root, name, (count,), device).bitwise_and_(0xFFFF).float() / 2**16 + 0.5


def _uniform(
    root: int, name: str, shape: tuple[int, ...], low: float, high: float, device: torch.device | str
) -> Tensor:
    return words(root, name, shape, device).bitwise_and_(0xFFFF).float() / 2**16 * (high - low) + low


def compressor_weights(
    root: int, name: str, ratio: int, dim: int, hidden: int, device: torch.device | str
) -> CompressorWeights:
    """Weights of one compressor (spec §5): scores spread over a few units, ape within 1 of 0 and distinct."""
    width = dim * (2 if ratio == 4 else 1)
    return CompressorWeights(
        wkv=matrix(root, f"{name}.wkv", width, hidden, device),
        wgate=matrix(root, f"{name}.wgate", width, hidden, device),
        ape=_uniform(root, f"{name}.ape", (ratio, width), -1.0, 1.0, device),
        norm=_around_one(root, f"{name}.norm", dim, device),
    )


def indexer_weights(root: int, geometry: Geometry, device: torch.device | str) -> IndexerWeights:
    """Weights of the indexer (spec §7); head weights have both signs."""
    heads, dim = geometry.index_n_heads, geometry.index_head_dim
    return IndexerWeights(
        wq_b=matrix(root, "indexer.wq_b", heads * dim, geometry.q_lora_rank, device),
        weights_proj=matrix(root, "indexer.weights_proj", heads, geometry.hidden_size, device),
        compressor=compressor_weights(root, "indexer.compressor", 4, dim, geometry.hidden_size, device),
    )


def sinks(root: int, heads: int, kind: str, device: torch.device | str) -> Tensor:
    """float32 ``(heads,)``, distinct; special: -inf in the second head of every 8 and +inf in the sixth."""
    sink = _uniform(root, "attn_sink", (heads,), *SINK_RANGE, device)
    if kind == "special":
        sink[1::8], sink[5::8] = -torch.inf, torch.inf
    return sink


def layer_weights(root: int, geometry: Geometry, ratio: int, sink: str, device: torch.device | str) -> LayerWeights:
    """All weights of one layer (spec §1.1), whole."""
    g = geometry
    heads, group = g.num_attention_heads, g.heads_per_group * g.head_dim
    return LayerWeights(
        wq_a=matrix(root, "wq_a", g.q_lora_rank, g.hidden_size, device),
        q_norm=_around_one(root, "q_norm", g.q_lora_rank, device),
        wq_b=matrix(root, "wq_b", heads * g.head_dim, g.q_lora_rank, device),
        wkv=matrix(root, "wkv", g.head_dim, g.hidden_size, device),
        kv_norm=_around_one(root, "kv_norm", g.head_dim, device),
        wo_a=matrix(root, "wo_a", g.o_groups * g.o_lora_rank, group, device),
        wo_b=matrix(root, "wo_b", g.hidden_size, g.o_groups * g.o_lora_rank, device),
        attn_sink=sinks(root, heads, sink, device),
        compressor=compressor_weights(root, "compressor", ratio, g.head_dim, g.hidden_size, device) if ratio else None,
        indexer=indexer_weights(root, g, device) if ratio == 4 else None,
    )


@lru_cache(maxsize=8)
def rope_tables(geometry: Geometry, positions: int, device: torch.device) -> RopeTables:
    """Both tables for positions 0 .. ``positions`` - 1: float64 angles, rounded once to float32 (spec §3)."""
    scaling = geometry.rope_scaling
    plain = base_frequencies(geometry.rope_theta)
    yarn = yarn_frequencies(
        geometry.compress_rope_theta,
        scaling.factor,
        scaling.original_max_position_embeddings,
        scaling.beta_fast,
        scaling.beta_slow,
    )
    place = torch.arange(positions)
    tables = [angle_table(frequencies, place).flatten(1).float().to(device) for frequencies in (plain, yarn)]
    return RopeTables(*tables)


def tokens(root: int, sequence: int, attempt: int, length: int, hidden: int, device: torch.device | str) -> Tensor:
    """float32 ``(length, hidden)``, exact in bf16: what positions 0 .. length - 1 of a sequence hold at an attempt.

    A position that is written again after a rejected draft takes its row from a later attempt.
    """
    random = words(root, f"x{sequence}.{attempt}", (length, hidden // 2), device)
    return bf16_values(random, 124).float()


def spec_of(case: LayerCase, device: torch.device | str) -> LayerSpec:
    """What the session of ``case`` is opened with."""
    device = torch.device(device)
    geometry = CASE_GEOMETRIES[case.geometry]
    room = case.capacity or -(-longest(case.schedule) // PAGE) * PAGE
    return LayerSpec(
        geometry=geometry,
        ratio=case.ratio,
        weights=layer_weights(weights_root(case), geometry, case.ratio, case.sinks, device),
        rope=rope_tables(geometry, room, device),
        precision=case.precision,
        quantised=case.quantised,
        tp=case.tp,
        rank=case.rank,
        max_sequences=max(sequences(case.schedule), 1),
        max_tokens=room,
        workspace_rows=case.workspace_rows,
    )


def weights_root(case: LayerCase) -> int:
    """Root of the weights and tokens: cases that differ in rank, precision, path or schedule share them."""
    same = {"tp": 1, "rank": 0, "precision": "float32", "quantised": False, "path": "auto"}
    return case.with_(schedule="", capacity=0, workspace_rows=0, **same).digest()
