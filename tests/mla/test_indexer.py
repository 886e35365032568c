"""Indexer of the built-in implementation: rotation, queries, scores and selection against loops in float64."""

import math
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dsv4_conformance.mla import indexer as module
from dsv4_conformance.mla.hadamard import hadamard
from dsv4_conformance.mla.indexer import Indexer
from dsv4_conformance.mla.pools import IndexKeyPool
from dsv4_conformance.mla.rope import apply_rope, make_table
from dsv4_conformance.mla.topk import paged, select
from dsv4_conformance.spec.geometry import TINY
from dsv4_conformance.spec.weights import CompressorWeights, IndexerSpec, IndexerWeights

TABLE = make_table(160000.0, None, 512, "cpu")
GEOMETRY = replace(TINY, hidden_size=24, q_lora_rank=16)


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_indexer(quantised: bool) -> Indexer:
    compressor = CompressorWeights(draw(256, 24, seed=1), draw(256, 24, seed=2), draw(4, 256, seed=3), torch.ones(128))
    weights = IndexerWeights(draw(64 * 128, 16, seed=4), draw(64, 24, seed=5), compressor)
    return Indexer(IndexerSpec(GEOMETRY, weights, TABLE, quantised), rows=3)


def sylvester(i: int, j: int) -> float:
    return (-1.0) ** (i & j).bit_count() / math.sqrt(128)


# Kills: no scaling, another order (Walsh by sequency), random signs.
def test_rotation_is_sylvester_s_matrix() -> None:
    matrix = hadamard(128, "cpu")
    expected = torch.tensor([[sylvester(i, j) for j in range(128)] for i in range(128)])
    torch.testing.assert_close(matrix, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(matrix @ matrix, torch.eye(128), rtol=0, atol=1e-6)


# Kills: rope after the rotation, heads and dims exchanged, weights unscaled, queries from x.
def test_queries_are_roped_then_rotated_and_weights_scaled() -> None:
    indexer, x, qr = make_indexer(False), draw(3, 24, seed=6), draw(3, 16, seed=7)
    positions = torch.tensor([0, 5, 300])
    iq, w = indexer.queries(x, qr, positions)
    wide = (qr.double() @ draw(64 * 128, 16, seed=4).double().T).view(3, 64, 128)
    expected = apply_rope(wide, TABLE, positions) @ hadamard(128, "cpu").double()
    torch.testing.assert_close(iq.double(), expected, rtol=0, atol=2e-5)
    scale = 0.011048543456039806
    torch.testing.assert_close(w.double(), x.double() @ draw(64, 24, seed=5).double().T * scale, rtol=0, atol=1e-6)
    entries = draw(2, 128, seed=8)
    torch.testing.assert_close(
        indexer.rotate_keys(entries), (entries.double() @ hadamard(128, "cpu").double()).float(), rtol=0, atol=2e-6
    )


# Kills: quantised ignored, one scale per token, power-of-two scale, the scale left out.
def test_quantised_queries_have_the_values_of_fp8_codes_and_one_scale_per_head() -> None:
    x, qr, positions = draw(2, 24, seed=6), draw(2, 16, seed=7), torch.tensor([3, 9])
    exact, rounded = make_indexer(False).queries(x, qr, positions)[0], make_indexer(True).queries(x, qr, positions)[0]
    # Every magnitude of e4m3: 0 to 7 steps of 2^-9, then 8 to 15 steps of each wider binade, up to 448.
    steps = [(m, -9) for m in range(8)] + [(m, e) for e in range(-9, 6) for m in range(8, 16)]
    grid = torch.tensor([m * 2.0**e for m, e in steps[:-1]], dtype=torch.float64)
    for t, head in ((0, 0), (1, 63), (1, 7)):
        scale = exact[t, head].abs().max().double() / 448
        for value, ours in zip((exact[t, head].double() / scale).tolist(), rounded[t, head].tolist(), strict=True):
            best = (grid - abs(value)).abs().min().item()
            code = abs(ours) / scale.item()
            assert (grid - code).abs().min().item() <= 1e-4 * max(code, 1)  # it is a code
            assert abs(code - abs(value)) <= best + 1e-4 * max(code, 1)  # and a nearest one
            assert ours * value >= 0


def make_scene(quantised: bool) -> tuple[IndexKeyPool, Tensor, Tensor, Tensor]:
    """Pool of three live pages, of which 70 entries of two are written; queries and weights of both signs."""
    pool = IndexKeyPool(5, quantised, "cpu")
    pool.poison(())
    slots = torch.tensor([3 * 64 + i for i in range(64)] + [64 + i for i in range(6)])
    pool.store(draw(70, 128, seed=11), slots)
    return pool, slots, draw(5, 64, 128, seed=12), draw(5, 64, seed=13)


# Kills: weight before relu, relu left out, pages taken in their physical order, a chunk of rows scored with other keys.
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("scratch", [1, 8 << 20])
@pytest.mark.parametrize("shared", [False, True])
def test_scores_are_weighted_sums_of_positive_dot_products(
    quantised: bool, scratch: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CPU_SCRATCH_BYTES", scratch)
    pool, slots, iq, w = make_scene(quantised)
    table = torch.tensor([[3, 1, -1]], dtype=torch.int32)
    keys = pool.load(slots).double()
    expected = torch.stack([(w[t].double()[:, None] * (iq[t].double() @ keys.T).clamp(min=0)).sum(0) for t in range(5)])
    scores = make_indexer(False).scores_paged(iq, w, pool, table if shared else table.expand(5, -1), 130)
    assert scores.shape == (5, 130) and scores.dtype == torch.float32
    torch.testing.assert_close(scores[:, :70].double(), expected, rtol=0, atol=2e-3)
    assert bool(scores[:, 70:128].isnan().all())  # never written: the poison, and in its own column only
    assert scores[:, 128:].tolist() == [[0.0, 0.0]] * 5  # on no page


# Kills: the table of row 0 used for every row.
def test_each_row_reads_the_keys_of_its_own_pages() -> None:
    pool, _, iq, w = make_scene(False)
    one, two = torch.tensor([[3]]), torch.tensor([[1]])
    indexer = make_indexer(False)
    both = indexer.scores_paged(iq[:2], w[:2], pool, torch.cat((one, two)), 6)
    torch.testing.assert_close(both[:1], indexer.scores_paged(iq[:1], w[:1], pool, one, 6))
    torch.testing.assert_close(both[1:], indexer.scores_paged(iq[1:2], w[1:2], pool, two, 6))
    assert indexer.scores_paged(iq, w, pool, one, 0).shape == (5, 0)


# Kills: scores read where all entries are taken, order by score there, -1 in between, topk off by one.
@pytest.mark.parametrize("width", [0, 3, 4, 9])
def test_short_rows_take_every_entry_in_order_without_reading_scores(width: int) -> None:
    scores = torch.full((5, width), math.nan)
    raw = select(scores, torch.tensor([0, 1, 3, 4, -2]), 4)
    assert raw.dtype == torch.int32
    assert raw.tolist() == [[-1] * 4, [0, -1, -1, -1], [0, 1, 2, -1], [0, 1, 2, 3], [-1] * 4]


# Kills: an entry beyond the length (NaN, +inf, or masked with a value that a score reaches), duplicates, the smallest.
def test_long_rows_take_exactly_the_largest_scores_they_see() -> None:
    inf, nan = math.inf, math.nan
    scores = torch.tensor(
        [
            [1.0, -5.0, 3.0, 2.0, 2.5, nan, inf],
            [-inf, -inf, -inf, -inf, 9.0, inf, nan],
            [-3e38, -inf, -3.4e38, -inf, -inf, 0.0, 0.0],
            [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 8.0],
        ]
    )
    raw = select(scores, torch.tensor([5, 4, 5, 7]), 3).tolist()
    assert sorted(raw[0]) == [2, 3, 4]
    assert len(set(raw[1])) == 3 and set(raw[1]) <= {0, 1, 2, 3}
    assert {0, 2} < set(raw[2]) and len(set(raw[2])) == 3 and set(raw[2]) <= {0, 1, 2, 3, 4}
    assert sorted(raw[3]) == [0, 1, 6]


def test_selection_of_random_rows_is_that_of_a_sort() -> None:
    dice = random.Random(3)
    lengths = [dice.randint(0, 300) for _ in range(20)]
    scores = draw(20, 300, seed=14)
    for row, (ours, length) in enumerate(zip(select(scores, torch.tensor(lengths), 64).tolist(), lengths, strict=True)):
        values = scores[row].tolist()
        best = sorted(range(length), key=lambda i: -values[i])[:64]
        assert sorted(i for i in ours if i >= 0) == sorted(best)
        assert ours.count(-1) == 64 - len(best) and -1 not in ours[: len(best)]


# Kills: page and place exchanged, -1 mapped to a slot, one row's table for all.
def test_paged_selections_follow_the_page_table() -> None:
    raw = torch.tensor([[0, 64, 63, -1], [130, -1, -1, -1]], dtype=torch.int32)
    slots = paged(raw, torch.tensor([[5, 2, 9], [1, 3, 7]], dtype=torch.int32))
    assert slots.dtype == torch.int32
    assert slots.tolist() == [[320, 128, 383, -1], [450, -1, -1, -1]]
