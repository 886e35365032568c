"""Operating characteristics: how often a gate passes, fails or stays in doubt when the truth is known.

Golden and candidate are drawn from the item model, and judged by the code that judges real runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dsv4_conformance.accuracy.decision import Verdict, Verdicts, decide
from dsv4_conformance.accuracy.item_model import Change, Floats, ItemModel
from dsv4_conformance.accuracy.profiles import Rule
from dsv4_conformance.accuracy.stats import clopper_pearson

ROWS = 250
"""Trials drawn at a time, so that memory stays small."""


def scenarios(task: str, items: int) -> tuple[Change, ...]:
    """What is simulated for a task; the number of broken questions is one point's worth of GSM8K's."""
    same = (Change("unchanged"), Change("other numerics, same score", "jitter"))
    if task == "aime25":
        return (
            *same,
            Change("every question worse, -1 point", "uniform", 0.01),
            Change("every question worse, -3 points", "uniform", 0.03),
            Change("one question broken", "broken", items=1),
            Change("one question passes half the time", "half", items=1),
        )
    broken = max(1, round(items * 13 / 1319))
    return (
        *same,
        Change("every question worse, -0.5 points", "uniform", 0.005),
        Change("every question worse, -1 point", "uniform", 0.01),
        Change("undecided questions worse, -1 point", "unstable", 0.01),
        Change(f"{broken} questions broken", "broken", items=broken),
        Change("every question worse, -2 points", "uniform", 0.02),
    )


@dataclass(frozen=True)
class Rates:
    """How ``trials`` trials ended. ``passes``: mean number of passes of the candidate until the verdict."""

    trials: int
    passed: int
    failed: int
    passes: float

    @property
    def doubtful(self) -> int:
        """Trials without a verdict after the last look."""
        return self.trials - self.passed - self.failed

    def interval(self, count: int) -> tuple[float, float]:
        """Exact 95 % interval of one of the rates."""
        return clopper_pearson(count, self.trials)


Judge = Callable[[Floats, Floats, np.random.Generator], tuple[Verdicts, Floats]]
"""From pass probabilities before and after the change, ``(trials, n)``, to verdicts and passes used, ``(trials,)``."""


def our_gate(rule: Rule, runs: int) -> Judge:
    """The gate of this package against a golden of ``runs`` passes, look by look until it decides."""

    def judge(p: Floats, q: Floats, rng: np.random.Generator) -> tuple[Verdicts, Floats]:
        golden, right = rng.binomial(runs, p), np.zeros(p.shape, dtype=np.int64)
        verdict = np.full(len(p), Verdict.INCONCLUSIVE, dtype=np.int64)
        used = np.zeros(len(p))
        done = 0
        for look in rule.looks:
            right = right + rng.binomial(look - done, q)
            undecided = verdict == Verdict.INCONCLUSIVE
            used = np.where(undecided, look, used)
            now = decide(golden, runs, right, look, rule).verdict
            verdict, done = np.where(undecided, now, verdict), look
        return verdict, used

    return judge


def simulate(
    judges: Mapping[str, Judge], model: ItemModel, changes: tuple[Change, ...], trials: int, seed: int = 0
) -> dict[str, dict[str, Rates]]:
    """Scenario -> gate -> rates. All gates and scenarios get the same question sets, and fresh draws of answers."""
    tallies: dict[str, dict[str, list[float]]] = {c.name: {j: [0.0, 0.0, 0.0] for j in judges} for c in changes}
    for first in range(0, trials, ROWS):
        rows = min(ROWS, trials - first)
        p = model.draw(np.random.default_rng([seed, first]), rows)
        for number, change in enumerate(changes):
            q = change.apply(p, np.random.default_rng([seed, first, number, 0]))
            for name, judge in judges.items():
                rng = np.random.default_rng([seed, first, number, *name.encode()])
                verdict, used = judge(p, q, rng)
                tally = tallies[change.name][name]
                tally[0] += float((verdict == Verdict.PASS).sum())
                tally[1] += float((verdict == Verdict.FAIL).sum())
                tally[2] += float(used.sum())
    return {
        scenario: {name: Rates(trials, int(t[0]), int(t[1]), t[2] / trials) for name, t in found.items()}
        for scenario, found in tallies.items()
    }
