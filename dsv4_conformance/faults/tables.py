"""A kill matrix in words: for the terminal, as Markdown and as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dsv4_conformance.faults.accounting import entries
from dsv4_conformance.faults.outcome import Matrix, Outcome

SHOWN_REQUIREMENTS = 6
STAYS = {
    "padding": "it alone fills padded heads with everything; what reaches them fails sinks or layers as well",
    "accuracy": "it judges a served model; no fault here is one",
    "performance": "it judges times, which no fault here is about",
}
"""Folders that are not the only ones to reject some fault, and why they stay."""


def line(outcome: Outcome) -> str:
    """One trial in one line, and what to do next in a second."""
    names = outcome.requirements
    told = ", ".join(names[:SHOWN_REQUIREMENTS])
    told += f" and {len(names) - SHOWN_REQUIREMENTS} more" if len(names) > SHOWN_REQUIREMENTS else ""
    mark = "FAIL" if outcome.problem else "ok  "
    first = outcome.first
    seconds = f"{first.seconds:6.1f} s" if first else "      -"
    rest = f"\n         {outcome.reproducer}" if outcome.reproducer else ""
    rest += f"\n         {outcome.problem}" if outcome.problem else ""
    return f"{mark} {outcome.id:7} {seconds}  {outcome.title}\n         {told or 'no requirement failed'}{rest}"


def verdict(matrix: Matrix) -> str:
    """What it all means, in a sentence."""
    faults, problems = matrix.faults, matrix.problems
    told = f"{len(faults) - sum(bool(o.problem) for o in faults)} of {len(faults)} faults are killed by the requirement"
    told += f" they must break; median time to detection {matrix.median_seconds:.1f} s"
    told += f"; {matrix.seconds:.0f} s on {matrix.workers} process{'es' if matrix.workers > 1 else ''}"
    return f"{'NOT ALL KILLED' if problems else 'ALL KILLED'} in profile {matrix.profile}: {told}."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _head(matrix: Matrix) -> list[tuple[str, str]]:
    versions = ", ".join(f"{name} {version}" for name, version in matrix.packages.items())
    return [
        ("command", f"`{matrix.command}`"),
        ("date", matrix.started),
        ("versions", f"dsv4-conformance {matrix.version}, {versions}"),
        ("time", f"{matrix.seconds:.0f} s on {matrix.workers} processes"),
        ("median time to detection", f"{matrix.median_seconds:.1f} s"),
    ]


def _rows(matrix: Matrix) -> list[list[str]]:
    rows = []
    for outcome in matrix.faults:
        first = outcome.first
        rows.append(
            [
                f"[{outcome.id}]({entries()[outcome.id[:3]].urls[0]})",
                outcome.title,
                outcome.breaks,
                ", ".join(name for name in outcome.requirements if name != outcome.breaks),
                f"`{first.case_id}`" if first else outcome.problem,
                f"{first.seconds:.1f}" if first else "",
            ]
        )
    return rows


HEADINGS = ("fault", "public bug", "must break", "breaks also", "first failing case", "s")


def folders(matrix: Matrix, names: Sequence[str]) -> list[tuple[str, str, str]]:
    """Per suite folder: faults that it rejects, and those that no other folder rejects or why it stays."""
    caught, only = matrix.caught_by_folder(), matrix.only_by_folder()
    told = []
    for name in sorted({*names, *caught}):
        alone = ", ".join(only.get(name, ())) or STAYS.get(name, "none")
        told.append((name, str(caught.get(name, 0)), alone))
    return told


def markdown(matrix: Matrix, names: Sequence[str] = ()) -> str:
    """The matrix as Markdown, with what only one requirement and only one suite folder catches."""
    out = [f"# Kill matrix, profile {matrix.profile}", "", f"**{verdict(matrix)}**", "", "| | |", "|---|---|"]
    out += [f"| {name} | {_cell(value)} |" for name, value in _head(matrix)]
    if matrix.problems:
        out += ["", "## Problems", "", *(f"- {problem}" for problem in matrix.problems)]
    if matrix.stopped:
        out += [
            "",
            "Each trial ended with the requirement that the fault must break; what else it breaks was not asked.",
        ]
    else:
        out += ["", "## Suites", "", "| folder | faults it rejects | faults that only it rejects |", "|---|---:|---|"]
        out += [f"| {' | '.join(map(_cell, row))} |" for row in folders(matrix, names)]
        out += ["", "## Requirements", "", "| requirement | faults that only it rejects |", "|---|---|"]
        out += [f"| {name} | {', '.join(found)} |" for name, found in sorted(matrix.only_by_requirement().items())]
    out += ["", "## Faults", "", f"| {' | '.join(HEADINGS)} |", "|---|---|---|---|---|---:|"]
    out += [f"| {' | '.join(map(_cell, row))} |" for row in _rows(matrix)]
    return "\n".join(out) + "\n"


def html(matrix: Matrix, names: Sequence[str] = ()) -> str:
    """The matrix as one HTML page: faults by requirements, killed cells marked."""
    columns = sorted({name for o in matrix.faults for name in o.requirements}, key=lambda name: int(name[4:]))
    style = (
        "body{font:14px system-ui;margin:2em}table{border-collapse:collapse}"
        "td,th{border:1px solid #ccc;padding:2px 5px}"
        "th.r{writing-mode:vertical-rl}td.k{background:#2a7}td.m{background:#064;color:#fff}tr.bad td{background:#fdd}"
    )
    rows = []
    for o in matrix.faults:
        cells = "".join(
            f'<td class="{"m" if c == o.breaks else "k"}" title="{escape(c)}">{"●" if c == o.breaks else "·"}</td>'
            if c in o.requirements
            else "<td></td>"
            for c in columns
        )
        link = f'<a href="{escape(entries()[o.id[:3]].urls[0])}">{escape(o.id)}</a>'
        bad = ' class="bad"' if o.problem else ""
        tip = escape(o.reproducer or o.problem)
        rows.append(f'<tr{bad}><td>{link}</td><td title="{tip}">{escape(o.title)}</td>{cells}</tr>')
    head = "".join(f'<th class="r">{escape(c)}</th>' for c in columns)
    facts = "".join(f"<tr><td>{escape(n)}</td><td>{escape(v.strip('`'))}</td></tr>" for n, v in _head(matrix))
    told = "".join(f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in row)}</tr>" for row in folders(matrix, names))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Kill matrix</title><style>{style}</style>'
        f"<h1>Kill matrix, profile {escape(matrix.profile)}</h1><p><b>{escape(verdict(matrix))}</b></p>"
        f"<table>{facts}</table><h2>Suites</h2><table><tr><th>folder</th><th>rejects</th><th>only it rejects</th></tr>"
        f"{told}</table><h2>Faults</h2><p>●: the requirement that the fault must break; ·: others that fail.</p>"
        f"<table><tr><th>fault</th><th>public bug</th>{head}</tr>{''.join(rows)}</table></html>\n"
    )
