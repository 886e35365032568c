"""The gate: a run against a golden under a profile's rule, one judgement with everything that was found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from dsv4_conformance.accuracy import comparable, rates
from dsv4_conformance.accuracy.decision import Decision, Verdict, decide, detectable
from dsv4_conformance.accuracy.golden_record import Golden
from dsv4_conformance.accuracy.profiles import Rule
from dsv4_conformance.accuracy.rates import Finding
from dsv4_conformance.accuracy.records import AccuracyRun, Session
from dsv4_conformance.accuracy.soundness import COPIES
from dsv4_conformance.accuracy.stats import fisher_fewer, t_quantile
from dsv4_conformance.accuracy.tally import Tally, complete_passes, tally
from dsv4_conformance.errors import ExitCode

EXIT_CODES = {
    Verdict.PASS: ExitCode.QUALIFIES,
    Verdict.FAIL: ExitCode.FAILED,
    Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
    Verdict.INVALID: ExitCode.INVALID_COMPARISON,
}


@dataclass(frozen=True)
class Moved:
    """A question that changed sides: right answers and passes of golden and candidate, and Fisher's p for a loss."""

    item: str
    golden: int
    runs: int
    candidate: int
    repeats: int
    p: float

    @property
    def change(self) -> float:
        """Candidate minus golden, share of right answers."""
        return self.candidate / self.repeats - self.golden / self.runs


@dataclass(frozen=True)
class Score:
    """The score's side of a judgement, as fractions. ``low``, ``high``: two-sided 95 % interval of the difference;
    ``seen``: the true drop that a run like this fails 4 times in 5; ``broken``: questions said to be broken."""

    candidate: float
    golden: float
    difference: float
    se: float
    low: float
    high: float
    seen: float
    lost: tuple[Moved, ...]
    gained: tuple[Moved, ...]
    broken: tuple[Moved, ...]


@dataclass(frozen=True)
class Judgement:
    """What the gate says. ``invalid``: why nothing can be said, one clause each; then ``score`` is None.

    ``passes``: passes of the candidate that were judged; ``next_look``: to how many more may be asked, None if no more;
    ``sessions``: who was asked for the answers, and when.
    """

    verdict: Verdict
    profile: str
    rule: Rule
    golden: Golden
    candidate: str
    passes: int
    next_look: int | None
    invalid: tuple[str, ...]
    score: Score | None
    findings: tuple[Finding, ...]
    sessions: tuple[Session, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """0 PASS, 1 FAIL, 6 INCONCLUSIVE, 7 INVALID."""
        return EXIT_CODES[self.verdict]

    @property
    def warns(self) -> tuple[Finding, ...]:
        """Findings that are no failure and worth a look."""
        return tuple(found for found in self.findings if found.warns and found.verdict == Verdict.PASS)

    def finding(self, gate: str) -> Finding | None:
        """The finding of one gate, None where the comparison is invalid."""
        return next((found for found in self.findings if found.gate == gate), None)

    def numbers(self) -> dict[str, Any]:
        """Everything a program may want, as JSON."""
        return {
            "verdict": self.verdict.name,
            "profile": self.profile,
            "task": self.golden.task,
            "candidate": self.candidate,
            "golden": {"name": self.golden.name, "sha256": self.golden.content_hash, "runs": self.golden.runs},
            "passes": self.passes,
            "next_look": self.next_look,
            "invalid": list(self.invalid),
            "score": None if self.score is None else asdict(self.score),
            "sessions": [asdict(session) for session in self.sessions],
            "findings": [{**asdict(found), "verdict": found.verdict.name} for found in self.findings],
            "rule": self.rule.model_dump(mode="json"),
        }


def judge(golden: Golden, run: AccuracyRun, rule: Rule, profile: str) -> Judgement:
    """Judge a run at the last look that its complete passes allow; passes beyond the last look are not used."""
    passes = complete_passes(run)
    look = rule.look(passes)
    counted = tally(run, look or max(passes, 1))
    reasons = list(comparable.differing_fields(golden, run))
    if not reasons:
        counted = _in_order(counted, golden, run)
        run = replace(run, header=replace(run.header, items=golden.items))
        checks = [comparable.incomplete(golden, run, passes, rule)]
        if passes:
            checks.append(comparable.copied(golden, run, look or passes))
            checks.append(comparable.differing_questions(golden, run, counted))
            checks.append(comparable.untrustworthy(golden, run, counted, rule))
        if look is not None:  # of passes that are missing it is said that they are, and the same command mends both
            checks.append(comparable.unfinished(run))
        reasons = list(chain(*checks))
    following = rule.next_look(look or 0)
    base = Judgement(
        verdict=Verdict.INVALID,
        profile=profile,
        rule=rule,
        golden=golden,
        candidate=run.header.model,
        passes=look or passes,
        next_look=following,
        invalid=tuple(reasons),
        score=None,
        findings=(),
        sessions=run.sessions,
    )
    if reasons or look is None:
        return base
    verdict, score = _score(golden, counted, rule)
    found = (_of_score(verdict, score, rule), *rates.findings(golden, counted, rule), *_fresh(golden, run, look))
    worst = max((finding.verdict for finding in found), default=Verdict.PASS)
    return replace(base, verdict=worst, score=score, findings=found)


def _in_order(counted: Tally, golden: Golden, run: AccuracyRun) -> Tally:
    """The counts in the order of the golden's questions."""
    place = {item: i for i, item in enumerate(run.header.items)}
    order = [place[item] for item in golden.items]
    changes: dict[str, Any] = {}
    for name, value in vars(counted).items():
        if isinstance(value, np.ndarray):
            changes[name] = value[order]
        elif name in ("prompts", "expected"):
            changes[name] = tuple(value[i] for i in order)
    return replace(counted, **changes)


def _score(golden: Golden, counted: Tally, rule: Rule) -> tuple[Verdict, Score]:
    """Verdict on the score: a PASS must hold with every errored request wrong, a FAIL with every one right."""
    right, repeats = golden.counts("correct"), counted.repeats
    worst = decide(right, golden.runs, counted.correct, repeats, rule)
    best = decide(right, golden.runs, counted.correct + counted.errors, repeats, rule)
    verdict = Verdict.INCONCLUSIVE
    if int(worst.verdict) == int(best.verdict):
        verdict = Verdict(int(worst.verdict))
    return verdict, _described(golden, counted, worst, best, rule)


def _described(golden: Golden, counted: Tally, worst: Decision, best: Decision, rule: Rule) -> Score:
    df = len(golden.rows) - 1
    half = t_quantile(0.975, df)
    lower, upper = worst.difference, best.difference
    moved = _moved(golden, counted)
    broken = {golden.items[i] for i in np.flatnonzero(best.broken)}
    return Score(
        candidate=float(counted.correct.sum() / counted.answers),
        golden=golden.score,
        difference=float(lower.mean),
        se=float(lower.se),
        low=max(-1.0, float(lower.mean - half * lower.se)),
        high=min(1.0, float(upper.mean + half * upper.se)),
        seen=detectable(golden.counts("correct"), golden.runs, counted.repeats, rule),
        lost=tuple(sorted((m for m in moved if m.change <= -0.5), key=lambda m: (m.change, m.p))),
        gained=tuple(sorted((m for m in moved if m.change >= 0.5), key=lambda m: -m.change)),
        broken=tuple(m for m in moved if m.item in broken),
    )


def _moved(golden: Golden, counted: Tally) -> list[Moved]:
    """Every question with its counts; errored requests are left out of neither side, so that they are no loss."""
    right = counted.correct + counted.errors
    p = fisher_fewer(right, counted.repeats, golden.counts("correct"), golden.runs)
    return [
        Moved(row.item, row.correct, golden.runs, int(right[i]), counted.repeats, float(p[i]))
        for i, row in enumerate(golden.rows)
    ]


def _fresh(golden: Golden, run: AccuracyRun, passes: int) -> Iterator[Finding]:
    """At temperature 0 the same words are as they should be, and yet what a cache before another build would give."""
    alike = comparable.likeness(golden, run, passes)
    if golden.greedy and alike.spoken and alike.words >= COPIES * alike.spoken:
        told = (
            f"{alike.words:,} of {alike.spoken:,} replies are byte for byte the golden's: either the build does not "
            "differ in numerics, or a cache answers in its place"
        )
        yield Finding("fresh", Verdict.PASS, told, True, {"count": alike.words, "of": alike.spoken})


def _of_score(verdict: Verdict, score: Score, rule: Rule) -> Finding:
    numbers = {name: getattr(score, name) for name in ("difference", "se", "low", "high", "seen")}
    told = (
        f"score {100 * score.candidate:.2f} %, golden {100 * score.golden:.2f} %: {100 * score.difference:+.2f} "
        f"points, 95 % interval {100 * score.low:+.2f} to {100 * score.high:+.2f}"
    )
    return Finding("score", verdict, told, verdict == Verdict.PASS and score.high < 0, numbers)
