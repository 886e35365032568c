"""One run as Markdown, derived from its journal: what ran where and when, the verdict, a row per requirement."""

from __future__ import annotations

from dsv4_conformance.errors import ExitCode
from dsv4_conformance.plugin import verdict
from dsv4_conformance.plugin.ending import Ending
from dsv4_conformance.plugin.journal import Header, Journal, Result
from dsv4_conformance.report import escaping
from dsv4_conformance.report.evidence import contradictions
from dsv4_conformance.report.gathering import suites
from dsv4_conformance.report.terminal import HEADINGS, paragraphs, rows, weak
from dsv4_conformance.status import QUALIFYING, Status

SHOWN = 50
"""Failures listed case by case."""
LEGEND = (
    "worst: largest error in budgets (limit 1); margin: how far the least rejected known mistake is off; "
    "fail: all that is wrong, such as CRASH, which is no check."
)
PACKAGES = ("torch", "sgl-flash-mla", "pytest", "pytest-xdist")
"""Versions worth a line; the journal has all."""


def _cell(text: str) -> str:
    """Text that cannot leave its table cell or its line, is no HTML and steers no terminal."""
    plain = escaping.line(text)
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def _device(header: Header) -> str:
    environment = header.environment
    if header.device != "cuda" or not environment.gpus:
        return f"CPU, {environment.cpu_count} cores ({environment.platform})"
    gpus = [f"{gpu.name} (sm_{gpu.compute_capability.replace('.', '')})" for gpu in environment.gpus]
    return f"{', '.join(gpus)}, driver {environment.driver}"


def _failure(result: Result) -> str:
    return (
        f"- {result.requirement} {result.status} {_cell(result.reason[:500])}  \n  {escaping.code(result.reproducer)}"
    )


def _verdict(journal: Journal) -> str:
    """The verdict of the results; the footer's where it says why a run did not get so far as to have one."""
    header, footer = journal.header, journal.footer
    if footer is None:
        return "The run did not end: the journal has no footer."
    statuses = [result.status for result in journal.results] + [Status.NOT_RUN for _ in journal.missing()]
    counts = {status: statuses.count(status) for status in Status if status in statuses}
    code, note = Ending(problems=tuple(footer.problems)).judge(header, statuses)
    doubts = contradictions(journal)
    if footer.exit_code == ExitCode.QUALIFIES and (code != ExitCode.QUALIFIES or doubts):
        why = doubts[0].rstrip(".") if doubts else "its footer says exit code 0"
        note = "; ".join(filter(None, [note, f"the journal contradicts itself: {why}"]))
        return verdict.sentence(int(code) or int(ExitCode.FAILED), header.profile, counts, note)
    if footer.exit_code and not footer.verdict.startswith(("QUALIFIES", "PASSED")):
        return footer.verdict
    return verdict.sentence(int(code) or footer.exit_code, header.profile, counts, note)


def markdown(journal: Journal) -> str:
    """The summary of one journal. A truncated one says so first."""
    header, footer = journal.header, journal.footer
    identity = header.implementation.identity
    packages = header.environment.packages
    versions = ", ".join(f"{name} {packages[name]}" for name in PACKAGES if name in packages)
    facts = [
        ("implementation", f"{identity['name']} {identity['version']}"),
        ("device", _device(header)),
        ("versions", f"dsv4-conformance {suites(header)}, Python {header.environment.python}, {versions}"),
        ("date", header.started),
        ("finished", footer.finished if footer else "-"),
        ("profile, seed, workers", f"{header.profile}, {header.seed}, {header.workers}"),
        ("plan", f"{len(header.plan)} cases, sha256 {header.plan_hash}"),
        ("results", f"sha256 {footer.results_hash}" if footer else "-"),
    ]
    notes = identity.get("notes")
    facts += [("note", str(note)) for note in notes] if isinstance(notes, list) else []
    out = [f"## {_cell(str(identity['name']))}, profile {header.profile}", "", f"**{_cell(_verdict(journal))}**", ""]
    out += ["| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in facts), ""]
    titles = ["requirement", "title", *HEADINGS[2:]]
    out += [f"| {' | '.join(titles)} |", f"|{'---|' * 2}{'---:|' * (len(titles) - 2)}"]
    found = rows(journal)
    out += [f"| {' | '.join(map(_cell, row.cells()))} |" for row in found]
    out += ["", LEGEND]
    out += ["", weak(found)] if weak(found) else []
    out += [text for told in paragraphs(journal.results) for text in ("", _cell(told))]
    wrong = [result for result in journal.results if result.status not in QUALIFYING]
    out += ["", f"### Failures ({len(wrong)})", "", *map(_failure, wrong[:SHOWN])] if wrong else []
    if missing := journal.missing():
        out += ["", f"{len(missing)} planned cases have no result (NOT_RUN)."]
    left: dict[str, list[str]] = {}
    for skipped in header.not_selected:
        left.setdefault(skipped.reason, []).append(skipped.what)
    out += ["", *(f"- not selected, {_cell(why)}: {_cell(', '.join(what))}" for why, what in left.items())]
    return "\n".join(out).rstrip() + "\n"
