"""Verdicts: special values first and exactly, then the worst error in budgets; the published rule beside them."""

import math

import pytest
import torch
from torch import Tensor

from dsv4_conformance.numerics.compare import PUBLISHED, Verdict, compare, compare_all, in_budgets, published_rule

INF, NAN = math.inf, math.nan


def lse(*values: float) -> Tensor:
    """One row of a float32 lse."""
    return torch.tensor([values])


def judge(got: Tensor, want: Tensor, budget: float = 0.1) -> Verdict:
    return compare("lse", got, want.double(), torch.full(want.shape, budget, dtype=torch.float64))


# Kills: a difference of special values taken for a number (inf - inf), one direction unchecked, signs of inf mixed up.
@pytest.mark.parametrize(
    ("got", "want", "said"),
    [
        (NAN, 1.0, "NaN where 1 is right"),
        (INF, 1.0, "+inf where 1 is right"),
        (-INF, 1.0, "-inf where 1 is right"),
        (1.0, INF, "1 where +inf is right"),
        (1.0, -INF, "1 where -inf is right"),
        (-INF, INF, "-inf where inf is right"),
        (INF, -INF, "+inf where -inf is right"),
        (NAN, INF, "NaN where inf is right"),
    ],
)
def test_special_values_must_stand_where_they_are_right(got: float, want: float, said: str) -> None:
    verdict = judge(lse(0.0, got), lse(0.0, want))
    assert not verdict.passed and verdict.ratio == INF and (verdict.row, verdict.head) == (0, 1)
    assert verdict.special == said
    assert verdict.sentence() == f"lse: {said} at query row 0, head 1"


# Kills: equal infinities counted as an error.
def test_equal_special_values_pass_and_do_not_hide_an_error() -> None:
    want = lse(INF, -INF, 1.0)
    assert judge(lse(INF, -INF, 1.05), want).passed
    verdict = judge(lse(INF, -INF, 1.5), want)
    assert not verdict.passed and verdict.special is None and verdict.head == 2
    assert verdict.ratio == pytest.approx(5.0)


# Kills: special values told after a larger error elsewhere.
def test_special_values_come_first() -> None:
    verdict = judge(lse(900.0, NAN), lse(0.0, 1.0))
    assert verdict.special == "NaN where 1 is right" and verdict.head == 1


# Kills: the mean instead of the worst, a budget of another row, > and >= exchanged at exactly one budget.
def test_worst_row_and_head_in_its_own_budget() -> None:
    want = torch.zeros(2, 3, dtype=torch.float64)
    got, budget = want.clone(), torch.tensor([[1.0, 4.0, 1.0], [0.5, 1.0, 2.0]], dtype=torch.float64)
    got[0, 1], got[1, 0], got[1, 2] = 3.0, -0.5, 1.0
    verdict = compare("max_logits", got, want, budget)
    assert verdict.passed and verdict.ratio == 1.0 and (verdict.row, verdict.head) == (1, 0)
    got[1, 0] = -0.5000001
    verdict = compare("max_logits", got, want, budget)
    assert not verdict.passed and verdict.error == pytest.approx(0.5) and verdict.budget == 0.5


# Kills: out judged by its first dims, or by a mean over dims; one NaN among 512 dims lost in a maximum.
@pytest.mark.parametrize("place", [0, 255, 511])
@pytest.mark.parametrize("value", [0.3, NAN, INF, -INF])
def test_one_wrong_dim_of_512_fails(place: int, value: float) -> None:
    want = torch.rand(3, 2, 512, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 1
    got, budget = want.to(torch.bfloat16), torch.full((3, 2), 2.0**-7, dtype=torch.float64)
    assert compare("out", got, want, budget).passed
    got[2, 1, place] = value
    verdict = compare("out", got, want, budget)
    assert not verdict.passed and (verdict.row, verdict.head) == (2, 1)
    assert (verdict.special is None) == math.isfinite(value)


# Kills: 0 / 0 as NaN, an error against a budget of 0 that passes, a sentence that prints a huge number.
def test_a_budget_of_0_means_exact() -> None:
    assert judge(lse(0.0, 2.0), lse(0.0, 2.0), 0.0).passed
    verdict = judge(lse(0.0, 2.0), lse(0.0, 1.0), 0.0)
    assert not verdict.passed and verdict.ratio == INF
    assert verdict.sentence() == "lse: error 1 where the value must be exact, at query row 0, head 1"
    ratio = in_budgets(torch.tensor([0.0, 1.0, NAN, 3.0]), torch.tensor([0.0, 0.0, 1.0, 2.0]))
    assert ratio.tolist() == [0.0, INF, INF, 1.5]


# Kills: -0 taken for a wrong zero.
def test_minus_0_equals_0() -> None:
    assert judge(lse(-0.0), lse(0.0), 0.0).passed


# Kills: verdicts that mix up outputs when several are judged at once.
def test_outputs_are_judged_each_by_its_own_budget() -> None:
    zero, one = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    pairs = [("lse", one, zero, one * 2), ("max_logits", one, zero, one / 2), ("out", zero, zero, zero)]
    assert [(v.output, v.passed, v.ratio) for v in compare_all(pairs)] == [
        ("lse", True, 0.5), ("max_logits", False, 2.0), ("out", True, 0.0)
    ]  # fmt: skip


# Kills: "and" for "or" between the two tolerances, decode's numbers for prefill.
@pytest.mark.parametrize(
    ("kind", "absolute", "relative"), [("decode", 1e-3, 2.01 / 128), ("prefill", 8e-4, 3.01 / 128)]
)
def test_published_rule_allows_an_absolute_or_a_relative_error(kind: str, absolute: float, relative: float) -> None:
    want = torch.full((1, 1, 512), 10.0)
    want[..., 1] = 0.0

    def accepted(large: float, small: float) -> bool:
        got = want.clone()
        got[..., 0] += large
        got[..., 1] += small
        return published_rule(kind, got, want)[0]

    assert accepted(9.9 * relative, 0.99 * absolute)
    assert not accepted(10.1 * relative, 0.0)
    assert not accepted(0.0, 1.01 * absolute)


# Kills: a cosine that is not checked, or of another formula.
def test_published_rule_limits_the_cosine_distance() -> None:
    want = torch.full((1, 4, 512), 1.0)
    got = want * 1.005
    accepted, distance = published_rule("decode", got, want)
    assert distance == pytest.approx(1 - 2 * 1.005 / (1 + 1.005**2), rel=1e-3) and not accepted
    assert published_rule("decode", want * 1.003, want)[0]
    assert PUBLISHED == {"decode": (1e-3, 2.01 / 128, 5e-6), "prefill": (8e-4, 3.01 / 128, 7e-6)}


# Kills: 0 / 0 in the distance, NaN that a comparison lets through.
def test_published_rule_at_zero_and_nan() -> None:
    zero = torch.zeros(1, 1, 512)
    assert published_rule("prefill", zero, zero) == (True, 0.0)
    assert not published_rule("prefill", zero.masked_fill(torch.arange(512) == 3, NAN), zero)[0]
