"""A matrix as Markdown and as data: requirement by row, with statuses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from dsv4_conformance.errors import BadInput
from dsv4_conformance.matrix.running import Done
from dsv4_conformance.report.escaping import code, markdown
from dsv4_conformance.report.folding import Rule, Run
from dsv4_conformance.report.gathering import Gathered, device
from dsv4_conformance.report.overview import table
from dsv4_conformance.status import CHECKED, Status

MOST_CHARACTERS = 300
QUIET = (Status.PASS, Status.NOT_APPLICABLE)


def markdown_of(done: Sequence[Done], gathered: Gathered | None, command: str) -> str:
    """The whole matrix; ``gathered`` has the runs of the rows that left a journal, in their order."""
    runs = _by_row(done, gathered)
    parts = ["# Requirements by implementation\n", f"`{command}`\n", *_rows(done, runs), *_cells(done, runs, gathered)]
    return "\n".join([*parts, *_findings(done, runs), *_notes(done, runs)]).rstrip() + "\n"


def data_of(done: Sequence[Done], gathered: Gathered | None, command: str) -> str:
    """The same as JSON: per row who it was and its counts, by requirement and status."""
    runs = _by_row(done, gathered)
    rows = [
        {
            "row": one.row.name,
            "implementation": one.row.implementation,
            "environment": one.row.environment,
            "problem": one.problem,
            **(_told(runs[one.row.name]) if one.row.name in runs else {}),
        }
        for one in done
    ]
    return json.dumps({"schema": "dsv4-matrix/1", "command": command, "rows": rows}, indent=1, sort_keys=True) + "\n"


def exit_code(done: Sequence[Done], gathered: Gathered | None) -> int:
    """0 if every row ran and qualifies, 3 if one could not run, else 1."""
    if any(one.problem for one in done):
        return 3
    return 0 if gathered is not None and all(verdict.good for verdict in gathered.verdicts) else 1


def _by_row(done: Sequence[Done], gathered: Gathered | None) -> dict[str, Run]:
    names = [one.row.name for one in done if one.journal is not None]
    runs = gathered.runs if gathered is not None else []
    if len(names) != len(runs):
        raise BadInput(f"{len(runs)} journals were read for {len(names)} rows.")
    return dict(zip(names, runs, strict=True))


def _told(run: Run) -> dict[str, Any]:
    header = run.header
    return {
        "identity": header.implementation.identity,
        "device": device(header.environment, header.device),
        "profile": header.profile,
        "seed": header.seed,
        "suites": {"version": header.version, "commit": header.environment.commit},
        "packages": header.environment.packages,
        "started": header.started,
        "ended": run.footer is not None,
        "requirements": {
            rule.id: {str(status): n for status, n in sorted(rule.counts.items()) if n} for rule in run.rules.values()
        },
    }


def _rows(done: Sequence[Done], runs: dict[str, Run]) -> Iterator[str]:
    lines = []
    for one in done:
        run = runs.get(one.row.name)
        if run is None:
            lines.append([markdown(one.row.name), "", f"did not run: {markdown(one.problem, MOST_CHARACTERS)}", ""])
            continue
        identity = run.header.implementation.identity
        counts = ", ".join(f"{n:,} {status}" for status, n in sorted(run.counts.items()) if n)
        ended = "" if run.footer is not None else " (did not end)"
        who = f"{identity.get('name')} {identity.get('version')}"
        where = device(run.header.environment, run.header.device)
        lines.append([markdown(one.row.name), markdown(f"{who}, {where}"), counts + ended, run.header.started[:10]])
    yield from table(["row", "implementation", "cases", "date"], lines)


def _cells(done: Sequence[Done], runs: dict[str, Run], gathered: Gathered | None) -> Iterator[str]:
    shown = [one.row.name for one in done if one.row.name in runs]
    lines, silent = [], []
    for rule in gathered.rules if gathered is not None else []:
        mine = [runs[name].rules.get(rule.id) for name in shown]
        if any(found is not None and (found.checked or found.failed) for found in mine):
            lines.append([markdown(rule.id), markdown(rule.title), *map(_cell, mine)])
        else:
            silent.append(rule.id)
    yield from table(["requirement", "", *map(markdown, shown)], lines)
    yield (
        "PASS n: all n cases. WARN, FAIL and others: how many of how many; a WARN is slow or large, never wrong. "
        "n/a: not offered, or outside what is declared. ·: not planned.\n"
    )
    if silent:
        yield f"Offered by no row: {', '.join(silent)}.\n"


def _cell(rule: Rule | None) -> str:
    if rule is None:
        return "·"
    checked = sum(rule.counts[status] for status in CHECKED)
    bad = [(status, n) for status, n in rule.counts.items() if n and status not in QUIET]
    if bad:
        return "**" + ", ".join(f"{status} {n:,}/{rule.cases:,}" for status, n in sorted(bad)) + "**"
    return f"PASS {checked:,}" if checked else "n/a"


def _findings(done: Sequence[Done], runs: dict[str, Run]) -> Iterator[str]:
    told = []
    for one in done:
        seen: set[tuple[str, Status]] = set()
        for case in runs[one.row.name].kept if one.row.name in runs else ():
            if case.status in QUIET or (case.requirement, case.status) in seen:
                continue
            seen.add((case.requirement, case.status))
            told.append(f"- {markdown(one.row.name)} **{markdown(case.requirement)} {case.status}** ")
            told[-1] += f"{markdown(case.reason, MOST_CHARACTERS)}  \n  {code(case.reproducer, MOST_CHARACTERS)}"
    if told:
        yield "## The first case of each FAIL and WARN\n"
        yield from told
        yield ""


def _notes(done: Sequence[Done], runs: dict[str, Run]) -> Iterator[str]:
    told: dict[str, list[str]] = {}
    for one in done:
        notes = runs[one.row.name].header.implementation.identity.get("notes") if one.row.name in runs else None
        for note in notes if isinstance(notes, list) else []:
            told.setdefault(str(note), []).append(one.row.name)
    if told:
        yield "## What adapters say of themselves\n"
        for note, names in told.items():
            who = "all" if len(names) == len(runs) else ", ".join(names)
            yield f"- {markdown(note, MOST_CHARACTERS)} ({markdown(who)})"
