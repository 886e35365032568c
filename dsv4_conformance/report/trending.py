"""Runs in order of time: verdicts, how each requirement fared, when it went wrong, when it was last checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from dsv4_conformance.errors import BadInput
from dsv4_conformance.report.folding import Rule, Run
from dsv4_conformance.report.gathering import Gathered, gather
from dsv4_conformance.report.measured import told
from dsv4_conformance.status import QUALIFYING, Status

MOVED = 0.25
"""From this many budgets on a change of the largest error makes a requirement worth a look."""


@dataclass(frozen=True)
class Course:
    """One requirement over the runs, None where a run did not plan it."""

    id: str
    title: str
    rules: tuple[Rule | None, ...]

    @property
    def statuses(self) -> tuple[Status | None, ...]:
        """Its worst status in each run."""
        return tuple(None if rule is None else rule.status for rule in self.rules)

    @property
    def worst(self) -> tuple[float | None, ...]:
        """Its largest error in each run, in budgets."""
        return tuple(None if rule is None else rule.worst for rule in self.rules)

    @property
    def last_checked(self) -> int | None:
        """Place of the last run in which anything of it was compared; None if none did."""
        return next((n for n in reversed(range(len(self.rules))) if (rule := self.rules[n]) and rule.checked), None)

    @property
    def flips(self) -> int:
        """How often it went from good to bad or back."""
        good = [status in QUALIFYING for status in self.statuses if status is not None]
        return sum(a != b for a, b in pairwise(good))

    @property
    def bad_since(self) -> int | None:
        """Place of the run since which it has not qualified; None if it does, or is not planned, in the last one."""
        since = None
        for place in reversed(range(len(self.rules))):
            status = self.statuses[place]
            if status is None:
                continue
            if status in QUALIFYING:
                break
            since = place
        return since if self.statuses[-1] is not None else None

    @property
    def moved(self) -> tuple[float, float] | None:
        """Its largest errors in the first and the last run that have one, if they differ by ``MOVED`` or more."""
        known = [value for value in self.worst if value is not None]
        far = len(known) > 1 and (known[0] == float("inf")) != (known[-1] == float("inf"))
        return (known[0], known[-1]) if far or (len(known) > 1 and abs(known[-1] - known[0]) >= MOVED) else None

    @property
    def notable(self) -> bool:
        """Whether it is worth a line of its own."""
        unchecked = self.last_checked is not None and self.last_checked != len(self.rules) - 1
        return bool(self.flips or self.bad_since is not None or self.moved or unchecked)


@dataclass(frozen=True)
class Trend:
    """Runs, oldest first, and the course of every requirement."""

    gathered: Gathered
    courses: tuple[Course, ...]

    @property
    def runs(self) -> list[Run]:
        """The runs."""
        return self.gathered.runs


def trend(paths: Sequence[Path]) -> Trend:
    """The journals, sorted by when their runs began. Raises BadInput for fewer than two."""
    if len(paths) < 2:
        raise BadInput("A trend needs two journals or more; give those of earlier runs as well.")
    first = gather(paths, page_cases=2 * len(paths))
    started = {journal.path: journal.header.started for journal in first.journals}
    ordered = sorted(paths, key=lambda path: started[path])
    gathered = first if list(paths) == ordered else gather(ordered, page_cases=2 * len(paths))
    courses = [
        Course(rule.id, rule.title, tuple(run.rules.get(rule.id) for run in gathered.runs)) for rule in gathered.rules
    ]
    return Trend(gathered, tuple(courses))


def remarks(course: Course, marks: Sequence[str]) -> str:
    """What is notable about a requirement, in a few words; ``marks``: the runs' letters."""
    words = []
    if course.bad_since is not None:
        words.append(f"bad since {marks[course.bad_since]}")
    if course.flips > 1:
        words.append(f"changed sides {course.flips} times")
    elif course.flips and course.bad_since is None:
        words.append("good again")
    if course.last_checked is None:
        words.append("never checked")
    elif course.last_checked != len(marks) - 1:
        words.append(f"last checked in {marks[course.last_checked]}")
    if course.moved:
        words.append(f"error {told(course.moved[0])} → {told(course.moved[1])}")
    return ", ".join(words)
