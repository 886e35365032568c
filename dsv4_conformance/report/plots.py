"""Small plots as SVG, drawn on logarithmic axes; every text in them is escaped, and no style is written into them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup, escape

from dsv4_conformance.report.measured import BINS_PER_DECADE, ERROR_DECADES, MARGIN_DECADES, REQUIRED_MARGIN, told
from dsv4_conformance.status import Status

WIDTH = 168
LANE = 11
"""Height of one run's lane, in pixels."""


def _x(value: float, decades: tuple[int, int]) -> float:
    """Where ``value`` stands on a logarithmic axis, in pixels, kept within it."""
    if not value > 0:
        return 0.0
    share = (math.log10(value) - decades[0]) / (decades[1] - decades[0]) if math.isfinite(value) else 1.0
    return round(min(max(share, 0.0), 1.0) * WIDTH, 1)


def svg(width: float, height: float, kind: str, label: str, parts: Iterable[str]) -> Markup:
    """A drawing of class ``kind``; ``label`` says what it shows. ``parts`` are SVG, escaped already."""
    return Markup(
        '<svg class="{}" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>'
    ).format(kind, width, height, width, height, label, Markup("".join(parts)))


def _rule(x: float, height: float, kind: str) -> str:
    return f'<path class="{kind}" d="M{x} 0V{height}"/>'


def error_axis() -> Markup:
    """The scale above the error plots: decades, and the limit at 1."""
    return _axis(ERROR_DECADES, 1.0, "errors in budgets")


def margin_axis() -> Markup:
    """The scale above the margin plots, with the margin that is required."""
    return _axis(MARGIN_DECADES, REQUIRED_MARGIN, "margins in budgets")


def _axis(decades: tuple[int, int], limit: float, label: str) -> Markup:
    parts = []
    for power in range(decades[0], decades[1] + 1):
        x = _x(10.0**power, decades)
        if power != decades[0] and (power < 0 or power % 2):
            parts.append(f'<path class="zero" d="M{x} 5V9"/>')
            continue
        text = {0: "1", 1: "10", 2: "100"}.get(power, f"10{_superscript(power)}")
        anchor = "start" if x == 0 else "end" if x == WIDTH else "middle"
        parts.append(f'<text class="tick" x="{x}" y="9" text-anchor="{anchor}">{text}</text>')
    parts.append(f'<path class="limit" d="M{_x(limit, decades)} 11V15"/>')
    return svg(WIDTH, 15, "axis", label, parts)


def _superscript(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def errors(lanes: Sequence[tuple[Sequence[int], float | None] | None]) -> Markup:
    """Per run how many cases have which error: (bins, largest error), None for a run without the requirement."""
    height = LANE * len(lanes)
    limit = _x(1.0, ERROR_DECADES)
    parts = [_rule(limit, height, "limit")]
    step = WIDTH / ((ERROR_DECADES[1] - ERROR_DECADES[0]) * BINS_PER_DECADE)
    told_: list[str] = []
    for number, lane in enumerate(lanes):
        base = LANE * (number + 1) - 1
        if lane is None or lane[1] is None:
            parts.append(f'<path class="none" d="M0 {base - 4.5}h4"/>')
            told_.append("none")
            continue
        bins, top = lane[0], lane[1]
        most = max(bins)
        inside: list[str] = []
        outside: list[str] = []
        for place, count in enumerate(bins):
            if count:
                tall = max(1.5, round((LANE - 3) * math.sqrt(count / most), 1))
                bar = f"M{round(place * step, 1)} {base}v-{tall}h{round(step - 0.6, 1)}v{tall}z"
                (outside if place >= -ERROR_DECADES[0] * BINS_PER_DECADE else inside).append(bar)
        parts.append(f'<path class="bars" d="{"".join(inside)}"/>' if inside else "")
        parts.append(f'<path class="over" d="{"".join(outside)}"/>' if outside else "")
        x = _x(top, ERROR_DECADES)
        y = base - 4
        over = f'<path class="cross" d="M{x - 3} {y - 3}l6 6m0-6l-6 6"/>'
        parts.append(over if top > 1 else f'<path class="top" d="M{x} {base}v-9"/>')
        told_.append(told(top))
    return svg(WIDTH, height, "strip", f"largest errors in budgets, by run: {', '.join(told_)}", parts)


def margin_dots(lanes: Sequence[Mapping[str, float] | None]) -> Markup:
    """Per run by how much every known mistake is rejected; the least one is filled."""
    height = LANE * len(lanes)
    parts = [_rule(_x(REQUIRED_MARGIN, MARGIN_DECADES), height, "limit")]
    told_ = []
    for number, lane in enumerate(lanes):
        y = LANE * number + LANE / 2
        if not lane:
            parts.append(f'<path class="none" d="M0 {y}h4"/>')
            told_.append("none")
            continue
        least = min(lane.values())
        places = sorted({_x(value, MARGIN_DECADES) for value in lane.values()})
        parts.append('<path class="dots" d="{}"/>'.format("".join(f"M{x} {y - 3}v6" for x in places)))
        x = _x(least, MARGIN_DECADES)
        if least < REQUIRED_MARGIN:
            parts.append(f'<path class="cross" d="M{x - 3} {y - 3}l6 6m0-6l-6 6"/>')
        else:
            parts.append(f'<circle class="least" cx="{x}" cy="{y}" r="2.6"/>')
        told_.append(told(least))
    return svg(WIDTH, height, "strip", f"least margins in budgets, by run: {', '.join(told_)}", parts)


def share(counts: Mapping[Status, int], groups: Sequence[tuple[str, Sequence[Status]]]) -> Markup:
    """A run's cases as one bar, by group of statuses; what is there is at least three pixels wide."""
    width, height = 320.0, 10
    sums = [(kind, sum(counts.get(status, 0) for status in statuses)) for kind, statuses in groups]
    present = [(kind, count) for kind, count in sums if count]
    total = sum(count for _, count in present) or 1
    free = width - 3 * len(present)
    x, parts = 0.0, []
    for kind, count in present:
        wide = round(3 + free * count / total, 1)
        parts.append(
            f'<rect class="{escape(kind)}" x="{round(x, 1)}" y="0" width="{max(wide - 1, 2)}" height="{height}"/>'
        )
        x += wide
    label = ", ".join(f"{count} {kind}" for kind, count in present)
    return svg(width, height, "share", label, parts)


def interval(low: float, value: float, high: float, limit: float, reach: float) -> Markup:
    """A difference with its interval, in points; ``limit``: the drop that must not be reached. Zero is marked."""
    width, height = 260.0, 38.0

    def x(points: float) -> float:
        return round((min(max(points / reach, -1.0), 1.0) + 1) * (width - 20) / 2 + 10, 1)

    parts = [
        f'<path class="none" d="M10 23H{width - 10}"/>',
        f'<path class="zero" d="M{x(0)} 14V32"/>',
        f'<path class="limit" d="M{x(limit)} 12V34"/>',
        f'<path class="span" d="M{x(low)} 23H{x(high)}M{x(low)} 19v8M{x(high)} 19v8"/>',
        f'<circle class="least" cx="{x(value)}" cy="23" r="4"/>',
        f'<text class="tick" x="{x(limit)}" y="9" text-anchor="middle">{limit:g}</text>',
        f'<text class="tick" x="{x(0)}" y="9" text-anchor="middle">0</text>',
    ]
    told_ = f"difference {value:+.2f} points, interval {low:+.2f} to {high:+.2f}, limit {limit:g}"
    return svg(width, height, "interval", told_, parts)


def age(opened: int, left: int) -> Markup:
    """A waiver's life in days: how long it has been open, and what is left of the 90 that it may have."""
    width, height, most = 92.0, 8.0, 90.0
    done = round(min(opened, most) / most * width, 1)
    end = round(min(max(opened + left, 0), most) / most * width, 1)
    parts = [f'<path class="none" d="M0 4H{width}"/>', f'<rect class="waived" x="0" y="2" width="{done}" height="4"/>']
    parts.append(f'<path class="limit" d="M{end} 0V8"/>')
    return svg(width, height, "age", f"open for {opened} days, {left} left", parts)
