"""Index queries, keys, scores and selections by loops, and their invariances."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dsv4_conformance.oracle import compressor, indexer
from dsv4_conformance.oracle.indexer import (
    Form,
    hadamard,
    head_weights,
    key_compressor,
    keys,
    queries,
    scores,
    top_entries,
)
from dsv4_conformance.oracle.kv_format import e4m3_value, quantise_index_keys
from dsv4_conformance.oracle.rounding import power_scaled_fp8, scaled_fp8
from dsv4_conformance.spec.geometry import FLASH, PRO
from dsv4_conformance.spec.weights import IndexerSpec
from tests.oracle.small_layer import SMALL, TABLES, assert_close, draws, layer_spec, times, tokens, turned_by

HEADS = SMALL.index_n_heads


def spec(quantised: bool = False) -> IndexerSpec:
    weights = layer_spec(4).weights.indexer
    assert weights is not None
    return IndexerSpec(SMALL, weights, TABLES.compressed, quantised)


def sylvester() -> Tensor:
    """H of size 128 by doubling, orthonormal."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(7):
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / math.sqrt(128)


def inputs(rows: int, entries: int) -> tuple[Tensor, Tensor, Tensor]:
    """iq, w and ik of no layer."""
    d = draws(5)
    return tuple(d.normal(*shape).to(torch.float64) for shape in ((rows, HEADS, 128), (rows, HEADS), (entries, 128)))  # type: ignore[return-value]


def scores_by_loops(iq: Tensor, w: Tensor, ik: Tensor) -> Tensor:
    out = torch.zeros(iq.shape[0], ik.shape[0], dtype=torch.float64)
    for t, i, h in torch.cartesian_prod(*(torch.arange(n) for n in (*out.shape, iq.shape[1]))).tolist():
        dot = math.fsum(a * b for a, b in zip(iq[t, h].tolist(), ik[i].tolist(), strict=True))
        out[t, i] += w[t, h] * max(dot, 0.0)
    return out


# Kills: another order of the matrix, sign flips, a factor 1 / 128.
def test_hadamard_is_sylvesters_matrix() -> None:
    assert_close(hadamard(torch.eye(128)), sylvester())
    x = tokens(3, 128).to(torch.float64)
    assert_close(hadamard(hadamard(x)), x)


# Kills: a norm on index queries, rope before the heads are split or on the first dims, the plain table, no Hadamard.
def test_queries_by_loops() -> None:
    s, qr, at = spec(), tokens(3, SMALL.q_lora_rank), torch.tensor([9, 0, 333])
    got = queries(s, qr, at)
    assert got.shape == (3, HEADS, 128)
    for t in range(3):
        for h in range(HEADS):
            row = times(s.weights.wq_b[128 * h : 128 * h + 128], qr[t])
            assert_close(got[t, h], sylvester() @ turned_by(row, TABLES.compressed[at[t]]))
    assert_close(queries(s, qr * 2, at), got * 2)


# Kills: keys of another compressor, no Hadamard on keys.
def test_keys_are_rotated_entries_of_the_index_compressor() -> None:
    s, x = spec(), tokens(11)
    assert (key_compressor(s).ratio, key_compressor(s).dim) == (4, 128)
    assert_close(keys(s, x), compressor.entries(key_compressor(s), x) @ sylvester())


# Kills: quantisation that is off, of the vector before the Hadamard, per head row instead of per vector, of keys only.
def test_quantised_keys_and_queries_are_what_fp8_rows_hold() -> None:
    x, qr, at = tokens(40), tokens(5, SMALL.q_lora_rank), torch.arange(5)
    for kept, exact in ((keys(spec(True), x), keys(spec(), x)), (queries(spec(True), qr, at), queries(spec(), qr, at))):
        codes, scale = quantise_index_keys(exact.reshape(-1, 128))
        want = (e4m3_value(codes) * scale.to(torch.float64)[:, None]).view(exact.shape)
        assert torch.equal(kept, want)
        assert not torch.equal(kept, exact)


# Kills: a softmax or relu on the weights, one of the two factors left out.
def test_head_weights_are_scaled_and_signed() -> None:
    s, x = spec(), tokens(4)
    got = head_weights(s, x)
    assert_close(got, torch.stack([times(s.weights.weights_proj, row) for row in x]) * (128 * HEADS) ** -0.5)
    assert (got < 0).any()
    for geometry in (FLASH, PRO):
        whole = replace(s, geometry=geometry, weights=replace(s.weights, weights_proj=torch.eye(64)))
        want = torch.full((1, 64), 0.011048543456039806, dtype=torch.float64)
        assert_close(head_weights(whole, torch.ones(1, 64)), want)


# INV-36. Kills: relu after the weight, |dot|, a softmax, rows that mix.
def test_scores_by_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    iq, w, ik = inputs(5, 7)
    want = scores_by_loops(iq, w, ik)
    assert_close(scores(iq, w, ik), want)
    monkeypatch.setattr(indexer, "_SCRATCH", 2 * HEADS * 7)  # two rows at once
    assert_close(scores(iq, w, ik), want)
    opposite = -torch.sign(w)[:, :, None] * iq.abs()
    assert torch.equal(scores(-iq.abs(), w, ik.abs()), torch.zeros(5, 7, dtype=torch.float64))
    assert (scores(opposite, w, ik.abs()) <= 0).all()


# INV-33. Kills: Hadamard on one side only (through its being no rotation), scores that depend on the head's place.
def test_scores_do_not_see_a_common_rotation_or_the_order_of_heads() -> None:
    iq, w, ik = inputs(4, 6)
    order = torch.tensor([3, 1, 5, 0, 4, 2])
    assert_close(scores(hadamard(iq), w, hadamard(ik)), scores(iq, w, ik))
    assert_close(scores(iq[:, order], w[:, order], ik), scores(iq, w, ik))


# INV-31, INV-32. Kills: n(t) or topk off by one, a score that is read where all fit, the lowest for the highest.
@pytest.mark.parametrize("step", [1 << 20, 40])
def test_top_entries_by_sorting(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(indexer, "_SCRATCH", step)
    iq, w, ik = inputs(60, 15)
    at = torch.arange(60).flip(0)
    got = top_entries(iq, w, ik, at, 5)
    table = scores(iq, w, ik).tolist()
    for t in range(60):
        seen = (int(at[t]) + 1) // 4
        best = sorted(range(seen), key=[-score for score in table[t]].__getitem__)[:5]
        if seen <= 5:
            assert got[t].tolist() == list(range(seen)) + [-1] * (5 - seen)
        else:
            assert sorted(got[t].tolist()) == sorted(best)


# INV-31. Kills: a top-k over NaN scores of rows where all entries fit.
def test_scores_are_not_read_where_all_entries_fit() -> None:
    iq, w, ik = inputs(23, 5)
    got = top_entries(iq * math.nan, w, ik, torch.arange(23), 5)
    assert got[22].tolist() == [0, 1, 2, 3, 4]
    assert got[0].tolist() == [-1] * 5


# INV-34. Kills: |w|, or weights normed by their sum.
def test_the_sign_of_the_weights_decides_and_their_size_does_not() -> None:
    iq, w, ik = inputs(3, 15)
    at = torch.full((3,), 59)
    best = top_entries(iq, w, ik, at, 5)
    assert torch.equal(top_entries(iq, 3 * w, ik, at, 5).sort().values, best.sort().values)
    lowest = scores(iq, w, ik).topk(5, largest=False).indices
    assert torch.equal(top_entries(iq, -w, ik, at, 5).sort().values, lowest.sort().values)


# Kills: a form that rotates twice or never, power-of-two scales without bf16, or with bf16 on the plain dims too.
def test_queries_of_another_form_are_rounded_as_it_says_and_rotated() -> None:
    qr, at = tokens(5, SMALL.q_lora_rank), torch.arange(5)
    plain = hadamard(queries(spec(), qr, at))  # as they are before the rotation
    stored = hadamard(queries(spec(True), qr, at, form=Form(rotated=False)))
    assert torch.allclose(stored, scaled_fp8(plain), atol=1e-12) and not torch.allclose(stored, plain, atol=1e-12)
    low = torch.cat((plain[..., :64], plain[..., 64:].to(torch.bfloat16).double()), -1)
    powers = hadamard(queries(spec(True), qr, at, form=Form(rotated=False, power_of_two=True)))
    scale = torch.exp2(torch.ceil(torch.log2(low.abs().amax(-1, keepdim=True) / 448)))
    want = (low / scale).float().to(torch.float8_e4m3fn).double() * scale
    assert torch.allclose(powers, want, atol=1e-12)
    rotated = queries(spec(True), qr, at, form=Form(power_of_two=True))
    assert not torch.allclose(rotated, hadamard(powers), atol=1e-6)
    for form in (Form(rotated=False), Form(power_of_two=True)):
        assert torch.equal(queries(spec(), qr, at, form=form), queries(spec(), qr, at))


def test_power_scaled_vectors_have_the_smallest_power_of_two_that_fits() -> None:
    rows = torch.zeros(3, 128, dtype=torch.float64)
    rows[0, :2], rows[1, :2] = torch.tensor([448.0, 17.0]), torch.tensor([449.0, 17.0])
    assert power_scaled_fp8(rows)[:, :2].tolist() == [[448.0, 16.0], [448.0, 16.0], [0.0, 0.0]]
    rows[0, 1] = 2.0**-10  # half of the smallest code under scale 1, and under the floor of a row of zeros
    rows[2, 0] = 1e-4
    assert power_scaled_fp8(rows)[0, 1] == 0 and abs(power_scaled_fp8(rows)[2, 0] - 1e-4) < 4e-6
