"""Ratios of times: intervals by order statistics, and what is left open."""

import random

import pytest

from dsv4_conformance.numerics.timing import Ratio, ratio_of


def test_median_interval_and_spread_of_rounds() -> None:
    ratio = ratio_of([float(n) for n in range(1, 32)], [10.0] * 31)
    assert ratio.median == pytest.approx(1.6) and ratio.rounds == 31
    # Binomial(31, 1/2) is below 8 with probability 0.0017, and below 9 with 0.0053: seven ratios are left out.
    assert [ratio.low, ratio.high] == pytest.approx([0.8, 2.4])
    assert ratio.spread == pytest.approx(1.0)


def test_interval_holds_the_true_median_in_99_of_100_runs() -> None:
    draws = random.Random(5)
    missed = 0
    for _ in range(2000):
        ratio = ratio_of([draws.lognormvariate(0.0, 0.3) for _ in range(31)], [1.0] * 31)
        missed += not ratio.low <= 1.0 <= ratio.high
    assert missed <= 40


def test_verdict_needs_the_whole_interval_and_quiet_rounds() -> None:
    assert Ratio(0.6, 0.5, 0.7, 0.05, 31).against(0.7) == "within"
    assert Ratio(0.6, 0.5, 0.71, 0.05, 31).against(0.7) == "open"
    assert Ratio(0.8, 0.71, 0.9, 0.05, 31).against(0.7) == "above"
    assert Ratio(0.5, 0.4, 0.6, 0.26, 31).against(0.7) == "open"
    assert Ratio(0.8, 0.71, 0.9, 0.26, 31).against(0.7) == "open"


def test_too_few_rounds_say_nothing() -> None:
    assert ratio_of([1.0] * 8, [2.0] * 8).median == 0.5
    with pytest.raises(ValueError, match="7 rounds are too few"):
        ratio_of([1.0] * 7, [2.0] * 7)
