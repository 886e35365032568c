"""Compressed entries by hand and by loops over tokens and channels; what each entry may depend on."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.oracle import compressor
from dsv4_conformance.oracle.compressor import entries, finished, pooled, projected, visible
from dsv4_conformance.spec.weights import CompressorSpec, CompressorWeights
from tests.oracle.small_layer import TABLES, assert_close, compressor_weights, conjugate, normed, tokens, turned_by

HIDDEN = 5


def spec(ratio: int, dim: int, seed: int = 2) -> CompressorSpec:
    return CompressorSpec(ratio, dim, compressor_weights(ratio, dim, HIDDEN, seed), TABLES.compressed, 1e-6)


def with_ape(ratio: int, ape: list[list[float]]) -> CompressorSpec:
    """A compressor of which only the pooling is used."""
    dim = len(ape[0]) // (2 if ratio == 4 else 1)
    unused = torch.full((1, 1), math.nan)
    return CompressorSpec(ratio, dim, CompressorWeights(unused, unused, torch.tensor(ape), unused), unused, 1e-6)


def by_loops(s: CompressorSpec, u: Tensor, g: Tensor) -> Tensor:
    """The definition, one channel of one entry at a time (spec §5.1, §5.2)."""
    value, score, ape = u.tolist(), g.tolist(), s.weights.ape.to(torch.float64).tolist()
    out = []
    for i in range(len(value) // s.ratio):
        row = []
        for m in range(s.dim):
            own = [(t, m + s.dim * (s.ratio == 4)) for t in range(s.ratio * i, s.ratio * (i + 1))]
            before = [(t, m) for t in range(4 * i - 4, 4 * i) if t >= 0] if s.ratio == 4 else []
            shares = [math.exp(score[t][c] + ape[t % s.ratio][c]) for t, c in before + own]
            total = math.fsum(shares)
            row.append(math.fsum(p * value[t][c] for p, (t, c) in zip(shares, before + own, strict=True)) / total)
        out.append(row)
    return torch.tensor(out, dtype=torch.float64)


# Kills: A and B halves exchanged, no overlap, overlap of the next window, entry 0 averaged over 8 slots.
def test_equal_scores_average_b_halves_of_the_window_and_a_halves_of_the_one_before() -> None:
    u = torch.tensor([[1, 10], [2, 20], [3, 30], [4, 40], [5, 50], [6, 60], [7, 70], [8, 80.0]], dtype=torch.float64)
    flat = with_ape(4, [[0.0, 0.0]] * 4)
    assert_close(pooled(flat, u, torch.zeros_like(u)), torch.tensor([[25.0], [33.75]], dtype=torch.float64))


# Kills: ape left out, added twice, taken by token instead of by place in the window, its halves exchanged.
def test_ape_is_a_score_of_the_place_in_the_window() -> None:
    u = torch.tensor([[1, 10], [2, 20], [3, 30], [4, 40], [5, 50], [6, 60], [7, 70], [8, 80.0]], dtype=torch.float64)
    three = with_ape(4, [[0.0, 0.0], [0.0, math.log(3)], [math.log(2), 0.0], [0.0, 0.0]])
    first = (10 + 3 * 20 + 30 + 40) / 6
    second = (1 + 2 + 2 * 3 + 4 + 50 + 3 * 60 + 70 + 80) / (5 + 6)
    want = torch.tensor([[first], [second]], dtype=torch.float64)
    torch.testing.assert_close(pooled(three, u, torch.zeros_like(u)), want, rtol=1e-7, atol=0)  # ape is float32


# Kills: one softmax for all channels, softmax over channels.
def test_each_channel_of_ratio_128_has_its_own_softmax() -> None:
    u = torch.arange(128, dtype=torch.float64)[:, None].repeat(1, 2)
    g = torch.zeros(128, 2, dtype=torch.float64)
    g[5, 0] = g[100, 1] = math.log(129)
    got = pooled(with_ape(128, [[0.0, 0.0]] * 128), u, g)
    mean = 127 * 64
    assert_close(got, torch.tensor([[(mean + 128 * 5) / 256, (mean + 128 * 100) / 256]], dtype=torch.float64))


# Kills: wrong places of rope and norm, rope at the window's last token, the norm after rope, eps outside the root.
@pytest.mark.parametrize(("ratio", "dim", "count"), [(4, 80, 15), (128, 70, 260)])
def test_entries_by_loops(ratio: int, dim: int, count: int) -> None:
    s, x = spec(ratio, dim), tokens(count, HIDDEN)
    u, g = (x.to(torch.float64) @ w.to(torch.float64).T for w in (s.weights.wkv, s.weights.wgate))
    assert_close(projected(s, x)[0], u)
    assert_close(projected(s, x)[1], g)
    want = by_loops(s, u, g)
    assert_close(pooled(s, u, g), want)
    rows = [turned_by(normed(row, s.weights.norm), s.table[ratio * i]) for i, row in enumerate(want)]
    assert_close(entries(s, x), torch.stack(rows))


# Kills: channels pooled in parts that overlap, or with the scores of other channels.
@pytest.mark.parametrize("ratio", [4, 128])
def test_pooling_in_parts_is_pooling(monkeypatch: pytest.MonkeyPatch, ratio: int) -> None:
    s, x = spec(ratio, 70), tokens(2 * ratio, HIDDEN)
    whole = entries(s, x)
    monkeypatch.setattr(compressor, "_SCRATCH", 4 * ratio * 17)  # 17 channels at once
    assert_close(entries(s, x), whole)


# INV-26. Kills: ceil for floor, an entry for the trailing window, q // r for (q + 1) // r.
@pytest.mark.parametrize("ratio", [4, 128])
def test_an_entry_per_full_window(ratio: int) -> None:
    s = spec(ratio, 64)
    for count, want in ((0, 0), (1, 0), (ratio - 1, 0), (ratio, 1), (2 * ratio - 1, 1), (2 * ratio, 2)):
        assert entries(s, tokens(count, HIDDEN)).shape == (want, 64)
    at = torch.tensor([0, ratio - 2, ratio - 1, 2 * ratio - 2, 2 * ratio - 1])
    assert visible(at, ratio).tolist() == [0, 0, 1, 1, 2]


# INV-20, INV-27. Kills: entries that see the trailing window, or anything after their own.
@pytest.mark.parametrize("ratio", [4, 128])
def test_entries_of_a_prefix_are_a_prefix_of_the_entries(ratio: int) -> None:
    s, x = spec(ratio, 64), tokens(3 * ratio + 2, HIDDEN)
    whole = entries(s, x)
    for count in range(ratio, x.shape[0], max(1, ratio // 3)):
        later = x.clone()
        later[count:] = math.nan
        assert_close(entries(s, x[:count]), whole[: count // ratio])
        assert_close(entries(s, later)[: count // ratio], whole[: count // ratio])


# INV-21, INV-22. Kills: any exchange of halves or windows.
def test_what_a_token_of_ratio_4_reaches() -> None:
    s, x = spec(4, 64), tokens(20, HIDDEN)
    u, g = projected(s, x)
    before = pooled(s, u, g)
    for token in range(20):
        for half, reached in ((slice(0, 64), token // 4 + 1), (slice(64, 128), token // 4)):
            for which in (0, 1):
                changed = [u.clone(), g.clone()]
                changed[which][token, half] += 1
                moved = (pooled(s, *changed) != before).all(1)
                still = (pooled(s, *changed) == before).all(1)
                assert torch.nonzero(moved)[:, 0].tolist() == [reached] * (reached < 5)
                assert int(still.sum()) == 5 - int(moved.sum())


# INV-21. Kills: windows of ratio 128 that overlap or are shifted.
def test_what_a_token_of_ratio_128_reaches() -> None:
    s, x = spec(128, 64), tokens(384, HIDDEN)
    u, g = projected(s, x)
    before = pooled(s, u, g)
    for token in (0, 127, 128, 200, 255, 256, 383):
        changed = u.clone()
        changed[token] += 1
        assert torch.nonzero((pooled(s, changed, g) != before).any(1))[:, 0].tolist() == [token // 128]


# INV-23. Kills: scores that are used without a softmax.
@pytest.mark.parametrize("ratio", [4, 128])
def test_a_constant_on_all_scores_of_a_channel_changes_nothing(ratio: int) -> None:
    s, x = spec(ratio, 64), tokens(2 * ratio, HIDDEN)
    u, g = projected(s, x)
    shift = torch.linspace(-30, 30, 64, dtype=torch.float64).repeat(g.shape[1] // 64)  # both halves of a channel alike
    assert_close(pooled(s, u, g + shift), pooled(s, u, g))


# INV-25. Kills: the value of another token, a maximum that overflows.
@pytest.mark.parametrize(("ratio", "token", "entry"), [(4, 6, 1), (128, 200, 1)])
def test_one_high_score_takes_all(ratio: int, token: int, entry: int) -> None:
    s, x = spec(ratio, 64), tokens(2 * ratio, HIDDEN)
    u, g = projected(s, x)
    g[token] = 2000.0
    assert_close(pooled(s, u, g)[entry], u[token, -64:])


# INV-28, INV-29. Kills: no norm, rope at another position, a weight of the norm left out.
@pytest.mark.parametrize("ratio", [4, 128])
def test_finishing_norms_and_then_turns_to_the_first_token(ratio: int) -> None:
    s = spec(ratio, 64)
    rows = tokens(3, 64).to(torch.float64)
    got = finished(s, rows)
    for i in range(3):
        back = turned_by(got[i], conjugate(s.table[ratio * i]))
        torch.testing.assert_close(back, normed(rows[i], s.weights.norm), rtol=0, atol=3e-7)  # a float32 table
    torch.testing.assert_close(finished(s, rows * 9), got, rtol=0, atol=3e-6)  # eps
    assert_close(finished(replace(s, eps=81e-6), rows * 9), got)


# Kills: a check that is left out.
def test_bad_input() -> None:
    with pytest.raises(BadInput, match="wkv of a compressor with ratio 4 and dim 64 has 64 rows; pass 128"):
        entries(replace(spec(128, 64), ratio=4), tokens(8, HIDDEN))
    with pytest.raises(BadInput, match="ape of a compressor with ratio 8"):
        entries(replace(spec(128, 64), ratio=8), tokens(8, HIDDEN))
    with pytest.raises(BadInput, match="positions 0 to 4 do not fit a rope table of 4 rows"):
        entries(replace(spec(4, 64), table=TABLES.compressed[:4]), tokens(8, HIDDEN))
    with pytest.raises(BadInput, match="rows of width 6"):
        entries(spec(4, 64), tokens(8, HIDDEN + 1))
