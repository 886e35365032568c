"""What a report tells beside the requirements: environment, failures, waivers, gaps, declarations; as plain rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from dsv4_conformance.plugin.journal import Header, WaiverRecord
from dsv4_conformance.report import escaping
from dsv4_conformance.report.folding import Run
from dsv4_conformance.report.gathering import Gathered, build, by_id, day, device, implementation, suites
from dsv4_conformance.report.kept import Case
from dsv4_conformance.status import Status

SHOWN_FAILURES = 200
"""Failures that are told one by one, of each run; one for each requirement comes first."""


@dataclass(frozen=True)
class Fact:
    """A row of the environment: one value per run. ``main``: it is shown without being asked for."""

    name: str
    values: tuple[str, ...]
    main: bool = False

    @property
    def differs(self) -> bool:
        """Whether the runs do not agree."""
        return len(set(self.values)) > 1


def facts(gathered: Gathered) -> list[Fact]:
    """The environment of every run, field by field."""
    headers = [run.header for run in gathered.runs]

    def fact(name: str, value: Callable[[Header], str], main: bool = False) -> Fact:
        return Fact(name, tuple(escaping.line(value(header), 400) for header in headers), main)

    packages = sorted({name for header in headers for name in header.environment.packages})
    environment = [
        fact("implementation", implementation, True),
        fact("build", build, True),
        fact("device", lambda h: device(h.environment, h.device), True),
        fact("compute capability", _capabilities),
        fact("driver", lambda h: h.environment.driver, True),
        fact("torch", lambda h: h.environment.packages.get("torch", ""), True),
        fact("Python", lambda h: h.environment.python),
        fact("platform", lambda h: h.environment.platform),
        fact("CPU cores", lambda h: str(h.environment.cpu_count)),
        fact("suites", suites, True),
        fact("profile, seed", lambda h: f"{h.profile}, {h.seed}", True),
        fact("started (UTC)", lambda h: day(h.started), True),
        Fact(
            "finished (UTC)", tuple(day(run.footer.finished) if run.footer else "did not end" for run in gathered.runs)
        ),
        Fact("time in tests", tuple(f"{run.duration_s:,.0f} s" for run in gathered.runs)),
        fact("workers", lambda h: str(h.workers)),
        *(fact(name, _package(name)) for name in packages if name != "torch"),
        fact("plan hash", lambda h: h.plan_hash),
        Fact("results hash", tuple(run.results_hash for run in gathered.runs)),
        fact("run", lambda h: h.run_id),
        fact("adapter", lambda h: h.implementation.requested),
        fact("homepage", lambda h: str(h.implementation.identity.get("homepage") or "")),
        fact("notes", lambda h: "; ".join(map(str, _list(h.implementation.identity.get("notes"))))),
        fact("merged from", lambda h: ", ".join(source.run_id for source in h.merged)),
        fact("resumed", lambda h: ", ".join(h.resumed)),
        fact("command", lambda h: " ".join(map(_word, h.command))),
    ]
    return [row for row in environment if any(row.values)]


def _word(word: str) -> str:
    """A word of the command; of a path its last part, since where a machine keeps its folders is its own business."""
    return word.rstrip("/").rpartition("/")[2] if word.startswith("/") else word


def _package(name: str) -> Callable[[Header], str]:
    return lambda header: header.environment.packages.get(name, "")


def _capabilities(header: Header) -> str:
    return ", ".join(dict.fromkeys(gpu.compute_capability for gpu in header.environment.gpus))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


@dataclass(frozen=True)
class Group:
    """The failures of one requirement in one run: those ``shown``, of ``total``."""

    run: Run
    rule: str
    title: str
    shown: tuple[Case, ...]
    total: int


def failures(gathered: Gathered, each: int = 1, most: int = SHOWN_FAILURES) -> list[Group]:
    """Per requirement and run the first ``each`` cases that do not qualify, the largest errors first."""
    found = []
    for run in gathered.runs:
        by_rule: dict[str, list[Case]] = defaultdict(list)
        for case in run.bad:
            by_rule[case.requirement].append(case)
        groups = []
        for name, cases in by_rule.items():
            cases.sort(key=lambda case: -(case.worst or 0.0))
            rule = run.rules[name]
            groups.append(Group(run, name, rule.title, tuple(cases[:each]), rule.failed))
        found += sorted(groups, key=lambda group: by_id(group.rule))[:most]
    return sorted(found, key=lambda group: (by_id(group.rule), group.run.mark))


@dataclass(frozen=True)
class Debt:
    """A waiver and what it cost a run. ``left``: days from the run to its last day; ``used``: cases it was used for;
    ``link``: whether the issue is a web address."""

    run: Run
    waiver: WaiverRecord
    used: int
    stale: int
    left: int | None
    age: int | None

    @property
    def link(self) -> bool:
        """Whether the issue can be followed."""
        return self.waiver.issue.startswith(("https://", "http://"))

    @property
    def selector(self) -> str:
        """What it selects, in one line."""
        chosen = {name: value for name, value in self.waiver.selector.items() if value not in ("*", [], None)}
        told = [f"{n} {', '.join(map(str, v)) if isinstance(v, list) else v}" for n, v in chosen.items()]
        return escaping.line("; ".join(told), 300)


def debts(gathered: Gathered) -> list[Debt]:
    """Every waiver of every run, those that end first on top."""
    found = []
    for run in gathered.runs:
        used: dict[str, list[Case]] = defaultdict(list)
        for case in run.kept:
            used[case.waiver].append(case)
        for waiver in run.header.waivers:
            cases = used[escaping.name(waiver.id)]
            stale = sum(case.status is Status.STALE_WAIVER for case in cases)
            at = _date(run.header.started)
            opened, expires = _date(waiver.opened), _date(waiver.expires)
            left = (expires - at).days if expires and at else None
            age = (at - opened).days if opened and at else None
            found.append(Debt(run, waiver, len(cases), stale, left, age))
    return sorted(found, key=lambda debt: (debt.waiver.expires, debt.waiver.id, debt.run.mark))


def _date(moment: str) -> date | None:
    try:
        return date.fromisoformat(moment[:10])
    except ValueError:
        return None


@dataclass(frozen=True)
class Left:
    """What was not run, for one reason: in the runs of these ``marks``."""

    what: str
    reason: str
    marks: tuple[str, ...]


def left_out(gathered: Gathered) -> list[Left]:
    """What was not selected and what has no result, with the reason, runs together that agree."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for run in gathered.runs:
        by_reason: dict[str, list[str]] = defaultdict(list)
        for entry in run.header.not_selected:
            by_reason[escaping.line(entry.reason)].append(escaping.name(entry.what))
        for reason, names in by_reason.items():
            found[_named(sorted(names, key=by_id)), reason].append(run.mark)
        gaps: dict[str, int] = defaultdict(int)
        for case in run.kept:
            if case.status is Status.NOT_RUN:
                gaps[case.reason or "no reason was given"] += 1
        for reason, count in gaps.items():
            found[f"{count:,} planned case{'s' if count > 1 else ''} (NOT_RUN)", escaping.line(reason)].append(run.mark)
    return [Left(what, reason, tuple(marks)) for (what, reason), marks in found.items()]


def _named(names: Sequence[str], most: int = 40) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


@dataclass(frozen=True)
class Declared:
    """A surface: per run what the adapter declares of it, None where it does not offer it."""

    surface: str
    values: tuple[str | None, ...]


def declared(gathered: Gathered) -> list[Declared]:
    """Surfaces that any of the adapters offers, with what it declares; what is left at null is not told."""
    names = sorted({name for run in gathered.runs for name in run.header.implementation.surfaces})
    return [
        Declared(escaping.name(name), tuple(_declaration(run.header, name) for run in gathered.runs)) for name in names
    ]


def _declaration(header: Header, surface: str) -> str | None:
    convention = header.implementation.surfaces.get(surface)
    if convention is None:
        return None
    told = [f"{n} {_value(v)}" for n, v in convention.items() if n != "convention" and v is not None]
    return escaping.line(", ".join(told), 500)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "/".join(map(_value, value)) or "none" if isinstance(value, list) else str(value)
