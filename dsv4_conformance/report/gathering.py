"""Journals side by side: each a column with a letter and a name that no other one has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.journal import Environment, Header
from dsv4_conformance.plugin.verdict import order
from dsv4_conformance.report import escaping
from dsv4_conformance.report.folding import Rule, Run, fold
from dsv4_conformance.report.judging import Verdict, headline, judge
from dsv4_conformance.report.stream import JournalFile

MOST_RUNS = 26
PAGE_CASES = 30_000
"""Results of cases that one page holds, all runs together: about 7 MB."""


@dataclass
class Gathered:
    """What a report is about. ``journals`` are there to pass over the results once more."""

    journals: list[JournalFile]
    runs: list[Run]
    verdicts: list[Verdict]

    @property
    def headline(self) -> str:
        """One sentence about all runs."""
        return headline(self.verdicts)

    @property
    def rules(self) -> list[Rule]:
        """Every requirement once, as the first run that has it tells it."""
        found: dict[str, Rule] = {}
        for run in self.runs:
            for rule in run.rules.values():
                found.setdefault(rule.id, rule)
        return [found[name] for name in sorted(found, key=by_id)]

    @property
    def finished(self) -> str:
        """When the last run ended; a report of the same journals is the same, whenever it is made."""
        return max((run.footer.finished if run.footer else run.header.started) for run in self.runs)

    @property
    def version(self) -> str:
        """The version that made the newest run."""
        return max(self.runs, key=lambda run: run.header.started).header.version


def gather(paths: Sequence[Path], page_cases: int = PAGE_CASES) -> Gathered:
    """Read and fold the journals, in the order given. Raises BadInput."""
    if len(paths) > MOST_RUNS:
        raise BadInput(f"{len(paths)} journals are more than the {MOST_RUNS} that stand side by side; give fewer.")
    journals: list[JournalFile] = []
    seen: dict[str, Path] = {}
    for path in paths:
        journal = JournalFile(path)
        if journal.header.run_id in seen:
            raise BadInput(f"{seen[journal.header.run_id]} and {path} are of the same run; give each once.")
        seen[journal.header.run_id] = path
        journals.append(journal)
    keep = page_cases // max(1, len(journals))
    runs = [fold(journal, chr(ord("A") + place), keep) for place, journal in enumerate(journals)]
    _label(runs)
    return Gathered(journals, runs, [judge(run) for run in runs])


def journal_path(path: Path) -> Path:
    """``path``, or the journal of the results folder that it is."""
    return path / "journal.jsonl" if path.is_dir() else path


def by_id(requirement: str) -> tuple[str, int]:
    """Sort key of requirements, for names of any length."""
    return order(requirement[:40])


def implementation(header: Header) -> str:
    """The adapter's name."""
    return escaping.name(str(header.implementation.identity.get("name", header.implementation.requested)))


def adapter(header: Header) -> str:
    """The adapter's name, and what ran where that says something else: a class can inherit another one's identity."""
    name, requested = implementation(header), escaping.name(header.implementation.requested)
    return name if name in (requested, requested.rpartition(":")[2]) else f"{name} ({requested})"


def name_of(header: Header) -> str:
    """Implementation, build and device."""
    return " ".join(filter(None, [adapter(header), build(header), device(header.environment, header.device)]))


def suites(header: Header) -> str:
    """The version of the suites, with their commit where they ran from a checkout, and whether that was modified."""
    commit, modified = header.environment.commit[:10], header.environment.modified
    return " ".join(filter(None, [header.version, commit, "modified" if modified else ""]))


def build(header: Header) -> str:
    """The adapter's version, with its commit where it has one."""
    identity = header.implementation.identity
    commit = str(identity.get("commit") or "")
    return escaping.name(" ".join(filter(None, [str(identity.get("version") or ""), commit[:10]])))


def device(environment: Environment, kind: str) -> str:
    """The device in a word or two: the GPU's name, or CPU."""
    if kind != "cuda" or not environment.gpus:
        return "CPU" if kind == "cpu" else escaping.name(kind.upper())
    names = [gpu.name or gpu.uuid for gpu in environment.gpus]
    told = [f"{names.count(name)} × {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
    return escaping.name(", ".join(told))


def day(moment: str) -> str:
    """Date and minute of an ISO 8601 time."""
    return escaping.line(moment[:16].replace("T", " "), 20)


def _label(runs: Sequence[Run]) -> None:
    parts: list[Callable[[Header], str]] = [
        adapter,
        build,
        lambda header: device(header.environment, header.device),
        lambda header: header.profile,
        lambda header: f"seed {header.seed}",
        lambda header: day(header.started),
        lambda header: header.run_id,
    ]
    for number in range(3, len(parts) + 1):
        labels = [" ".join(filter(None, (part(run.header) for part in parts[:number]))) for run in runs]
        if len(set(labels)) == len(labels) or number == len(parts):
            for run, label in zip(runs, labels, strict=True):
                run.label = escaping.name(label)
            return
