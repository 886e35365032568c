"""The whole layer against loops, and what its outputs may depend on."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.oracle import layer, layer_attention, layer_stages
from dsv4_conformance.oracle.indexer import selection_faults
from dsv4_conformance.oracle.kv_format import pack, unpack
from dsv4_conformance.oracle.layer import layer_output, selection, selection_scores
from dsv4_conformance.oracle.rope import angle_table
from dsv4_conformance.spec.geometry import FLASH, PRO
from dsv4_conformance.spec.weights import LayerSpec, RopeTables
from tests.oracle.layer_by_loops import layer_row
from tests.oracle.small_layer import PLAIN, SMALL, YARN, assert_close, draws, layer_spec, tokens

RATIOS = pytest.mark.parametrize("ratio", [0, 4, 128])


def with_weights(spec: LayerSpec, **changes: Any) -> LayerSpec:
    return replace(spec, weights=replace(spec.weights, **changes))


def through_pages(rows: Tensor) -> Tensor:
    """Rows written to a page and read back."""
    pages = torch.zeros(1, 256 * 585, dtype=torch.uint8).as_strided((1, 256, 1, 584), (149760, 584, 584, 1))
    slots = torch.arange(rows.shape[0])
    pack(rows.to(torch.bfloat16), slots, pages)
    return unpack(pages, slots)


# Kills: each wrong stage: norms, rope tables and positions, windows, visible counts, sink, scale, groups, projections.
@pytest.mark.parametrize(
    ("ratio", "count", "rows"),
    [(0, 40, (0, 15, 16, 39)), (4, 44, (0, 3, 6, 7, 23, 24, 43)), (128, 131, (126, 127, 130))],
)
def test_layer_by_loops(ratio: int, count: int, rows: tuple[int, ...]) -> None:
    spec, x = layer_spec(ratio), tokens(count)
    got = layer_output(spec, x, torch.tensor(rows))
    for k, t in enumerate(rows):
        q, o, out = layer_row(spec, x, t)
        assert_close(got.q[k], q)
        assert_close(got.o[k], o)
        assert_close(got.out[k], out)


# INV-41, INV-42. Kills: anything that depends on later tokens, on the schedule of rows or on how rows are chunked.
@RATIOS
def test_rows_depend_neither_on_later_tokens_nor_on_other_rows(monkeypatch: pytest.MonkeyPatch, ratio: int) -> None:
    spec, x = layer_spec(ratio), tokens(150)
    whole = layer_output(spec, x)
    for first, last in ((0, 1), (0, 33), (120, 140), (149, 150)):
        later = x.clone()
        later[last:] = math.nan
        part = layer_output(spec, later, slice(first, last))
        for name in ("q", "o", "out"):
            assert_close(getattr(part, name), getattr(whole, name)[first:last])
    monkeypatch.setattr(layer_attention, "CHUNK", 7)
    monkeypatch.setattr(layer, "_CHUNK", 5)
    odd = torch.tensor([149, 3, 77, 3, 128, 127, 20, 100, 1])
    again = layer_output(spec, x, odd)
    assert_close(again.out, whole.out[odd])
    if ratio == 4:
        assert whole.selected is not None and again.selected is not None
        assert torch.equal(again.selected.sort(1).values, whole.selected[odd].sort(1).values)


# INV-40. Kills: a window of 127 or 129, in either direction; a window that is fixed and not the geometry's.
@pytest.mark.parametrize("window", [128, 16])
def test_a_window_of_w_tokens_with_the_query_itself(window: int) -> None:
    spec = layer_spec(0, replace(SMALL, sliding_window=window))
    x, t = tokens(170), 150
    before = layer_output(spec, x, slice(t, t + 1)).o
    for back, seen in ((0, True), (window - 1, True), (window, False), (window + 1, False)):
        changed = x.clone()
        changed[t - back] += 1
        q = layer_stages.queries(spec, layer_stages.qr_of(spec, x[t : t + 1]), torch.tensor([t]))
        after = layer_output(spec, changed, slice(t, t + 1), q=q).o
        assert torch.equal(after, before) != seen


# INV-40. Kills: a mask within the first W tokens.
def test_short_sequences_are_full_causal_attention_with_a_sink() -> None:
    spec, x = layer_spec(0, replace(SMALL, sliding_window=128)), tokens(100)
    at = torch.arange(100)
    q = layer_stages.queries(spec, layer_stages.qr_of(spec, x), at)
    k = layer_stages.window_keys(spec, x, at)
    logits = torch.einsum("thd,pd->htp", q, k) * 512**-0.5
    logits = logits.masked_fill(at > at[:, None], -math.inf)
    with_sink = torch.cat((logits, spec.weights.attn_sink.double()[:, None, None].expand(-1, 100, 1)), 2).softmax(2)
    want = torch.einsum("htp,pd->thd", with_sink[..., :-1], k)
    assert_close(layer_output(spec, x).o, layer_stages.unrotated(spec, want, at))


# INV-43. Kills: an inverse rope that is missing, forward, or at another position; entries roped by their number.
@pytest.mark.parametrize(("ratio", "count", "shift"), [(0, 60, 37), (4, 60, 36), (128, 140, 256)])
def test_shifting_all_positions_leaves_the_output(ratio: int, count: int, shift: int) -> None:
    at = torch.arange(600)
    exact = RopeTables(*(angle_table(f, at).flatten(1) for f in (PLAIN, YARN)))
    later = RopeTables(exact.plain[shift:], exact.compressed[shift:])
    spec, x = replace(layer_spec(ratio), rope=exact), tokens(count)
    assert_close(layer_output(replace(spec, rope=later), x).out, layer_output(spec, x).out)


# INV-45. Kills: positions of key and query that do not cancel; a sink that is not a weight.
@RATIOS
def test_a_query_that_sees_only_itself_gets_its_own_unrotated_key(ratio: int) -> None:
    spec, x = with_weights(layer_spec(ratio), attn_sink=torch.full((4,), -math.inf)), tokens(1)
    w = spec.weights
    kv = x.double() @ w.wkv.double().T
    kv = kv / (kv.square().mean() + 1e-6).sqrt() * w.kv_norm
    assert_close(layer_output(spec, x).o, kv.expand(1, 4, 512))
    sunk = layer_output(with_weights(spec, attn_sink=torch.full((4,), math.inf)), x)
    assert torch.equal(sunk.o, torch.zeros_like(sunk.o))


# INV-46. Kills: no head norm, a norm over all heads, a norm with a weight.
@RATIOS
def test_the_size_of_a_heads_projection_does_not_matter_and_its_sign_does(ratio: int) -> None:
    spec, x = layer_spec(ratio, replace(SMALL, rms_norm_eps=0.0)), tokens(40)
    before = layer_output(spec, x)
    for factor in (4.0, -1.0):
        wq_b = spec.weights.wq_b.clone()
        wq_b[512:1024] *= factor
        after = layer_output(with_weights(spec, wq_b=wq_b), x)
        assert_close(after.q[:, [0, 2, 3]], before.q[:, [0, 2, 3]])
        assert_close(after.q[:, 1], before.q[:, 1] * math.copysign(1, factor))
        assert torch.allclose(after.o, before.o, rtol=0, atol=1e-9) == (factor > 0)


# INV-50. Kills: shares of rank 0 everywhere, groups split as interleaved, a sink without its offset, wo_b rows sliced.
@RATIOS
def test_ranks_add_up(ratio: int) -> None:
    geometry = replace(SMALL, num_attention_heads=8, o_groups=4)
    x = tokens(60)
    whole = layer_output(layer_spec(ratio, geometry), x)
    for tp in (2, 4):
        ranks = [layer_output(layer_spec(ratio, geometry, tp=tp, rank=rank), x) for rank in range(tp)]
        assert_close(torch.cat([rank.q for rank in ranks], 1), whole.q)
        assert_close(torch.cat([rank.o for rank in ranks], 1), whole.o)
        assert_close(torch.stack([rank.out for rank in ranks]).sum(0), whole.out)


# INV-49, INV-31. Kills: a selection that drops entries although all fit; order of entries that matters.
def test_where_all_entries_fit_the_indexer_does_not_matter() -> None:
    spec, x = layer_spec(4), tokens(SMALL.index_topk * 4 + 3)
    got = layer_output(spec, x)
    assert spec.weights.indexer is not None and got.selected is not None
    broken = replace(spec.weights.indexer, wq_b=torch.full_like(spec.weights.indexer.wq_b, math.nan))
    assert torch.equal(layer_output(replace(spec, weights=replace(spec.weights, indexer=broken)), x).out, got.out)
    at = torch.arange(x.shape[0])
    seen = (at + 1) // 4
    assert [row[row >= 0].tolist() for row in got.selected] == [list(range(n)) for n in seen.tolist()]
    k, c = layer_stages.window_keys(spec, x, at), layer_stages.compressed_entries(spec, x)
    everything = layer_attention.attention_rows(
        got.q, at, k, c, None, layer_stages.local_sink(spec), ratio=4, scale=512**-0.5, window=16
    )
    assert_close(layer_stages.unrotated(spec, everything, at), got.o)


# Kills: a selection by scores that are not the query's; a chunk of queries that sees the entries of another.
def test_selection_beyond_topk_is_the_top_of_the_scores() -> None:
    spec, x = layer_spec(4, quantised=True), tokens(90)
    at = torch.arange(90)
    chosen, scores = selection(spec, x, at), selection_scores(spec, x, at)
    assert selection_faults(scores, chosen, (at + 1) // 4, SMALL.index_topk) == []
    swapped = chosen.clone()
    swapped[89, 0] = (set(range(22)) - set(chosen[89].tolist())).pop()
    assert selection_faults(scores, swapped, (at + 1) // 4, SMALL.index_topk) != []
    assert torch.equal(selection(spec, x, at[60:])[:, 0], chosen[60:, 0])


# Kills: passed rows, queries or selections that are ignored; rows that nobody sees but are read.
def test_what_an_implementation_kept_is_used_in_place_of_the_definition() -> None:
    spec, x = layer_spec(4), tokens(64)
    at = torch.arange(50, 64)
    k, c = layer_stages.window_keys(spec, x, torch.arange(64)), layer_stages.compressed_entries(spec, x)
    plain = layer_output(spec, x, at)
    k[:35], c[0] = math.nan, math.nan
    selected = torch.tensor([[1, 3, -1, 5, 11]] * 14, dtype=torch.int32)
    given: dict[str, Any] = {"window_rows": k, "compressed_rows": c, "selected": selected, "q": plain.q.flip(1)}
    got = layer_output(spec, x, at, **given)
    assert got.out.isfinite().all() and torch.equal(got.q, given["q"])
    narrow = layer_output(spec, x, at, **{**given, "q": given["q"].to(torch.bfloat16)})
    assert {part.dtype for part in (narrow.q, narrow.o, narrow.out)} == {torch.float64}
    for name in given:
        less = layer_output(spec, x, at, **{key: value for key, value in given.items() if key != name})
        assert torch.allclose(less.o, got.o, rtol=0, atol=1e-9) == (name in ("window_rows", "compressed_rows"))
    for name, row in (("window_rows", 40), ("compressed_rows", 3)):
        moved = given[name].clone()
        moved[row] += 1
        assert not torch.allclose(layer_output(spec, x, at, **{**given, name: moved}).o, got.o, rtol=0, atol=1e-9)


# Kills: a set for the multiset of selected entries.
def test_an_entry_named_twice_counts_twice() -> None:
    d = draws(9)
    q, k, c = d.normal(1, 2, 512), d.normal(1, 512), d.normal(3, 512)
    at, twice = torch.tensor([0]), torch.tensor([[2, 1, 2]])
    got = layer_attention.attention_rows(q, at, k, c, twice, None, ratio=4, scale=0.05)
    keys = torch.cat((k, c[[2, 1, 2]])).double()
    want = ((q[0].double() @ keys.T) * 0.05).softmax(1) @ keys
    assert_close(got[0], want)


# Kills: exact keys or entries in a quantised layer, q or o that are quantised, pooling of quantised rows.
@RATIOS
def test_a_quantised_layer_reads_what_its_pages_hold(ratio: int) -> None:
    spec, x = layer_spec(ratio), tokens(140)
    at = torch.arange(140)
    kept: dict[str, Any] = {"window_rows": through_pages(layer_stages.window_keys(spec, x, at))}
    if ratio:
        kept["compressed_rows"] = through_pages(layer_stages.compressed_entries(spec, x))
    quantised = replace(spec, quantised=True)
    if ratio == 4:
        kept["selected"] = selection(quantised, x, at)
    got, exact = layer_output(quantised, x), layer_output(spec, x, **kept)
    assert_close(got.out, exact.out)
    assert not torch.allclose(got.out, layer_output(spec, x).out, rtol=0, atol=1e-6)


# Kills: a geometry's numbers written into the code.
@pytest.mark.parametrize("geometry", [FLASH, PRO], ids=lambda g: g.name)
def test_full_geometry_shapes(geometry: Any) -> None:
    few = replace(geometry, hidden_size=8, q_lora_rank=4, o_lora_rank=2)
    got = layer_output(layer_spec(4, few, tp=8, rank=7), tokens(9, 8), slice(8, 9))
    assert got.o.shape == (1, geometry.num_attention_heads // 8, 512)
    assert got.out.shape == (1, 8) and got.selected is not None
    assert got.selected.shape == (1, geometry.index_topk)


# Kills: a crash for no rows.
@RATIOS
def test_no_query_rows(ratio: int) -> None:
    got = layer_output(layer_spec(ratio), tokens(5), slice(0, 0))
    assert got.o.shape == (0, 4, 512) and got.out.shape == (0, 20)


# Kills: checks left out.
def test_bad_input() -> None:
    x = tokens(12)
    with pytest.raises(BadInput, match="query positions 3 to 12 lie outside a sequence of 12 tokens"):
        layer_output(layer_spec(0), x, torch.tensor([3, 12]))
    with pytest.raises(BadInput, match="rank 2 does not exist among 2 ranks"):
        layer_output(layer_spec(0, tp=2, rank=2), x)
    with pytest.raises(BadInput, match="tp 4 does not split small"):
        layer_output(layer_spec(0, tp=4), x)
    with pytest.raises(BadInput, match="ratio 128 selects no entries"):
        layer_output(layer_spec(128), x, selected=torch.zeros(12, 5, dtype=torch.int32))
    with pytest.raises(BadInput, match="row 11 of window_rows, which has 11"):
        layer_output(layer_spec(0), x, window_rows=torch.zeros(11, 512))
    with pytest.raises(BadInput, match="row 3 of compressed_rows, which has 3"):
        layer_output(layer_spec(4), x, selected=torch.full((12, 5), 3))
    with pytest.raises(BadInput, match="ratio 128 without compressor weights"):
        layer_output(replace(layer_spec(0), ratio=128), x)
    with pytest.raises(BadInput, match="ratio 0 without indexer weights selects nothing"):
        selection_scores(layer_spec(0), x, torch.arange(3))
    with pytest.raises(BadInput, match="ratio 4 got no compressed rows"):
        layer_attention.attention_rows(
            torch.zeros(1, 1, 512), torch.tensor([0]), torch.zeros(1, 512), ratio=4, scale=1.0
        )
