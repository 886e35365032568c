"""Single stages: the inverse of rope, block-diagonal groups, shares of a rank, and each switchable rounding."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dsv4_conformance.oracle import indexer, layer_attention, layer_stages
from dsv4_conformance.oracle.layer import layer_output
from dsv4_conformance.oracle.linear import turned
from dsv4_conformance.oracle.rounding import Rounding, bf16, cache_row, scaled_fp8
from tests.oracle.small_layer import SMALL, TABLES, assert_close, draws, layer_spec, tokens

AT = torch.arange(50)
RATIOS = pytest.mark.parametrize("ratio", [0, 4, 128])


def exact_stages(ratio: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """x, its q and its window keys, exact."""
    spec, x = layer_spec(ratio), tokens(50)
    return x, layer_stages.queries(spec, layer_stages.qr_of(spec, x), AT), layer_stages.window_keys(spec, x, AT)


# Kills: YaRN on C0 layers, the plain table for the window of a compressed layer.
def test_each_ratio_has_one_table() -> None:
    assert layer_stages.table(layer_spec(0)) is TABLES.plain
    for ratio in (4, 128):
        spec = layer_spec(ratio)
        assert layer_stages.table(spec) is TABLES.compressed
        assert layer_stages.main_compressor(spec).table is TABLES.compressed
    assert layer_stages.layer_indexer(layer_spec(4)).table is TABLES.compressed


# INV-44. Kills: an inverse that turns other dims, or forward; rope of head h at position h.
@RATIOS
def test_the_inverse_rope_undoes_rope(ratio: int) -> None:
    spec, (_, q, _) = layer_spec(ratio), exact_stages(ratio)
    back = layer_stages.unrotated(spec, q, AT)
    assert torch.equal(back[..., :448], q[..., :448])
    assert not torch.allclose(back[1:, :, 448:], q[1:, :, 448:], rtol=0, atol=1e-3)
    unroped = layer_stages.queries(spec, layer_stages.qr_of(spec, tokens(50)), torch.zeros_like(AT))
    torch.testing.assert_close(back, unroped, rtol=0, atol=1e-5)  # a float32 table is no exact rotation


# INV-47. Kills: groups that mix, groups strided over the heads, a transpose of wo_a.
def test_the_grouped_projection_is_block_diagonal() -> None:
    spec = layer_spec(0)
    eye = torch.eye(12)  # wo_b shows the 2 x 6 grouped channels
    spec = replace(spec, weights=replace(spec.weights, wo_b=eye))
    o = draws(4).normal(3, 4, 512)
    before = layer_stages.output(spec, o)
    for head in range(4):
        changed = o.clone()
        changed[:, head] += 1
        moved = (layer_stages.output(spec, changed) - before).abs() > 1e-9
        assert moved[:, :6].all() == (head < 2) and moved[:, 6:].all() == (head >= 2)
        assert moved[:, :6].any() == (head < 2) and moved[:, 6:].any() == (head >= 2)


# Kills: q roped before its norm (b at the wrong place), one rounding of the two left out.
def test_queries_round_before_and_after_rope() -> None:
    spec, (x, q, _) = layer_spec(4), exact_stages()
    got = layer_stages.queries(spec, layer_stages.qr_of(spec, x), AT, Rounding(queries=True))
    assert torch.equal(got, bf16(got))
    assert torch.equal(got[..., :448], bf16(q[..., :448]))
    assert not torch.equal(got, bf16(q))
    torch.testing.assert_close(got, q, rtol=2**-7, atol=2**-6)


# Kills: (a) on q or o, rows that are rounded twice.
def test_kv_rows_round_as_in_a_quantised_layer() -> None:
    spec, (x, _, k) = layer_spec(4), exact_stages()
    kv = Rounding(kv_rows=True)
    assert torch.equal(layer_stages.window_keys(spec, x, AT, kv), cache_row(k))
    assert torch.equal(layer_stages.window_keys(replace(spec, quantised=True), x, AT), cache_row(k))
    entries = layer_stages.compressed_entries(spec, x)
    assert torch.equal(layer_stages.compressed_entries(spec, x, kv), cache_row(entries))
    assert torch.equal(layer_stages.compressed_entries(replace(spec, quantised=True), x), cache_row(entries))


# Kills: weights rounded in the sum as well, or relative to something else than the largest logit.
def test_weights_round_towards_the_values_only() -> None:
    q, k = torch.zeros(1, 1, 512), torch.zeros(2, 512)
    q[0, 0, 0], k[1, 0], k[0, 1], k[1, 2] = 1.0, 0.3, 1.0, 1.0
    sink = torch.tensor([0.1])
    got = layer_attention.attention_rows(
        q, torch.tensor([1]), k, sink=sink, ratio=0, scale=1.0, rounding=Rounding(weights=True)
    )
    logit = k[1, 0].double()
    small, bottom = (-logit).exp(), 1 + (-logit).exp() + (sink.double()[0] - logit).exp()
    assert_close(got[0, 0, 1], bf16(small) / bottom)
    assert_close(got[0, 0, 2], 1 / bottom)


# Kills: (c) as another attention than the exact one but for its rounding.
@RATIOS
def test_rounded_weights_change_little(ratio: int) -> None:
    spec, x = layer_spec(ratio), tokens(140)
    exact, got = layer_output(spec, x), layer_output(spec, x, rounding=Rounding(weights=True))
    error = (got.o - exact.o).abs().max()
    assert 0 < error < 2**-8 * exact.o.abs().max()


# Kills: one of (d)'s two roundings left out, (d) before the attention.
def test_outputs_round_before_and_after_the_inverse_rope() -> None:
    spec, (_, q, _) = layer_spec(4), exact_stages()
    got = layer_stages.unrotated(spec, q, AT, Rounding(outputs=True))
    assert torch.equal(got, bf16(layer_stages.unrotated(spec, bf16(q), AT)))
    assert not torch.equal(got, bf16(layer_stages.unrotated(spec, q, AT)))


# Kills: (e) on one side only.
def test_index_rounding_is_that_of_a_quantised_indexer() -> None:
    x, at, rounding = tokens(50), AT, Rounding(index=True)
    view = layer_stages.layer_indexer(layer_spec(4))
    kept = layer_stages.layer_indexer(layer_spec(4, quantised=True))
    qr = layer_stages.qr_of(layer_spec(4), x)
    assert torch.equal(indexer.keys(view, x, rounding), indexer.keys(kept, x))
    assert torch.equal(indexer.queries(view, qr, at, rounding), indexer.queries(kept, qr, at))


# Kills: (f) over a whole head or group, on y instead of o.
def test_what_enters_wo_a_rounds_per_128_dims() -> None:
    spec, o = layer_spec(0), draws(5).normal(3, 4, 512) * torch.exp2(draws(6).normal(3, 4, 512, size=3.0))
    rounded = scaled_fp8(o.view(3, 16, 128)).view(3, 4, 512)
    want = layer_stages.output(spec, rounded)
    assert_close(layer_stages.output(spec, o, Rounding(wo_a=True)), want)
    assert not torch.allclose(layer_stages.output(spec, o), want, rtol=0, atol=1e-6)


# Kills: an activation that stays exact.
def test_activations_of_a_bf16_layer() -> None:
    spec, (x, _, _), r = layer_spec(4), exact_stages(), Rounding(activations=True)
    qr = layer_stages.qr_of(spec, x, r)
    view = layer_stages.layer_indexer(spec)
    for got in (
        qr,
        layer_stages.window_keys(spec, x, AT, r),
        layer_stages.compressed_entries(spec, x, r),
        indexer.queries(view, qr, AT, r),
        indexer.keys(view, x, r),
        indexer.head_weights(view, x, r) / SMALL.index_weight_scale,
    ):
        torch.testing.assert_close(got, bf16(got), rtol=1e-15, atol=0)
    unroped = layer_stages.window_keys(spec, x, torch.zeros_like(AT))  # cos 1, sin 0
    twice = bf16(turned(bf16(unroped), TABLES.compressed, AT))
    assert torch.equal(layer_stages.window_keys(spec, x, AT, r), twice)
    assert not torch.equal(twice, bf16(turned(unroped, TABLES.compressed, AT)))
    for got, exact in (
        (indexer.queries(view, qr, AT, r), indexer.queries(view, qr, AT)),
        (indexer.keys(view, x, r), indexer.keys(view, x)),
    ):
        before_rotation = indexer.hadamard(exact)  # its own inverse
        assert torch.equal(got, bf16(indexer.hadamard(bf16(before_rotation))))
        assert not torch.equal(got, bf16(exact))
    o = draws(5).normal(3, 4, 512)
    shown = replace(spec, weights=replace(spec.weights, wo_b=torch.eye(12)))
    assert torch.equal(layer_stages.output(shown, o, r), bf16(layer_stages.output(shown, o)))


# Kills: a switch that no stage reads, or that two stages read for each other.
def test_every_switch_moves_the_layer() -> None:
    spec, x = layer_spec(4), tokens(70)
    exact = layer_output(spec, x)
    for name in ("kv_rows", "queries", "weights", "outputs", "wo_a", "activations"):
        got = layer_output(spec, x, rounding=Rounding(**{name: True}))
        assert not torch.equal(got.out, exact.out), name
        assert torch.equal(got.q, exact.q) == (name not in ("queries", "activations")), name
