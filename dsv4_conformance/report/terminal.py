"""The terminal's summary of a run, derived from its journal: requirements, failures, what was left out, verdict."""

from __future__ import annotations

import math
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4_conformance.plugin.journal import Journal, Result
from dsv4_conformance.plugin.verdict import order
from dsv4_conformance.report import escaping
from dsv4_conformance.status import CHECKED, QUALIFYING, Status
from dsv4_conformance.suite import ENDPOINT

if TYPE_CHECKING:
    import pytest

SHOWN_PER_REQUIREMENT = 5
_QUIET = (Status.PASS, Status.NOT_APPLICABLE, Status.WAIVED, Status.NOT_RUN)
"""Statuses that are not listed case by case."""
TITLE_WIDTH = 56
REQUIRED_MARGIN = 3.0
"""From here on a mistake counts as rejected; numerics/discrimination.py says so too, and imports torch."""
DESELECTED = "deselected on the command line"
HEADINGS = ("requirement", "", "checked", "pass", "warn", "fail", "n/a", "worst", "margin")


@dataclass(frozen=True)
class Row:
    """One requirement. ``worst``: largest error of any case, in budgets; ``margin``: of the mutants that apply to its
    cases, the least rejected one's best rejection, in budgets. None where nothing was measured."""

    id: str
    title: str
    checked: int
    passed: int
    warned: int
    failed: int
    not_applicable: int
    worst: float | None
    margin: float | None

    def cells(self) -> tuple[str, ...]:
        """The columns' text; zero counts are left blank, so that what stands out is what is there."""
        title = self.title if len(self.title) <= TITLE_WIDTH else f"{self.title[: TITLE_WIDTH - 3]}..."
        counts = (self.checked, self.passed, self.warned, self.failed, self.not_applicable)
        return (self.id, title, *(str(n) if n else "" for n in counts), _number(self.worst), _number(self.margin))


def rows(journal: Journal) -> list[Row]:
    """One row per planned requirement, in order of their ids."""
    titles = {named.id: named.title for named in journal.header.requirements}
    grouped: dict[str, list[Result]] = defaultdict(list)
    for result in journal.results:
        grouped[result.requirement].append(result)
    return [_row(name, titles.get(name, ""), grouped[name]) for name in sorted(grouped, key=order)]


def _row(name: str, title: str, results: Sequence[Result]) -> Row:
    def count(statuses: Iterable[Status]) -> int:
        wanted = set(statuses)
        return sum(result.status in wanted for result in results)

    # What was measured before a case turned out not to apply speaks for nothing.
    applied = [result for result in results if result.status is not Status.NOT_APPLICABLE]
    return Row(
        id=name,
        title=title,
        checked=count(CHECKED),
        passed=count([Status.PASS, Status.WAIVED]),
        warned=count([Status.WARN]),
        failed=count(set(Status) - QUALIFYING),
        not_applicable=count([Status.NOT_APPLICABLE]),
        worst=max((ratio for result in applied for ratio in _ratios(result)), default=None),
        margin=_margin(applied),
    )


def _ratios(result: Result) -> list[float]:
    metrics = result.record.get("metrics")
    found = metrics.items() if isinstance(metrics, dict) else ()
    return [ratio for key, value in found if key.endswith("_ratio") and (ratio := _float(value)) is not None]


def _margin(results: Iterable[Result]) -> float | None:
    best: dict[str, float] = {}
    for result in results:
        margins = result.record.get("margins")
        for mutant, outputs in margins.items() if isinstance(margins, dict) else ():
            for value in outputs.values() if isinstance(outputs, dict) else ():
                best[mutant] = max(best.get(mutant, 0.0), _float(value) or 0.0)
    return min(best.values(), default=None)


def _float(value: Any) -> float | None:
    """A number of the journal, where "inf" and "nan" stand for themselves."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.2f}" if value < 100 else f"{value:.0f}" if value < 1e4 else ">9999"


def table(lines: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns of equal width: the first two to the left, numbers to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(
            f"{cell:<{width}}" if i < 2 else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def weak(found: Sequence[Row]) -> str:
    """The sentence on requirements under which a known mistake may pass; "" without any."""
    named = [row.id for row in found if row.margin is not None and row.margin < REQUIRED_MARGIN]
    return f"A known mistake may pass here (margin below {REQUIRED_MARGIN:g}): {', '.join(named)}." if named else ""


def write_summary(reporter: pytest.TerminalReporter, journal: Journal, path: Path) -> None:
    """Write the summary. ``-q`` leaves out the table, ``-qq`` all but the verdict; ``-v`` lists every failure."""
    assert journal.footer is not None
    verbosity = reporter.config.get_verbosity()
    found = rows(journal)
    if verbosity >= 0:
        reporter.write_sep("=", "requirements")
        heading, *body = table([HEADINGS, *(row.cells() for row in found)])
        reporter.write_line(heading, bold=True)
        for row, text in zip(found, body, strict=True):
            reporter.write_line(text, **_colour(row))
        reporter.write_line(
            "In error budgets, limit 1. worst: largest error. margin: how far the least rejected mistake is off."
        )
        if doubt := weak(found):
            reporter.write_line(doubt)
    if verbosity >= -1:
        _write_failures(reporter, journal, found, None if verbosity > 0 else SHOWN_PER_REQUIREMENT)
    # A verdict that is no plain pass stands above, in full.
    told = [] if verbosity < 0 else paragraphs(result for result in journal.results if result.status is Status.PASS)
    if told:
        reporter.write_sep("=", "accuracy")
        for text in told:
            for line in textwrap.wrap(escaping.line(text), 110):
                reporter.write_line(line)
    if verbosity >= 0 and journal.header.not_selected:
        reporter.write_sep("-", "not selected")
        for text in _not_selected(journal):
            reporter.write_line(text)
    reporter.write_sep("-", "verdict") if verbosity >= 0 else None
    footer = journal.footer
    if verdicts := accuracy_verdicts(journal.results):
        reporter.write_line(f"accuracy: {', '.join(verdicts)}", bold=True)
    reporter.write_line(
        escaping.line(footer.verdict), bold=True, green=footer.exit_code == 0, red=footer.exit_code != 0
    )
    if verbosity >= -1:
        reporter.write_line(f"journal: {_short(path)}")


def _write_failures(reporter: pytest.TerminalReporter, journal: Journal, found: list[Row], limit: int | None) -> None:
    failed = [row for row in found if row.failed or row.warned]
    if not failed:
        return
    warned = "what to look at" if any(r.surface == ENDPOINT for r in journal.results) else "what is wasteful"
    reporter.write_sep("=", "what is wrong" if any(row.failed for row in failed) else warned)
    for row in failed:
        reporter.write_line(f"{row.id} {row.title}", bold=True)
        for text in _failing_tests(r for r in journal.results if r.requirement == row.id):
            reporter.write_line(f"  {text}")
        wrong = [r for r in journal.results if r.requirement == row.id and r.status not in _QUIET]
        for result in wrong[:limit]:
            colour = {"yellow" if result.status in QUALIFYING else "red": True}
            reporter.write_line(f"  {result.status} {result.surface}: {escaping.line(result.reason)}", **colour)
            reporter.write_line(f"    {escaping.line(result.reproducer)}")
        if limit is not None and len(wrong) > limit:
            reporter.write_line(f"  ... and {len(wrong) - limit} more; -v or the journal has them.")
        gaps = Counter(r.reason for r in journal.results if r.requirement == row.id and r.status is Status.NOT_RUN)
        for reason, count in gaps.items():
            reporter.write_line(f"  NOT_RUN {count} case(s): {escaping.line(reason)}", red=True)


def _failing_tests(results: Iterable[Result]) -> list[str]:
    """Where several tests judged a requirement, which of them failed: the test's name is half of the diagnosis."""
    judged, failed = Counter[str](), Counter[str]()
    for result in results:
        name = result.nodeid.partition("::")[2].partition("[")[0]
        if result.status not in (Status.NOT_APPLICABLE, Status.NOT_RUN):
            judged[name] += 1
            failed[name] += result.status not in _QUIET
    if len(judged) < 2:
        return []
    return [f"{failed[name]} of {count} in {name}" for name, count in judged.items() if failed[name]]


def accuracy_verdicts(results: Iterable[Result]) -> list[str]:
    """The verdict on each accuracy task that was judged, as in "gsm8k PASS"."""
    records = (result.record.get("accuracy") for result in results)
    return [f"{r['task']} {r['verdict']}" for r in records if isinstance(r, dict) and {"task", "verdict"} <= r.keys()]


def paragraphs(results: Iterable[Result]) -> list[str]:
    """What the accuracy runs among ``results`` found, a paragraph each."""
    records = (result.record.get("accuracy") for result in results)
    return [str(record["paragraph"]) for record in records if isinstance(record, dict) and "paragraph" in record]


def _not_selected(journal: Journal) -> list[str]:
    """One paragraph per reason."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    deselected: list[int] = []
    for entry in journal.header.not_selected:
        count, _, cases = entry.what.partition(" case(s) of ")
        if cases:
            deselected.append(int(count))
        else:
            by_reason[entry.reason].append(entry.what)
    if deselected:
        by_reason[DESELECTED] = [f"{sum(deselected)} case(s) of {len(deselected)} requirement(s)"]
    told = [f"{', '.join(sorted(what, key=order))}: {reason}" for reason, what in by_reason.items()]
    return [line for text in told for line in textwrap.wrap(text, 110, subsequent_indent="    ")]


def _colour(row: Row) -> dict[str, bool]:
    return {"red": True} if row.failed else {"yellow": True} if row.warned else {}


def _short(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def hide_from_pytest(reporter: pytest.TerminalReporter) -> None:
    """Keep pytest's own lists of failures to those that the summary does not tell better.

    Tracebacks of the harness's own errors stay. Does nothing where the user asked for pytest's form (--tb, -r).
    """
    options = reporter.config.option
    if options.tbstyle != "auto":
        return
    ours = [r for key in ("failed", "error") for r in reporter.stats.get(key, ()) if getattr(r, "dsv4", None)]
    others = [r for key in ("failed", "error") for r in reporter.stats.get(key, ()) if not getattr(r, "dsv4", None)]
    for report in ours:
        if report.dsv4["status"] != Status.HARNESS_ERROR:
            report._pdbshown = True  # pytest's own mark for "has been shown"
    if ours and not others and options.reportchars == "fE":
        reporter.reportchars = ""
