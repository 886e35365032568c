"""The arithmetic of verdicts: paired differences, their standard errors, exact tests. All of it vectorised.

Counts are arrays ``(..., n)``: the last axis holds the questions, leading axes any number of independent trials, so
that the code that judges one run is the code whose error rates are simulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, bdtrc, betaincinv, gammaln, stdtrit

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Difference:
    """Candidate minus golden, as fractions; every field has the shape of the leading axes.

    ``clustered``: the spread of per-question differences, as if the questions were a sample of all questions.
    ``within``: what repeats of the same questions vary by. ``floor``: half a flip of one question in the smaller
    number of passes, below which no run can be sure. ``se`` is the largest: doubt widens the interval.
    """

    mean: Floats
    clustered: Floats
    within: Floats
    floor: float

    @property
    def se(self) -> Floats:
        """The standard error that verdicts use."""
        return np.maximum(np.maximum(self.clustered, self.within), self.floor)


def difference(golden: ArrayLike, runs: int, candidate: ArrayLike, repeats: int) -> Difference:
    """Paired difference of right answers per question: ``golden`` in ``runs`` passes, ``candidate`` in ``repeats``."""
    g, x = np.asarray(golden, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    n = g.shape[-1]
    d = x / repeats - g / runs
    pooled = (g + x) / (runs + repeats)
    small = (runs + repeats) / (runs + repeats - 1)  # p(1 - p) of an estimated p is too small by this factor
    variance = small * pooled * (1 - pooled) * (1 / runs + 1 / repeats)
    return Difference(
        mean=np.asarray(d.mean(axis=-1)),
        clustered=np.asarray(d.std(axis=-1, ddof=1) / np.sqrt(n)),
        within=np.asarray(np.sqrt(variance.sum(axis=-1)) / n),
        floor=0.5 / (n * min(runs, repeats)),
    )


def t_quantile(confidence: float, df: int) -> float:
    """Student's t: below this value lies a share ``confidence``."""
    return float(stdtrit(df, confidence))


def fisher_fewer(x: ArrayLike, repeats: int, g: ArrayLike, runs: int) -> Floats:
    """One-sided exact p-value that a candidate got so few of ``repeats`` right, if it is as good as the golden.

    Fisher: given the total x + g of right answers in repeats + runs, the candidate's share is hypergeometric. Counts of
    any shape, whole numbers from 0 to ``repeats`` and ``runs``.
    """
    table = _fisher_table(int(repeats), int(runs))
    return np.asarray(table[np.asarray(x, dtype=np.int64), np.asarray(g, dtype=np.int64)])


@lru_cache(maxsize=64)
def _fisher_table(repeats: int, runs: int) -> Floats:
    """P-values ``(repeats + 1, runs + 1)`` for every pair of counts."""
    x, g = np.arange(repeats + 1), np.arange(runs + 1)
    total = x[:, None] + g[None, :]
    low = np.zeros(total.shape)
    for j in range(repeats + 1):  # P(X = j), added where j does not exceed x
        possible = (total - j >= 0) & (total - j <= runs)
        other = np.clip(total - j, 0, runs)
        log = _log_choose(repeats, j) + _log_choose(runs, other) - _log_choose(repeats + runs, total)
        low += np.where(possible & (j <= x[:, None]), np.exp(log), 0.0)
    return np.minimum(low, 1.0)


def fisher_more(count: int, trials: int, count0: int, trials0: int) -> float:
    """One-sided exact p-value that ``count`` of ``trials`` is so many, given ``count0`` of ``trials0``."""
    total = count + count0
    j = np.arange(count, min(trials, total) + 1)
    j = j[(total - j >= 0) & (total - j <= trials0)]
    log = _log_choose(trials, j) + _log_choose(trials0, total - j) - _log_choose(trials + trials0, np.asarray(total))
    return float(min(1.0, np.exp(log).sum()))


def _log_choose(n: int, k: ArrayLike) -> Floats:
    k = np.asarray(k, dtype=np.float64)
    return np.asarray(gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0))


def benjamini_hochberg(p: ArrayLike, rate: float) -> Bools:
    """Which p-values of the last axis are flagged, with at most ``rate`` of the flags expected to be false."""
    p = np.asarray(p, dtype=np.float64)
    n = p.shape[-1]
    ordered = np.sort(p, axis=-1)
    under = ordered <= rate * np.arange(1, n + 1) / n
    last = np.where(under.any(axis=-1), n - np.argmax(under[..., ::-1], axis=-1), 0)
    cut = np.take_along_axis(ordered, np.maximum(last - 1, 0)[..., None], axis=-1)
    return np.asarray((p <= cut) & (last > 0)[..., None])


def mcnemar_fewer(lost: ArrayLike, gained: ArrayLike) -> Floats:
    """One-sided exact McNemar p-value that so many of the questions that changed were lost."""
    lost, gained = np.asarray(lost, dtype=np.int64), np.asarray(gained, dtype=np.int64)
    total = lost + gained
    # P(at least `lost` of `total` heads) is the same as P(at most `gained`), by symmetry.
    return np.where(total > 0, bdtr(gained, np.maximum(total, 1), 0.5), 1.0)


def binomial_more(count: int, trials: int, rate: float) -> float:
    """Probability of ``count`` or more in ``trials`` at this rate."""
    return 1.0 if count <= 0 else float(bdtrc(count - 1, trials, rate))


def clopper_pearson(count: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a rate."""
    tail = (1 - confidence) / 2
    low = 0.0 if count == 0 else float(betaincinv(count, trials - count + 1, tail))
    high = 1.0 if count == trials else float(betaincinv(count + 1, trials - count, 1 - tail))
    return low, high


def wilson_lower(count: ArrayLike, trials: int, z: float) -> Floats:
    """Lower end of Wilson's score interval for the rate of ``count`` in ``trials``, ``z`` standard errors wide."""
    p = np.asarray(count, dtype=np.float64) / trials
    centre = p + z * z / (2 * trials)
    return np.asarray((centre - z * np.sqrt(p * (1 - p) / trials + (z / (2 * trials)) ** 2)) / (1 + z * z / trials))
