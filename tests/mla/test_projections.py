"""Projections of one rank: shares of heads, groups and columns; norms, rope and roundings (spec §2, §15)."""

from dataclasses import replace

import pytest
import torch

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.projections import Projections
from dsv4_conformance.spec.weights import LayerSpec, Precision
from tests.mla.layers import SMALL, TABLES, draw, make_spec, tokens

T = 5
POSITIONS = torch.tensor([0, 7, 3, 900, 3])


def made(precision: Precision = "float32", tp: int = 1, rank: int = 0) -> Projections:
    return Projections(make_spec(0, precision, tp=tp, rank=rank), TABLES.plain)


# Kills: heads of another rank, columns of wo_b or rows of wo_a of another rank, a share taken of a replicated weight.
@pytest.mark.parametrize("tp", [1, 2])
def test_the_ranks_share_out_heads_and_outputs(tp: int) -> None:
    whole, ranks = made(), [made(tp=tp, rank=rank) for rank in range(tp)]
    x, o = tokens(T), draw(T, 4, 512, seed=1)
    qr = whole.query_source(x)
    assert all(torch.equal(rank.query_source(x), qr) for rank in ranks)
    assert all(torch.equal(rank.keys(x, POSITIONS), whole.keys(x, POSITIONS)) for rank in ranks)
    heads = torch.cat([rank.queries(qr, POSITIONS, rank.heads) for rank in ranks], 1)
    torch.testing.assert_close(heads, whole.queries(qr, POSITIONS, 4), rtol=0, atol=1e-5)
    shares = [rank.output(o[:, k * rank.heads : (k + 1) * rank.heads]) for k, rank in enumerate(ranks)]
    torch.testing.assert_close(torch.stack(shares).sum(0), whole.output(o), rtol=0, atol=1e-4)


def test_a_size_that_splits_a_group_is_refused() -> None:
    with pytest.raises(BadInput, match="tp 4 does not split small"):
        made(tp=4)


# Kills: groups mixed, heads in another order within a group, wo_b in the place of wo_a.
def test_a_group_reaches_its_own_rank_of_the_output() -> None:
    spec: LayerSpec = make_spec(0)
    eye = torch.eye(16, SMALL.hidden_size).T.contiguous()
    p = Projections(replace(spec, weights=replace(spec.weights, wo_b=eye)), TABLES.plain)
    o = draw(1, 4, 512, seed=2)
    for group in (0, 1):
        alone = torch.zeros_like(o)
        alone[:, 2 * group : 2 * group + 2] = o[:, 2 * group : 2 * group + 2]
        out = p.output(alone)[0, :16].view(2, 8)
        want = spec.weights.wo_a.view(2, 8, 1024)[group] @ o[0, 2 * group : 2 * group + 2].flatten()
        torch.testing.assert_close(out[group], want, rtol=0, atol=1e-4)
        assert not out[1 - group].any()


# Kills: a norm without eps or with weights, rope before the norm of keys, on other dims or at other positions.
def test_queries_and_keys_are_normed_then_roped() -> None:
    p, spec, x = made(), make_spec(0), tokens(T)
    w = spec.weights

    def normed(y: torch.Tensor) -> torch.Tensor:
        return y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    def roped(y: torch.Tensor, row: int) -> torch.Tensor:
        turn = torch.view_as_complex(TABLES.plain[POSITIONS[row]].view(32, 2))
        pairs = torch.view_as_complex(y[..., 448:].reshape(*y.shape[:-1], 32, 2))
        return torch.cat((y[..., :448], torch.view_as_real(pairs * turn).flatten(-2)), -1)

    qr = normed(x @ w.wq_a.T) * w.q_norm
    torch.testing.assert_close(p.query_source(x), qr, rtol=0, atol=1e-5)
    q, k = p.queries(qr, POSITIONS, 4), p.keys(x, POSITIONS)
    for row in range(T):
        heads = normed((w.wq_b @ qr[row]).view(4, 512))
        torch.testing.assert_close(q[row], roped(heads, row), rtol=0, atol=1e-5)
        torch.testing.assert_close(k[row], roped(normed(w.wkv @ x[row]) * w.kv_norm, row), rtol=0, atol=1e-5)


# Kills: an inverse at the wrong sign or position, one that touches dims 0 to 447, another dtype.
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_inverse_rope_undoes_the_rope(dtype: torch.dtype) -> None:
    p = made()
    q = p.queries(draw(T, 16, seed=3), POSITIONS, 4).to(dtype)
    back = p.unrotated(q, POSITIONS)
    again = p.queries(draw(T, 16, seed=3), torch.zeros(T, dtype=torch.int64), 4)
    assert back.dtype == dtype and torch.equal(back[..., :448], q[..., :448])
    torch.testing.assert_close(back.float(), again, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.03)


# Kills: padded heads that are filled (an extra kernel in every step), real heads behind them, a copy without need.
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_padded_heads_follow_the_real_ones(monkeypatch: pytest.MonkeyPatch, precision: Precision) -> None:
    p, qr = made(precision), draw(T, 16, seed=4)
    right, empty = p.queries(qr, POSITIONS, 4), torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **how: empty(*shape, **how).fill_(7))
    wide = p.queries(qr, POSITIONS, 6)
    assert wide.shape == (T, 6, 512) and torch.equal(wide[:, :4], right) and bool((wide[:, 4:] == 7).all())


# Kills: more than one rounding, or none, in a bfloat16 layer.
def test_a_bf16_layer_rounds_queries_and_keys_once() -> None:
    low, high, x = made("bfloat16"), made(), tokens(T)
    qr = low.query_source(x)
    assert torch.equal(qr, high.query_source(x))
    assert torch.equal(low.queries(qr, POSITIONS, 4), high.queries(qr, POSITIONS, 4).bfloat16())
    assert torch.equal(low.keys(x, POSITIONS), high.keys(x, POSITIONS).bfloat16())
    assert low.output(draw(T, 4, 512, seed=5).bfloat16()).dtype == torch.float32
