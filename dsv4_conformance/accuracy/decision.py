"""The decision about one look: a non-inferiority test that may pass, a superiority test that may fail, doubt else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsv4_conformance.accuracy.itemtest import broken_questions
from dsv4_conformance.accuracy.profiles import Rule
from dsv4_conformance.accuracy.stats import Bools, Difference, difference, t_quantile


class Verdict(IntEnum):
    """What a comparison says, the worst last."""

    PASS = 0
    INCONCLUSIVE = 1
    FAIL = 2
    INVALID = 3


Verdicts = NDArray[np.int64]


@dataclass(frozen=True)
class Decision:
    """Verdicts of the leading axes, and what they were made from; ``broken`` ``(..., n)`` flags questions.

    ``by_mean``, ``by_floor``, ``by_question``: which of the three grounds for a FAIL hold.
    """

    verdict: Verdicts
    difference: Difference
    broken: Bools
    by_mean: Bools
    by_floor: Bools
    by_question: Bools


def decide(golden: ArrayLike, runs: int, candidate: ArrayLike, repeats: int, rule: Rule) -> Decision:
    """Judge right answers per question ``(..., n)``: ``golden`` in ``runs`` passes, ``candidate`` in ``repeats``.

    FAIL: the drop is surely real and half the margin at least; or at least the floor; or single questions broke and the
    drop is half the margin at least. PASS: surely smaller than the margin. INCONCLUSIVE: neither.
    """
    g, x = np.asarray(golden), np.asarray(candidate)
    d = difference(g, runs, x, repeats)
    df = g.shape[-1] - 1
    notable = d.mean <= -rule.margin / 2
    broken = np.zeros(x.shape, dtype=np.bool_)
    if rule.item_rate > 0:
        broken = broken_questions(g, runs, x, repeats, rule.item_rate / len(rule.looks))
    by_mean = notable & (d.mean + t_quantile(rule.fail_confidence, df) * d.se < 0)
    by_floor = np.asarray(d.mean <= -rule.floor)
    by_question = notable & broken.any(axis=-1)
    failed = by_mean | by_floor | by_question
    passed = d.mean - t_quantile(rule.pass_confidence, df) * d.se > -rule.margin
    verdict = np.where(failed, Verdict.FAIL, np.where(passed, Verdict.PASS, Verdict.INCONCLUSIVE)).astype(np.int64)
    return Decision(verdict, d, broken, np.asarray(by_mean), by_floor, np.asarray(by_question))


def detectable(golden: ArrayLike, runs: int, repeats: int, rule: Rule, power: float = 0.8) -> float:
    """The true drop, a fraction, spread over the questions, that one look fails with probability ``power``.

    From the golden's own noise: it does not depend on what the candidate answered. A drop makes noise as well: what is
    lost at random is lost in some passes only.
    """
    g = np.asarray(golden, dtype=np.float64) / runs
    n = g.shape[-1]
    noise = float((g * (1 - g)).sum()) * runs / (runs - 1) * (1 / runs + 1 / repeats) / n**2
    least = difference(golden, runs, np.zeros(n), repeats).floor
    certain, likely = t_quantile(rule.fail_confidence, n - 1), t_quantile(power, n - 1)
    drop = rule.margin / 2
    for _ in range(60):
        se = max(np.sqrt(noise + drop * (1 - drop) / (n * repeats)), least)
        drop = min(max(certain * se, rule.margin / 2), rule.floor) + likely * se
    return float(drop)
