"""A trend, told: as text for a terminal, as Markdown, as a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from dsv4_conformance.report.escaping import markdown
from dsv4_conformance.report.folding import Run
from dsv4_conformance.report.gathering import day, name_of
from dsv4_conformance.report.kinds import LETTERS, kind_of
from dsv4_conformance.report.measured import told
from dsv4_conformance.report.overview import table
from dsv4_conformance.report.page import shell
from dsv4_conformance.report.plots import svg
from dsv4_conformance.report.trending import Course, Trend, remarks
from dsv4_conformance.status import QUALIFYING, Status

TITLES = ("", "run", "started (UTC)", "verdict", "checked", "bad", "waived", "n/a", "worst", "margin")


def row(run: Run, word: str) -> list[str]:
    """One run: the columns of TITLES."""
    worst = max((rule.worst for rule in run.rules.values() if rule.worst is not None), default=None)
    margin = min((rule.margin for rule in run.rules.values() if rule.margin is not None), default=None)
    bad = sum(number for status, number in run.counts.items() if status not in QUALIFYING)
    waived, absent = run.counts[Status.WAIVED], run.counts[Status.NOT_APPLICABLE]
    counts = [f"{number:,}" if number else "" for number in (run.checked, bad, waived, absent)]
    return [run.mark, name_of(run.header), day(run.header.started), word, *counts, told(worst), told(margin)]


def sign(status: Status | None) -> str:
    """One character for a status; a point for a requirement that was not planned."""
    if status is None:
        return "·"
    return LETTERS.get(status, {"good": "o", "absent": "-"}.get(kind_of(status), "?"))


def text(found: Trend) -> Iterator[str]:
    """Lines for a terminal."""
    rows = [list(TITLES), *(row(r, v.word) for r, v in zip(found.runs, found.gathered.verdicts, strict=True))]
    widths = [max(len(line[column]) for line in rows) for column in range(len(TITLES))]
    for line in rows:
        yield "  ".join(
            f"{c:<{w}}" if n < 4 else f"{c:>{w}}" for n, (c, w) in enumerate(zip(line, widths, strict=True))
        )
    for run, verdict in zip(found.runs, found.gathered.verdicts, strict=True):
        for doubt in verdict.doubts:
            yield f"{run.mark}: {doubt}"
    notable = [course for course in found.courses if course.notable]
    yield ""
    marks = [run.mark for run in found.runs]
    for course in notable:
        signs = "".join(map(sign, course.statuses))
        yield f"{course.id:<8} {signs}  {course.title[:60]}: {remarks(course, marks)}"
    yield f"{len(found.courses) - len(notable)} of {len(found.courses)} requirements went as before in all runs."
    yield "o good, - not applicable, · not planned; others as in the report's legend."


def as_markdown(found: Trend) -> str:
    """The same as Markdown."""
    verdicts = found.gathered.verdicts
    rows = [[markdown(c) for c in row(r, v.word)] for r, v in zip(found.runs, verdicts, strict=True)]
    marks = [run.mark for run in found.runs]
    out = ["## Trend", "", *table(TITLES, rows, right=6)]
    doubts = [
        f"- {run.mark}: {markdown(doubt, 1000)}"
        for run, verdict in zip(found.runs, verdicts, strict=True)
        for doubt in verdict.doubts
    ]
    out += [*doubts, ""] if doubts else []
    notable = [
        [markdown(c.id), markdown(c.title), *map(sign, c.statuses), markdown(remarks(c, marks))]
        for c in found.courses
        if c.notable
    ]
    if notable:
        out += table(["requirement", "", *marks, "remarks"], notable)
    out.append(f"{len(found.courses) - len(notable)} of {len(found.courses)} requirements went as before in all runs.")
    return "\n".join(out) + "\n"


def as_page(found: Trend) -> str:
    """The same as a page that needs nothing else."""
    marks = [run.mark for run in found.runs]
    verdicts = found.gathered.verdicts
    return shell(
        "trend.html.j2",
        runs=found.runs,
        rows=[(run, verdict, row(run, verdict.word)) for run, verdict in zip(found.runs, verdicts, strict=True)],
        titles=TITLES,
        courses=sorted(found.courses, key=lambda course: not course.notable),
        notable=sum(course.notable for course in found.courses),
        remarks=lambda course: remarks(course, marks),
        line=sparkline,
        chart=chart(found.runs),
    )


def sparkline(course: Course) -> Markup:
    """The largest error over the runs, on a logarithmic axis from 0.01 to 10 budgets; crosses are beyond the limit."""
    width, height = 14.0 * max(len(course.worst) - 1, 1) + 8, 22.0
    points = [(4 + 14.0 * n, _y(value, height), value) for n, value in enumerate(course.worst) if value is not None]
    if not points:
        return Markup("")
    drawn = [f'<path class="limit" d="M0 {_y(1.0, height)}H{width}"/>']
    drawn.append('<polyline points="{}"/>'.format(" ".join(f"{x},{y}" for x, y, _ in points)))
    for x, y, value in points:
        over = f'<path class="cross" d="M{x - 3} {y - 3}l6 6m0-6l-6 6"/>'
        drawn.append(over if value > 1 else f'<circle cx="{x}" cy="{y}" r="1.8"/>')
    values = ", ".join(told(value) for _, _, value in points)
    return svg(width, height, "chart", f"largest errors: {values}", drawn)


def _y(value: float, height: float) -> float:
    low, high = -2.0, 1.0
    place = math.log10(value) if 0 < value < math.inf else (high if value > 0 else low)
    return round(3 + (high - min(max(place, low), high)) / (high - low) * (height - 6), 1)


def chart(runs: Sequence[Run]) -> Markup:
    """Cases of every run as columns: what is bad below the line, what qualifies above it."""
    width, up, down = 36.0 * len(runs) + 8, 70.0, 40.0
    most = max((run.total for run in runs), default=1) or 1
    drawn = [f'<path class="zero" d="M0 {up}H{width}"/>']
    for number, run in enumerate(runs):
        bad = sum(n for status, n in run.counts.items() if status not in QUALIFYING)
        x = 8 + 36.0 * number
        tall = round((run.total - bad) / most * (up - 6), 1)
        drawn.append(f'<rect class="bars" x="{x}" y="{round(up - tall, 1)}" width="22" height="{tall}"/>')
        if bad:
            deep = max(2.0, round(bad / most * (down - 14), 1))
            drawn.append(f'<rect class="bad" x="{x}" y="{up}" width="22" height="{deep}"/>')
        drawn.append(f'<text class="tick" x="{x + 11}" y="{up + down}" text-anchor="middle">{run.mark}</text>')
    return svg(width, up + down + 2, "chart", "cases per run, those that do not qualify below the line", drawn)
