"""Weights, tables and tokens of layer cases: what is the same in which cases, and what its values allow to see."""

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.layer_inputs import (
    CASE_GEOMETRIES,
    SINK_RANGE,
    layer_weights,
    matrix,
    rope_tables,
    sinks,
    spec_of,
    tokens,
    weights_root,
)
from dsv4_conformance.mla.rope import make_table
from dsv4_conformance.spec.geometry import FLASH, PRO, TINY

CASE = LayerCase("AttentionLayer", 4, "p0:9+1:3 d0")
CPU = torch.device("cpu")


# Kills: weights that follow what a comparison of two runs varies, and weights that do not follow what it does not.
def test_cases_that_are_compared_share_weights_and_tokens() -> None:
    root = weights_root(CASE)
    for same in (
        CASE.with_(tp=2, rank=1),
        CASE.with_(precision="bfloat16", quantised=True),
        CASE.with_(path="paged"),
        CASE.with_(schedule="p0:300"),
        CASE.with_(capacity=2048),
    ):
        assert weights_root(same) == root
    others = [CASE.with_(seed=1), CASE.with_(ratio=128), CASE.with_(geometry="tiny64"), CASE.with_(sinks="finite")]
    assert len({root, *map(weights_root, others)}) == 5


def tensors(weights: object, prefix: str = "") -> dict[str, Tensor]:
    found = {}
    for field in fields(weights):  # type: ignore[arg-type]
        value = getattr(weights, field.name)
        if isinstance(value, Tensor):
            found[prefix + field.name] = value
        elif value is not None:
            found |= tensors(value, f"{prefix}{field.name}.")
    return found


# Kills: two weights drawn alike, a weight of the wrong shape, values that an engine in bf16 does not have, activations
# far from 1, norms of 1.
@pytest.mark.parametrize("ratio", [0, 4, 128])
def test_weights_are_those_of_spec_1_1(ratio: int) -> None:
    found = tensors(layer_weights(5, TINY, ratio, "special", "cpu"))
    shapes = {
        "wq_a": (64, 256),
        "q_norm": (64,),
        "wq_b": (8 * 512, 64),
        "wkv": (512, 256),
        "kv_norm": (512,),
        "wo_a": (2 * 32, 4 * 512),
        "wo_b": (256, 2 * 32),
        "attn_sink": (8,),
    }
    pools = {"compressor.": (ratio, 512)} if ratio else {}
    if ratio == 4:
        shapes |= {"indexer.wq_b": (64 * 128, 64), "indexer.weights_proj": (64, 256)}
        pools["indexer.compressor."] = (4, 128)
    for name, (r, d) in pools.items():
        width = 2 * d if r == 4 else d
        shapes |= {f"{name}wkv": (width, 256), f"{name}wgate": (width, 256)}
        shapes |= {f"{name}ape": (r, width), f"{name}norm": (d,)}
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == shapes
    heads = {name: tuple(tensor.flatten()[:8].tolist()) for name, tensor in found.items()}
    assert len(set(heads.values())) == len(heads)
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        if tensor.ndim == 2 and not name.endswith("ape"):
            assert torch.equal(tensor.bfloat16().float(), tensor), name
            assert 0.3 < float(tensor.square().mean().sqrt()) * tensor.shape[1] ** 0.5 < 3, name
            assert 0.4 < float((tensor > 0).float().mean()) < 0.6, name
        if name.endswith("norm"):
            assert float(tensor.min()) >= 0.5 and float(tensor.max()) < 1.5 and float(tensor.std()) > 0.2
        if name.endswith("ape"):
            assert float(tensor.abs().max()) <= 1 and all(len(set(row)) > 0.9 * len(row) for row in tensor.tolist())


# Kills: heads without a special sink of their own in every rank of 8 heads, two equal sinks, +inf for -inf.
def test_sinks_are_distinct_and_special_ones_are_where_they_are_said_to_be() -> None:
    special, finite = sinks(7, 64, "special", "cpu"), sinks(7, 64, "finite", "cpu")
    assert special[1::8].tolist() == [-torch.inf] * 8 and special[5::8].tolist() == [torch.inf] * 8
    others = torch.ones(64, dtype=torch.bool)
    others[1::8] = others[5::8] = False
    assert torch.equal(special[others], finite[others]) and len(set(finite.tolist())) == 64
    low, high = SINK_RANGE
    assert low <= float(finite.min()) < low + 1 and high - 1 < float(finite.max()) < high


# Kills: YaRN or the other base in the plain table, none in the other, angles in float32, positions off by one.
def test_tables_are_those_of_the_layer() -> None:
    tables = rope_tables(TINY, 300, CPU)
    yarn = make_table(TINY.compress_rope_theta, TINY.rope_scaling, 300, CPU)
    assert torch.equal(tables.plain, make_table(TINY.rope_theta, None, 300, CPU))
    torch.testing.assert_close(tables.compressed, yarn, rtol=0, atol=1e-7)


# Kills: rows that depend on how many are drawn, attempts or sequences that repeat, values that bf16 does not hold.
def test_tokens_belong_to_a_sequence_and_an_attempt() -> None:
    long, short = (tokens(3, 0, 0, length, 256, "cpu") for length in (70, 9))
    assert torch.equal(long[:9], short) and torch.equal(long.bfloat16().float(), long)
    streams = [tokens(*key, 9, 256, "cpu") for key in ((3, 0, 0), (3, 0, 1), (3, 1, 0), (4, 0, 0))]
    assert len({tuple(x.flatten().tolist()) for x in streams}) == 4
    assert len({tuple(row.tolist()) for row in long}) == 70


# Kills: a page table that is narrower than the schedule, room for fewer sequences, a rank's share of the weights.
def test_a_spec_has_room_for_its_schedule() -> None:
    spec = spec_of(CASE.with_(schedule="p0:256 d0 f0>3:256", tp=2, rank=1, precision="bfloat16", quantised=True), CPU)
    assert (spec.max_tokens, spec.max_sequences, len(spec.rope.plain)) == (512, 2, 512)
    assert (spec.tp, spec.rank, spec.precision, spec.quantised, spec.ratio) == (2, 1, "bfloat16", True, 4)
    assert spec.weights.attn_sink.shape == (8,) and spec.geometry is CASE_GEOMETRIES["tiny"]
    idle = spec_of(CASE.with_(schedule="i", capacity=1024), CPU)
    assert (idle.max_tokens, idle.max_sequences) == (1024, 1)


# Kills: case geometries whose ranks hold other heads or groups than those of the checkpoints they stand for.
@pytest.mark.parametrize(("name", "like"), [("tiny64", FLASH), ("tiny128", PRO)])
def test_case_geometries_have_the_heads_of_the_checkpoints(name: str, like: object) -> None:
    small = CASE_GEOMETRIES[name]
    for field in ("num_attention_heads", "o_groups", "head_dim", "sliding_window", "index_n_heads"):
        assert getattr(small, field) == getattr(like, field)
    assert small.hidden_size == TINY.hidden_size and small.name == name


# Kills: a matrix that is narrower or not spread over binades: no element would then stand for its place.
def test_a_matrix_spreads_over_four_binades() -> None:
    m = matrix(1, "m", 40, 65, "cpu")
    assert m.shape == (40, 65) and len(set(m.abs().log2().floor().flatten().tolist())) == 4
