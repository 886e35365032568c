"""An A/B comparison, told: as text for a terminal, as Markdown, as a page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from dsv4_conformance.report.ab import Bits, Compared
from dsv4_conformance.report.escaping import code, line, markdown, name
from dsv4_conformance.report.measured import told
from dsv4_conformance.report.overview import table
from dsv4_conformance.report.page import shell
from dsv4_conformance.report.plots import svg
from dsv4_conformance.status import Status

SHOWN = 30
SHOWN_MARKDOWN = 60


@dataclass(frozen=True)
class Told:
    """A whole comparison. ``hellos``: what each build says of itself."""

    hellos: tuple[dict[str, Any], dict[str, Any]]
    profile: str
    cases: Sequence[Compared]

    @property
    def labels(self) -> tuple[str, str]:
        """Name, build and packages of A and of B."""
        one, other = (
            name(f"{h['name']} {h['build']}{h.get('from', '')} ({h['packages']}, {h['device']})") for h in self.hellos
        )
        return one, other

    @property
    def both(self) -> list[Compared]:
        """Cases that both builds answered."""
        return [case for case in self.cases if case.both]

    @property
    def notable(self) -> list[Compared]:
        """What is wrong in either build, then where bits differ, the largest errors first."""
        found = [case for case in self.cases if wrong(case) or case.differing]
        return sorted(found, key=lambda case: (not wrong(case), -_worst(case)))

    @property
    def speed(self) -> str:
        """Times of B against A, in one sentence."""
        ratios = [case.ratio for case in self.cases if case.ratio]
        if not ratios:
            return "Times were not compared."
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        faster = sum(case.faster is True for case in self.cases)
        slower = sum(case.faster is False for case in self.cases)
        return (
            f"B takes {mean:.2f} of A's time (geometric mean of {len(ratios):,} cases; {min(ratios):.2f} to "
            f"{max(ratios):.2f}): faster in {faster:,}, slower in {slower:,}, no difference beyond noise in "
            f"{len(ratios) - faster - slower:,}."
        )

    @property
    def sameness(self) -> str:
        """Bits, in one sentence."""
        same = sum(not case.differing for case in self.both)
        if same == len(self.both):
            return f"All {same:,} cases that both answered have the same bits."
        ulps = max((bits.ulps for case in self.both for bits in case.bits.values()), default=0)
        return f"{same:,} of {len(self.both):,} cases have the same bits; the others differ by {ulps:,} ulp at most."

    @property
    def verdicts(self) -> str:
        """What is right, in one sentence."""
        counts = [sum(case.statuses[place] in ("PASS", "NOT_APPLICABLE") for case in self.cases) for place in (0, 1)]
        if counts == [len(self.cases)] * 2:
            return f"Both are right in all {len(self.cases):,} cases."
        return f"A is right in {counts[0]:,} of {len(self.cases):,} cases, B in {counts[1]:,}."


def wrong(case: Compared) -> bool:
    """Whether either build is not right."""
    return any(status not in ("PASS", "NOT_APPLICABLE") for status in case.statuses)


def _worst(case: Compared) -> float:
    return max((ratio for errors in case.errors for ratio in errors.values()), default=0.0)


def errors(case: Compared) -> str:
    """The errors of A and B in budgets, output by output."""
    names = dict.fromkeys((*case.errors[0], *case.errors[1]))
    pairs = [f"{n} {told(case.errors[0].get(n)) or '–'} / {told(case.errors[1].get(n)) or '–'}" for n in names]
    return ", ".join(pairs)


def bits(case: Compared) -> str:
    """How many elements differ, and by how much, of the outputs that differ at all."""
    if not case.both:
        return ""
    found = [f"{n} {b.differing:,} of {b.total:,}, {_far(b)}" for n, b in case.bits.items() if b.differing]
    return "; ".join(found) or "same bits"


def _far(found: Bits) -> str:
    return "in special values" if found.ulps < 0 else f"by {found.far:.1e}, {found.ulps:,} ulp"


def speed(case: Compared) -> str:
    """Time of B over A; ~ where noise is larger."""
    if case.ratio is None:
        return ""
    return f"{'~' if case.faster is None else ''}{case.ratio:.2f}"


def text(found: Told) -> Iterator[str]:
    """Lines for a terminal."""
    for mark, label in zip("AB", found.labels, strict=True):
        yield f"{mark}  {label}"
    for case in found.notable[:SHOWN]:
        statuses = case.statuses[0] if len(set(case.statuses)) == 1 else " / ".join(case.statuses)
        yield f"{name(case.id)} {name(case.surface)} {line(case.label, 80)}: {statuses}"
        parts = [f"errors {errors(case)}" if errors(case) else "", bits(case)]
        parts += [f"time {speed(case)}" if speed(case) else ""]
        yield f"    {'; '.join(filter(None, parts))}"
        for mark, reason in zip("AB", case.reasons, strict=True):
            if reason:
                yield f"    {mark}: {line(reason, 300)}"
    if len(found.notable) > SHOWN:
        yield f"... and {len(found.notable) - SHOWN:,} more; -o DIR writes all of them."
    yield from (found.verdicts, found.sameness, found.speed)


def as_markdown(found: Told) -> str:
    """The same as Markdown."""
    out = ["## A/B", ""]
    out += [f"- {mark}: {markdown(label)}" for mark, label in zip("AB", found.labels, strict=True)]
    out += ["", f"**{found.verdicts}** {found.sameness} {found.speed}", ""]
    rows = [
        [
            code(case.id, 100),
            markdown(f"{case.surface} {case.label}", 120),
            *case.statuses,
            markdown(errors(case)),
            markdown(bits(case)),
            speed(case),
        ]
        for case in found.notable[:SHOWN_MARKDOWN]
    ]
    if rows:
        out += table(["case", "what", "A", "B", "errors A / B, in budgets", "bits", "time B / A"], rows, right=1)
    if len(found.notable) > SHOWN_MARKDOWN:
        out.append(f"and {len(found.notable) - SHOWN_MARKDOWN:,} more cases that differ")
    return "\n".join(out).rstrip() + "\n"


def as_page(found: Told) -> str:
    """The same as a page that needs nothing else; it has every case."""
    return shell(
        "ab.html.j2",
        found=found,
        notable=found.notable,
        rest=[case for case in found.cases if case not in found.notable],
        errors=errors,
        bits=bits,
        speed=speed,
        plot=speeds(found.cases),
        status=Status,
    )


def speeds(cases: Sequence[Compared]) -> Markup:
    """Every case's time of B over A, in order: on the line the same, below it faster; noise as a stroke."""
    ratios = sorted((case for case in cases if case.ratio), key=lambda case: case.ratio or 1.0)
    if not ratios:
        return Markup("")
    width, height = 640.0, 150.0
    low, high = (math.log2(ratios[0].ratio or 1.0), math.log2(ratios[-1].ratio or 1.0))
    reach = max(abs(low), abs(high), 0.2) * 1.1

    def y(ratio: float) -> float:
        return round((1 - min(max(math.log2(ratio) / reach, -1.0), 1.0)) * (height - 20) / 2 + 6, 1)

    drawn = [f'<path class="limit" d="M34 {y(1)}H{width}"/>']
    for level in (2**-reach, 1.0, 2**reach):
        drawn.append(f'<text class="tick" x="30" y="{y(level) + 3}" text-anchor="end">{level:.2f}</text>')
    for place, case in enumerate(ratios):
        x = round(40 + place * (width - 46) / max(len(ratios) - 1, 1), 1)
        noise = case.noise
        if noise is not None:
            drawn.append(f'<path class="grid noise" d="M{x} {y(noise[0])}V{y(noise[1])}"/>')
        kind = "soft" if case.faster is None else "slow" if case.faster is False else "quick"
        drawn.append(f'<circle class="{kind}" cx="{x}" cy="{y(case.ratio or 1.0)}" r="2.2"/>')
    return svg(width, height, "chart", "time of B over time of A, case by case", drawn)
