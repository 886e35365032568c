"""The report as Markdown, for a job page or a pull request, in the order of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsv4_conformance.report import accuracy, performance, sections
from dsv4_conformance.report.escaping import code, markdown, name
from dsv4_conformance.report.faults import FaultTable
from dsv4_conformance.report.folding import Rule, Run
from dsv4_conformance.report.gathering import Gathered, adapter, build, device
from dsv4_conformance.report.kinds import kind_of
from dsv4_conformance.report.measured import told

SIGNS = {"good": "✅", "bad": "❌", "open": "❔"}
SHOWN_FAILURES = 25


def overview(gathered: Gathered, faults: Sequence[FaultTable] = ()) -> str:
    """The whole report, in the order of the page."""
    parts = [
        f"# {gathered.headline}\n",
        *_verdicts(gathered),
        *_failures(gathered),
        *_matrix(gathered),
        *_accuracy(gathered),
        *_faults(faults),
        *_performance(gathered),
        *_waivers(gathered),
        *_left(gathered),
        *_environment(gathered),
    ]
    return "\n".join(parts).rstrip() + "\n"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], right: int = 0) -> list[str]:
    """A Markdown table; the last ``right`` columns hold numbers. Cells are Markdown already."""
    rule = ["---"] * (len(titles) - right) + ["---:"] * right
    return [f"| {' | '.join(row)} |" for row in (titles, rule, *rows)] + [""]


def _verdicts(gathered: Gathered) -> Iterator[str]:
    rows = []
    for run, verdict in zip(gathered.runs, gathered.verdicts, strict=True):
        where = f"{device(run.header.environment, run.header.device)}, profile {run.header.profile}"
        counts = ", ".join(f"{number:,} {status}" for status, number in sorted(run.counts.items()) if number)
        who = f"{adapter(run.header)} {build(run.header)}"
        rows.append([run.mark, markdown(who), markdown(where), f"{SIGNS[verdict.tone]} {verdict.word}", counts])
    yield from table(["", "implementation", "where", "verdict", "cases"], rows)
    for run, verdict in zip(gathered.runs, gathered.verdicts, strict=True):
        for reason in verdict.reasons:
            if reason.grave or reason.waiver:
                yield f"- {run.mark}: {markdown(reason.whole, 1000)}"
    yield ""


def _failures(gathered: Gathered) -> Iterator[str]:
    groups = sections.failures(gathered)
    if not groups:
        return
    yield "## What is wrong\n"
    for group in groups[:SHOWN_FAILURES]:
        for case in group.shown:
            more = f", 1 of {group.total:,}" if group.total > 1 else ""
            yield f"- {group.run.mark} **{markdown(group.rule)}** {markdown(group.title)} ({case.status}{more})  "
            yield f"  {markdown(case.reason, 600)}  "
            yield f"  {code(case.reproducer, 400)}" if case.reproducer else ""
    if len(groups) > SHOWN_FAILURES:
        yield f"- and {len(groups) - SHOWN_FAILURES} more requirements; the page has them."
    yield ""


def _matrix(gathered: Gathered) -> Iterator[str]:
    runs = gathered.runs
    titles = ["requirement", "", *(run.mark for run in runs)]
    titles += [f"worst {run.mark}" for run in runs] + [f"margin {run.mark}" for run in runs]
    rows = []
    for rule in gathered.rules:
        mine = [run.rules.get(rule.id) for run in runs]
        rows.append(
            [markdown(rule.id), markdown(rule.title)]
            + [_cell(found) for found in mine]
            + [told(found.worst) if found else "" for found in mine]
            + [told(found.margin) if found else "" for found in mine]
        )
    yield "## Requirements\n"
    yield from table(titles, rows, right=3 * len(runs))
    yield "worst: largest error in budgets (limit 1); margin: how far the least rejected known mistake is off.\n"


def _cell(rule: Rule | None) -> str:
    if rule is None:
        return "·"
    number = rule.counts[rule.status]
    if kind_of(rule.status) == "good":
        return f"{number:,}"
    if kind_of(rule.status) == "absent":
        return "–"
    return f"**{number:,}/{rule.cases:,} {rule.status}**"


def _accuracy(gathered: Gathered) -> Iterator[str]:
    found = accuracy.accuracies(gathered)
    if found:
        yield "## Accuracy\n"
    for record in found:
        yield f"- {record.run.mark} **{markdown(record.task)} {markdown(record.verdict)}** {markdown(record.paragraph)}"
    yield ""


def _faults(faults: Sequence[FaultTable]) -> Iterator[str]:
    if faults:
        yield "## Faults\n"
    for given in faults:
        missed = [row for row in given.rows if row.caught is False]
        gaps = "".join(f" **{markdown(gap)}**" for gap in given.gaps)
        remarks = "".join(f" {markdown(remark)}" for remark in given.remarks)
        count = f"{given.caught} of {len(given.rows)} re-created public bugs rejected ({markdown(given.source)})."
        yield f"{count}{gaps}{remarks}\n"
        for row in missed:
            yield f"- let through: **{markdown(row.id)}** {markdown(row.title)}"
        yield ""


def _performance(gathered: Gathered) -> Iterator[str]:
    found = performance.performance(gathered)
    if not found.cases:
        return
    yield "## Performance\n"
    rows = [
        [case.run.mark, markdown(case.case.requirement), markdown(case.case.label), str(case.case.status)]
        + [case.numbers.get(name, "") for name in found.columns]
        for case in found.cases
    ]
    titles = ["", "requirement", "case", "status", *(markdown(name) for name in found.columns)]
    yield from table(titles, rows, right=len(found.columns))


def _waivers(gathered: Gathered) -> Iterator[str]:
    debts = sections.debts(gathered)
    if not debts:
        return
    yield "## Waivers\n"
    rows = [
        [
            debt.run.mark,
            markdown(debt.waiver.id),
            markdown(debt.waiver.requirement),
            debt.waiver.kind,
            markdown(debt.waiver.owner),
            markdown(debt.waiver.issue),
            "?" if debt.left is None else "EXPIRED" if debt.left < 0 else str(debt.left),
            f"{debt.used}{f' ({debt.stale} stale)' if debt.stale else ''}",
        ]
        for debt in debts
    ]
    yield from table(["", "waiver", "requirement", "kind", "owner", "issue", "days left", "cases"], rows, right=2)


def _left(gathered: Gathered) -> Iterator[str]:
    left = sections.left_out(gathered)
    if left:
        yield "## Not run, and why\n"
    for entry in left:
        yield f"- {', '.join(entry.marks)}: {markdown(entry.what, 1500)}: {markdown(entry.reason)}"
    yield ""


def _environment(gathered: Gathered) -> Iterator[str]:
    yield "## Environment\n"
    facts = sections.facts(gathered)
    rows = [[markdown(fact.name), *(markdown(value, 200) or "–" for value in fact.values)] for fact in facts]
    yield from table(["", *(run.mark for run in gathered.runs)], rows)


def verdict_lines(gathered: Gathered) -> list[str]:
    """The verdicts for a terminal: a line per run, its reasons under it."""
    told_ = [gathered.headline]
    for run, verdict in zip(gathered.runs, gathered.verdicts, strict=True):
        told_.append(_headline(run, verdict.word))
        told_ += [f"     {reason.whole}" for reason in verdict.reasons if reason.grave or reason.waiver]
    return told_


def run_lines(runs: Sequence[Run]) -> Iterator[str]:
    """What was run, for a terminal: a line per run, and one per waiver that it used."""
    for run in runs:
        header = run.header
        where = f"{device(header.environment, header.device)}, profile {name(header.profile)}, seed {header.seed}"
        waived = f", {sum(run.waived.values()):,} waived" if run.waived else ""
        yield f"  {run.mark}  {adapter(header)} {build(header)}, {where}: {run.checked:,} checked{waived}"
        for waiver in header.waivers:
            if number := run.waived[waiver.id]:
                yield f"     {name(waiver.id)}: {number:,} of {name(waiver.requirement)} until {name(waiver.expires)}"


def _headline(run: Run, word: str) -> str:
    return f"  {run.mark}  {run.label}, profile {name(run.header.profile)}: {word.lower()}"
