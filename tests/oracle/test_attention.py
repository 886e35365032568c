"""The attention formula against loops in plain Python: sinks, lists, lengths, rows without keys."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dsv4_conformance.oracle.attention import Answer, Problem, Scope, attend, attention

INF = math.inf
SCALE = 512**-0.5
HEADS = 3
INT_MAX, INT_MIN = 2**31 - 1, -(2**31)

CACHE = torch.randn(12, 512, generator=torch.Generator().manual_seed(11)).to(torch.bfloat16)
OTHER = torch.randn(5, 512, generator=torch.Generator().manual_seed(12)).to(torch.bfloat16)


def scope(
    lists: Sequence[Sequence[int]],
    length: Sequence[int] | None = None,
    limit: int | None = None,
    rows: Tensor = CACHE,
) -> Scope:
    counts = None if length is None else torch.tensor(length, dtype=torch.int32)
    return Scope(lambda at: rows[at], torch.tensor(lists, dtype=torch.int32), counts, limit)


def problem(*scopes: Scope, sink: Sequence[float] | None = None, scale: float = SCALE) -> Problem:
    rows = scopes[0].indices.shape[0]
    q = (torch.randn(rows, HEADS, 512, generator=torch.Generator().manual_seed(13)) * 3).to(torch.bfloat16)
    return Problem(q, scopes, None if sink is None else torch.tensor(sink), scale)


def by_loops(p: Problem, keys_of_row: Sequence[Sequence[Tensor]]) -> Answer:
    """The definition for keys already looked up, with correctly rounded sums."""
    outs, lses, tops = [], [], []
    for q_row, keys in zip(p.q.tolist(), keys_of_row, strict=True):
        listed = [key.tolist() for key in keys]
        for h, q in enumerate(q_row):
            s = [p.scale * math.fsum(a * b for a, b in zip(q, k, strict=True)) for k in listed]
            sink = -INF if p.sink is None else p.sink[h].item()
            if not s:
                outs.append([0.0] * 512)
                lses.append(INF)
                tops.append(-INF)
                continue
            top = max(s)
            total = math.fsum(math.exp(x - top) for x in s)
            bottom = INF if sink - top > 700 else total + math.exp(sink - top)  # the share underflows
            shares = [math.exp(x - top) / bottom for x in s]
            outs.append([math.fsum(w * k[d] for w, k in zip(shares, listed, strict=True)) for d in range(512)])
            lses.append(math.log(total) + top)
            tops.append(top)
    shape = p.q.shape[:2]
    flat = [torch.tensor(x, dtype=torch.float64) for x in (outs, lses, tops)]
    return Answer(flat[0].view(*shape, 512), flat[1].view(shape), flat[2].view(shape))


def assert_same(got: Answer, want: Answer) -> None:
    for name in ("out", "lse", "max_logits"):
        torch.testing.assert_close(getattr(got, name), getattr(want, name), rtol=1e-12, atol=1e-13)
    assert torch.equal(got.out == 0, want.out == 0)


# Kills: sink scaled, sink in lse, sink of another head, no sink; a sink of +inf that gives NaN.
@pytest.mark.parametrize(
    "sink", [None, (0.0, 0.0, 0.0), (-INF, 2.5, INF), (1.0, -3.0, 4.0), (90.0, -900.0, 900.0)], ids=str
)
def test_every_kind_of_sink(sink: Sequence[float] | None) -> None:
    lists = [[0, 3, 5, 7], [2, 4, 6, 11], [9, 8, 1, 0]]
    p = problem(scope(lists), sink=sink)
    assert_same(attention(p), by_loops(p, [[CACHE[i] for i in row] for row in lists]))


# Kills: a scale fixed at 512 ** -0.5, a scale applied to values.
def test_scale_multiplies_dot_products_only() -> None:
    p = problem(scope([[0, 3, 5, 7]]), sink=(0.5, -1.0, 2.0), scale=0.25)
    assert_same(attention(p), by_loops(p, [[CACHE[i] for i in (0, 3, 5, 7)]]))


# Kills: a scope's list used for the other, the extra scope lost, lengths exchanged, scopes that do not concatenate.
def test_two_scopes_are_one_multiset() -> None:
    p = problem(
        scope([[0, 3, 5, 7], [2, -1, 6, 11]], (3, 4)),
        scope([[4, 0, 1], [1, 2, 3]], (1, 3), rows=OTHER),
        sink=(-1.0, 0.0, 1.0),
    )
    rows = [[CACHE[0], CACHE[3], CACHE[5], OTHER[4]], [CACHE[i] for i in (2, 6, 11)] + [OTHER[i] for i in (1, 2, 3)]]
    assert_same(attention(p), by_loops(p, rows))


# Kills: holes read as slot 0, lengths that do not count holes, entries beyond the length used.
def test_lengths_count_from_the_left_and_holes_with_them() -> None:
    lists = [[-1, 3, -1, 7, INT_MAX, INT_MIN], [2, -1, 6, 11, 0, 1], [0, 1, 2, 3, 4, 5]]
    p = problem(scope(lists, (4, 1, 6)), sink=(0.0, 1.0, -INF))
    rows = [[CACHE[3], CACHE[7]], [CACHE[2]], [CACHE[i] for i in range(6)]]
    assert_same(attention(p), by_loops(p, rows))


# Kills: prefill that knows -1 as its only hole, an off-by-one at s_kv, a limit taken for the list width.
def test_prefill_skips_everything_outside_the_rows() -> None:
    lists = [[0, -1, 11, 12, INT_MAX, INT_MIN, -123456, 5], [12, 13, -2, 10, 10**6, 11, 3, 2]]
    p = problem(scope(lists, (8, 7), limit=12), sink=(0.0, 1.0, -INF))
    assert_same(attention(p), by_loops(p, [[CACHE[i] for i in (0, 11, 5)], [CACHE[i] for i in (10, 11, 3)]]))


# Kills: a set instead of a multiset.
def test_a_repeated_index_counts_once_per_occurrence() -> None:
    p = problem(scope([[4, 4, 2, 4, 2]]), sink=(0.0, 1.0, -INF))
    assert_same(attention(p), by_loops(p, [[CACHE[i] for i in (4, 4, 2, 4, 2)]]))
    once = attention(replace(p, scopes=(scope([[4, 2, -1, -1, -1]]),)))
    assert (attention(p).lse - once.lse > math.log(2)).all()


# Kills: NaN in rows without keys, lse -inf there, a sink that leaks into them, a neighbour row that changes.
@pytest.mark.parametrize("sink", [None, (-INF, 0.0, INF)], ids=str)
def test_rows_without_keys(sink: Sequence[float] | None) -> None:
    window, extra = [[0, 1], [5, 6], [-1, -1]], [[1, -1], [2, 3], [-1, -1]]
    p = problem(scope(window, (2, 0, 2)), scope(extra, (2, 0, 2), rows=OTHER), sink=sink)
    answer = attention(p)
    assert_same(answer, by_loops(p, [[CACHE[0], CACHE[1], OTHER[1]], [], []]))
    assert (answer.out[1:] == 0).all() and not answer.out[0, 0].eq(0).any()
    assert answer.lse[1:].isposinf().all() and answer.max_logits[1:].isneginf().all()


# Kills: poison in unreferenced rows that reaches the sums as 0 * NaN.
def test_rows_that_no_list_names_may_hold_anything() -> None:
    poisoned = CACHE.clone()
    poisoned[[0, 1, 9]] = torch.tensor([math.nan, INF, -INF], dtype=torch.bfloat16)[:, None]
    lists, length = [[3, -1, 5, 0], [4, 1, 9, 0]], (3, 1)
    p = problem(scope(lists, length, rows=poisoned), sink=(0.0, 1.0, -INF))
    assert_same(attention(p), by_loops(p, [[CACHE[3], CACHE[5]], [CACHE[4]]]))


# Kills: exponentials without the shift by the maximum.
@pytest.mark.parametrize("size", [40.0, -40.0])
def test_large_logits_do_not_overflow(size: float) -> None:
    p = problem(scope([[0, 0]]), sink=(size * 20, 1.0, -INF))
    p = replace(p, q=(CACHE[0].float() * size).to(torch.bfloat16).expand(1, HEADS, 512))
    answer = attention(p)
    assert answer.max_logits.abs().min() > 800
    assert_same(answer, by_loops(p, [[CACHE[0], CACHE[0]]]))


# Kills: heads or rows selected on one side only.
def test_rows_and_heads_of_a_problem_are_its_parts() -> None:
    p = problem(scope([[0, 3], [2, 4], [9, 8]], (2, 1, 2)), scope([[1], [2], [-1]], rows=OTHER), sink=(-1.0, 0.5, 2.0))
    whole = attention(p)
    assert_same(attention(p.rows(slice(1, 3))), whole.at(slice(1, 3)))
    assert_same(attention(p.rows(torch.tensor([2, 0]))), whole.at(torch.tensor([2, 0])))
    assert_same(attention(p.heads(torch.tensor([2, 0]))), whole.at((slice(None), torch.tensor([2, 0]))))


# Kills: keys or queries multiplied in their stored precision.
def test_products_are_made_in_float64() -> None:
    q = torch.tensor([[[1.0, 2.0**-30] + [0.0] * 510]], dtype=torch.float64)
    key = torch.tensor([[[1.0, 2.0**-20] + [0.0] * 510]], dtype=torch.bfloat16)
    answer = attend(q, key, torch.tensor([[True]]), None, 1.0)
    assert answer.lse.item() == 1 + 2.0**-50
