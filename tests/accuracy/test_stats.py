"""Every statistic against an independent computation: scipy.stats, brute force over all outcomes, hand values."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats

from dsv4_conformance.accuracy import stats
from dsv4_conformance.accuracy.itemtest import broken_questions


def test_difference_by_hand() -> None:
    # Three questions, golden 4 passes (4, 2, 0 right), candidate 2 passes (1, 2, 0 right).
    found = stats.difference([4, 2, 0], 4, [1, 2, 0], 2)
    assert float(found.mean) == pytest.approx((-0.5 + 0.5 + 0.0) / 3)
    assert float(found.clustered) == pytest.approx(math.sqrt(0.5 / 2) / math.sqrt(3))
    pooled = [5 / 6, 4 / 6, 0]
    within = sum(6 / 5 * p * (1 - p) * (1 / 4 + 1 / 2) for p in pooled)
    assert float(found.within) == pytest.approx(math.sqrt(within) / 3)
    assert found.floor == pytest.approx(0.5 / 3 / 2)


def test_each_standard_error_can_be_the_largest() -> None:
    cases = {
        "clustered": stats.difference([8, 0, 8, 0], 8, [0, 8, 8, 0], 8),
        "within": stats.difference([4, 4, 4, 4], 8, [4, 4, 4, 4], 8),
        "floor": stats.difference([8, 0, 8, 0], 8, [8, 0, 8, 0], 8),
    }
    for name, found in cases.items():
        assert float(found.se) == pytest.approx(float(getattr(found, name))) and float(found.se) > 0, name


def test_the_error_within_questions_is_that_of_brute_force() -> None:
    # All 2**6 outcomes of three questions asked K = 1 and k = 1 times: variance of the mean difference.
    p = [0.3, 0.9, 0.5]
    mean = square = expected = 0.0
    for flips in itertools.product((0, 1), repeat=6):
        weight = math.prod(p[i % 3] if f else 1 - p[i % 3] for i, f in enumerate(flips))
        found = stats.difference(flips[:3], 1, flips[3:], 1)
        mean += weight * float(found.mean)
        square += weight * float(found.mean) ** 2
        expected += weight * float(found.within) ** 2
    assert mean == pytest.approx(0)
    assert expected == pytest.approx(square)


def test_leading_axes_are_independent_trials() -> None:
    rng = np.random.default_rng(1)
    g, x = rng.integers(0, 9, (2, 5, 30)), rng.integers(0, 3, (2, 5, 30))
    found = stats.difference(g, 8, x, 2)
    alone = stats.difference(g[1, 3], 8, x[1, 3], 2)
    assert found.se.shape == (2, 5)
    assert (found.mean[1, 3], found.se[1, 3]) == pytest.approx((float(alone.mean), float(alone.se)))


def test_t_quantile() -> None:
    for confidence, df in ((0.95, 29), (0.99, 1318), (1 - 0.01 / 3, 29)):
        assert stats.t_quantile(confidence, df) == pytest.approx(float(scipy.stats.t.ppf(confidence, df)))


@pytest.mark.parametrize(("repeats", "runs"), [(1, 4), (8, 8), (16, 64), (64, 16)])
def test_fisher_of_one_question_is_scipys(repeats: int, runs: int) -> None:
    for x in range(0, repeats + 1, max(1, repeats // 4)):
        for g in range(0, runs + 1, max(1, runs // 4)):
            table = [[x, repeats - x], [g, runs - g]]
            wanted = scipy.stats.fisher_exact(table, alternative="less").pvalue
            assert float(stats.fisher_fewer(x, repeats, g, runs)) == pytest.approx(float(wanted), rel=1e-9)


@pytest.mark.parametrize("counts", [(3, 1319, 0, 10552), (0, 10, 5, 10), (13, 480, 20, 1920), (10, 10, 0, 40)])
def test_fisher_of_a_rate_is_scipys(counts: tuple[int, int, int, int]) -> None:
    a, n, b, m = counts
    wanted = scipy.stats.fisher_exact([[a, n - a], [b, m - b]], alternative="greater").pvalue
    assert stats.fisher_more(*counts) == pytest.approx(float(wanted), rel=1e-8)


def test_fisher_by_hand() -> None:
    # 2 of 4 right answers fall into the 2 of the candidate's with probability 1 / C(4, 2).
    assert float(stats.fisher_fewer(0, 2, 2, 2)) == pytest.approx(1 / 6)


@pytest.mark.parametrize("seed", range(5))
def test_benjamini_hochberg_is_the_step_up_of_the_paper(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = np.where(rng.random(40) < 0.3, rng.random(40) ** 6, rng.random(40))
    rank = max((i for i, value in enumerate(sorted(p), 1) if value <= 0.05 * i / 40), default=0)
    wanted = p <= sorted(p)[rank - 1] if rank else np.zeros(40, dtype=bool)
    assert (stats.benjamini_hochberg(p, 0.05) == wanted).all()
    adjusted = scipy.stats.false_discovery_control(p) <= 0.05
    assert (stats.benjamini_hochberg(p, 0.05) == adjusted).all()


def test_benjamini_hochberg_by_row() -> None:
    p = np.array([[0.001, 0.5, 0.9], [0.5, 0.5, 0.5], [0.04, 0.03, 0.05]])
    assert stats.benjamini_hochberg(p, 0.05).tolist() == [[True, False, False], [False] * 3, [True] * 3]


@pytest.mark.parametrize(("lost", "gained"), [(6, 6), (9, 5), (13, 5), (5, 0), (0, 0), (0, 4)])
def test_mcnemar_by_counting(lost: int, gained: int) -> None:
    n = lost + gained
    wanted = Fraction(sum(math.comb(n, j) for j in range(lost, n + 1)), 2**n)
    assert float(stats.mcnemar_fewer(lost, gained)) == pytest.approx(float(wanted))


def test_mcnemar_published_values() -> None:
    for lost, gained, p in (
        (6, 6, 0.61),
        (9, 5, 0.21),
        (13, 5, 0.048),
        (15, 5, 0.021),
        (18, 5, 0.0053),
        (10, 0, 0.001),
    ):
        assert float(stats.mcnemar_fewer(lost, gained)) == pytest.approx(p, rel=0.03)


@pytest.mark.parametrize(("count", "trials"), [(0, 20), (3, 20), (20, 20), (1269, 1319)])
def test_clopper_pearson_is_scipys(count: int, trials: int) -> None:
    wanted = scipy.stats.binomtest(count, trials).proportion_ci(0.95, "exact")
    assert stats.clopper_pearson(count, trials) == pytest.approx((float(wanted.low), float(wanted.high)))


def test_wilson_is_scipys() -> None:
    wanted = scipy.stats.binomtest(1269, 1319, alternative="two-sided").proportion_ci(0.90, "wilson").low
    found = stats.wilson_lower(1269, 1319, float(scipy.stats.norm.ppf(0.95)))
    assert float(found) == pytest.approx(float(wanted))


def test_binomial_tail() -> None:
    for count in (0, 1, 7, 15):
        wanted = scipy.stats.binom.sf(count - 1, 480, 0.03)
        assert stats.binomial_more(count, 480, 0.03) == pytest.approx(float(wanted))


def test_a_broken_question_is_flagged_and_luck_is_not() -> None:
    golden = np.full(30, 63)
    candidate = np.full(30, 16)
    candidate[7], candidate[9] = 0, 14
    flags = broken_questions(golden, 64, candidate, 16, 0.01)
    assert np.flatnonzero(flags).tolist() == [7]
    assert not broken_questions(golden, 64, np.minimum(candidate, 7), 7, 0.01).any(), "too few repeats"
