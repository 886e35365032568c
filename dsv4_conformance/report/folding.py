"""One run, folded from its journal: counts, errors, margins per requirement, and as many cases as a page can hold.

Memory is bounded: sums per requirement, and at most ``keep`` cases: first those that do not qualify, then those with
the largest errors.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dsv4_conformance.plugin.journal import Footer, Header, Result
from dsv4_conformance.plugin.verdict import SEVERITY, order
from dsv4_conformance.report import escaping
from dsv4_conformance.report.evidence import Evidence
from dsv4_conformance.report.kept import Case, case_of, identifier
from dsv4_conformance.report.measured import (
    BINS_PER_DECADE,
    ERROR_DECADES,
    bin_of,
    mapping,
    margins,
    ratios,
    worst,
)
from dsv4_conformance.report.stream import JournalFile
from dsv4_conformance.status import CHECKED, QUALIFYING, Status

KEPT_RECORDS = 500
"""Accuracy and performance records of one run that are kept whole."""
PERFORMANCE = "suites/performance/"


@dataclass
class Rule:
    """A requirement in one run. ``worst``: largest error in budgets, ``held``: without waived cases; ``margins``: known
    mistake -> its best rejection, in budgets; ``bins``: cases by their worst error on measured.ERROR_DECADES;
    ``area``: the suite's folder."""

    id: str
    title: str = ""
    level: str = "MUST"
    area: str = ""
    counts: Counter[Status] = field(default_factory=Counter)
    worst: float | None = None
    worst_output: str = ""
    held: float | None = None
    held_output: str = ""
    margins: dict[str, float] = field(default_factory=dict)
    bins: list[int] = field(default_factory=lambda: [0] * ((ERROR_DECADES[1] - ERROR_DECADES[0]) * BINS_PER_DECADE))
    duration_s: float = 0.0

    @property
    def status(self) -> Status:
        """The worst status of its cases."""
        return min(self.counts, key=SEVERITY.index)

    @property
    def cases(self) -> int:
        """How many cases it has."""
        return sum(self.counts.values())

    @property
    def checked(self) -> int:
        """In how many an output was compared with something."""
        return sum(self.counts[status] for status in CHECKED)

    @property
    def failed(self) -> int:
        """How many do not qualify."""
        return sum(n for status, n in self.counts.items() if status not in QUALIFYING)

    @property
    def margin(self) -> float | None:
        """The least rejected known mistake."""
        return min(self.margins.values(), default=None)

    @property
    def weakest(self) -> str:
        """Its name."""
        return min(self.margins, key=lambda name: self.margins[name], default="")

    def add(self, result: Result, found: dict[str, float]) -> None:
        """Count one case."""
        self.counts[result.status] += 1
        self.duration_s += result.duration_s
        if not self.area:
            parts = result.nodeid.partition("::")[0].split("/")
            self.area = escaping.name(parts[1]) if len(parts) > 2 and parts[0] == "suites" else ""
        top = worst(found)
        if top is not None:
            self.bins[bin_of(top, ERROR_DECADES)] += 1
            if self.worst is None or top > self.worst:
                self.worst = top
                self.worst_output = escaping.name(max(found, key=lambda name: found[name]))
            if result.status is not Status.WAIVED and (self.held is None or top > self.held):
                self.held = top
                self.held_output = escaping.name(max(found, key=lambda name: found[name]))
        for mistake, margin in margins(result.record):
            mistake = escaping.name(mistake)
            self.margins[mistake] = max(self.margins.get(mistake, 0.0), margin)


@dataclass
class Run:
    """A journal, folded. ``mark``: its letter in the report; ``kept``: cases for the page, ``left_out``: how many
    others there are; ``bad``: those that do not qualify, at most as many as are kept. ``doubts``, ``waiver_doubts``:
    what contradicts itself (evidence.Evidence); ``waived``: failures per waiver."""

    mark: str
    path: str
    header: Header
    footer: Footer | None
    planned: int
    missing: int
    unplanned: int
    torn: bool
    counts: Counter[Status]
    rules: dict[str, Rule]
    kept: list[Case]
    left_out: int
    accuracy: list[dict[str, Any]]
    performance: list[Result]
    faults: list[Result]
    results_hash: str
    doubts: list[str] = field(default_factory=list)
    waiver_doubts: list[str] = field(default_factory=list)
    waived: Counter[str] = field(default_factory=Counter)
    label: str = ""

    @property
    def statuses(self) -> set[Status]:
        """Those that occur."""
        return {status for status, number in self.counts.items() if number}

    @property
    def total(self) -> int:
        """Cases with a result, gaps included."""
        return sum(self.counts.values())

    @property
    def checked(self) -> int:
        """Cases whose output was compared with something."""
        return sum(n for status, n in self.counts.items() if status in CHECKED)

    @property
    def bad(self) -> list[Case]:
        """Kept cases that do not qualify, by requirement."""
        return [case for case in self.kept if case.bad]

    @property
    def duration_s(self) -> float:
        """Seconds in tests, all workers together."""
        return sum(rule.duration_s for rule in self.rules.values())


def fold(journal: JournalFile, mark: str, keep: int) -> Run:
    """One pass over the results of ``journal``."""
    header = journal.header
    named = {rule.id: rule for rule in header.requirements}
    rules: dict[str, Rule] = {}
    counts: Counter[Status] = Counter()
    waived: Counter[str] = Counter()
    evidence = Evidence(header)
    digest = _Verdicts()
    best = _Best(keep)
    accuracy: list[dict[str, Any]] = []
    performance: list[Result] = []
    faults: list[Result] = []
    for result in journal.results():
        rule = rules.get(result.requirement)
        if rule is None:
            known = named.get(result.requirement)
            title, level = (known.title, known.level) if known else ("", "MUST")
            rule = Rule(identifier(result.requirement), escaping.name(title), level)
            rules[result.requirement] = rule
        found = ratios(result.record)
        rule.add(result, found)
        counts[result.status] += 1
        waived[result.waiver] += result.status is Status.WAIVED
        evidence.add(result)
        digest.add(result)
        best.add(result, found)
        told = mapping(result.record.get("accuracy"))
        if told and len(accuracy) < KEPT_RECORDS:
            accuracy.append({"requirement": result.requirement, "status": result.status, **told})
        for kept, wanted in ((performance, result.nodeid.startswith(PERFORMANCE)), (faults, "fault" in result.record)):
            if wanted and len(kept) < KEPT_RECORDS:
                kept.append(result)
    return Run(
        mark=mark,
        path=str(journal.path),
        header=header,
        footer=journal.footer,
        planned=journal.planned,
        missing=journal.missing,
        unplanned=journal.unplanned,
        torn=journal.torn,
        counts=counts,
        rules={rules[name].id: rules[name] for name in sorted(rules, key=lambda name: order(name[:40]))},
        kept=best.results(),
        left_out=sum(counts.values()) - len(best),
        accuracy=_once(accuracy),
        performance=performance,
        faults=faults,
        results_hash=digest.hex(),
        doubts=evidence.doubts(),
        waiver_doubts=evidence.waivers(),
        waived=+waived,
    )


def _once(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several requirements look at one accuracy run: one record for each, with all their statuses."""
    told: dict[str, dict[str, Any]] = {}
    for record in records:
        key = str((record.get("task"), record.get("candidate"), record.get("paragraph")))
        kept = told.setdefault(key, {**record, "statuses": {}})
        kept["statuses"][record["requirement"]] = str(record["status"])
    return list(told.values())


class _Verdicts:
    """plugin.journal.results_hash of results that are not kept: their sorted lines, and nothing else."""

    def __init__(self) -> None:
        self._cases: dict[Status, list[str]] = defaultdict(list)

    def add(self, result: Result) -> None:
        self._cases[result.status].append(result.case_id)

    def hex(self) -> str:
        lines = sorted(f"{case} {status}" for status, cases in self._cases.items() for case in cases)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class _Best:
    """At most ``size`` results: those that do not qualify, then those with the largest errors, the earliest first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[bool, float, int, Case]] = []
        self._seen = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, result: Result, found: dict[str, float]) -> None:
        top = worst(found)
        self._seen += 1
        rank = (result.status not in QUALIFYING, -math.inf if top is None else top, -self._seen)
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, (*rank, case_of(result)))
        elif rank > self._heap[0][:3]:
            heapq.heapreplace(self._heap, (*rank, case_of(result)))

    def results(self) -> list[Case]:
        chosen = sorted(self._heap, key=lambda entry: (order(entry[3].requirement[:40]), -entry[2]))
        return [entry[3] for entry in chosen]
