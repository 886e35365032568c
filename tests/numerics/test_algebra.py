"""Identities of softmax against attention itself: sinks applied afterwards, repeated keys, joined parts."""

from dataclasses import replace

import pytest
import torch

from dsv4_conformance.numerics.algebra import apply_sink, joined, repeated
from dsv4_conformance.oracle.attention import Answer, Problem, Scope, attention

KV = torch.randn(20, 512, generator=torch.Generator().manual_seed(31)).to(torch.bfloat16)
SINK = torch.tensor([0.5, -torch.inf, torch.inf, -40.0])


def problem(lists: list[list[int]]) -> Problem:
    q = torch.randn(len(lists), 4, 512, generator=torch.Generator().manual_seed(32)).to(torch.bfloat16)
    return Problem(q, (Scope(lambda at: KV[at], torch.tensor(lists), None, 20),), None, 0.08)


def same(one: Answer, other: Answer) -> None:
    for name in ("out", "lse", "max_logits"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-11, atol=1e-13)


LISTS = [[3, 4, 5, 6], [7, -1, -1, -1], [-1, -1, -1, -1]]


# Kills: a sigmoid of the other sign, a sink that moves lse, NaN for rows without keys or infinite sinks.
def test_a_sink_applied_afterwards_is_the_sink() -> None:
    p = problem(LISTS)
    same(apply_sink(attention(p), SINK), attention(replace(p, sink=SINK)))


# Kills: ln of the wrong count, an out that is scaled.
@pytest.mark.parametrize("times", [1, 2, 5])
def test_repeated_keys_raise_lse(times: int) -> None:
    many = problem([[i for i in row for _ in range(times)] for row in LISTS])
    same(repeated(attention(problem(LISTS)), times), attention(many))


# Kills: parts weighed equally, a lonely part that wins, two lonely parts that give NaN.
def test_joined_parts_are_the_whole() -> None:
    left = [[3, 4, -1, -1], [-1, -1, -1, -1], [7, 8, 9, -1], [-1, -1, -1, -1]]
    right = [[5, 3, -1, -1], [2, -1, -1, -1], [-1, -1, -1, -1], [-1, -1, -1, -1]]
    whole = problem([a + b for a, b in zip(left, right, strict=True)])
    same(joined(attention(problem(left)), attention(problem(right))), attention(whole))
