"""Plots of times: a relation with its interval and limit, and achieved rates under a roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from dsv4_conformance.report.plots import svg


def relation(low: float, median: float, high: float, limit: float) -> Markup:
    """A ratio of times with its interval, on a logarithmic axis from a quarter to four times; the limit is dashed."""
    width, height, reach = 150.0, 16.0, 2.0

    def x(ratio: float) -> float:
        return round((min(max(math.log2(ratio) / reach, -1.0), 1.0) + 1) * (width - 8) / 2 + 4, 1)

    parts = [f'<path class="none" d="M4 8H{width - 4}"/>', f'<path class="zero" d="M{x(1)} 3V13"/>']
    parts.append(f'<path class="limit" d="M{x(limit)} 1V15"/>')
    parts.append(f'<path class="span" d="M{x(low)} 8H{x(high)}M{x(low)} 5v6M{x(high)} 5v6"/>')
    parts.append(f'<circle class="{"over" if low > limit else "least"}" cx="{x(median)}" cy="8" r="3"/>')
    label = f"{median:.2f} times ({low:.2f} to {high:.2f}), limit {limit:.2f}"
    return svg(width, height, "strip", label, parts)


def roofline(points: Sequence[tuple[str, float, float]], flops: float, bytes_: float) -> Markup:
    """Rate over arithmetic intensity. ``points``: (name, flop per byte, flop/s); ceilings in flop/s and B/s."""
    width, height, left, bottom = 560.0, 260.0, 46.0, 26.0
    ridge = flops / bytes_
    xs = [ridge, *(p[1] for p in points)]
    ys = [flops, *(p[2] for p in points)]
    x0, x1 = math.floor(math.log10(min(xs))) - 0.2, math.ceil(math.log10(max(xs))) + 0.2
    y0, y1 = math.floor(math.log10(min(ys))), math.log10(max(ys)) + 0.2

    def at(intensity: float, rate: float) -> tuple[float, float]:
        x = left + (math.log10(intensity) - x0) / (x1 - x0) * (width - left - 8)
        y = 8 + (y1 - math.log10(rate)) / (y1 - y0) * (height - bottom - 8)
        return round(x, 1), round(y, 1)

    roof = [at(max(10**x0, 10**y0 / bytes_), max(10**x0 * bytes_, 10**y0)), at(ridge, flops), at(10**x1, flops)]
    parts = ['<path class="roof" d="M{}"/>'.format("L".join(f"{x} {y}" for x, y in roof))]
    for power in range(math.ceil(x0), math.floor(x1) + 1):
        x = at(10.0**power, 10**y0)[0]
        parts.append(f'<path class="grid" d="M{x} 8V{height - bottom}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{height - 12}" text-anchor="middle">{10.0**power:g}</text>')
    for power in range(math.ceil(y0), math.floor(y1) + 1):
        y = at(10**x0, 10.0**power)[1]
        parts.append(f'<path class="grid" d="M{left} {y}H{width - 8}"/>')
        parts.append(f'<text class="tick" x="{left - 4}" y="{y + 3}" text-anchor="end">{_flops(10.0**power)}</text>')
    parts.append(f'<text class="tick" x="{width - 8}" y="{height - 1}" text-anchor="end">flop per byte</text>')
    for letter, intensity, rate in points:
        x, y = at(intensity, rate)
        parts.append(f'<circle class="least" cx="{x}" cy="{y}" r="3.5"/>')
        parts.append(f'<text class="mark" x="{x + 6}" y="{y + 4}">{escape(letter)}</text>')
    return svg(width, height, "roofline", f"roofline with {len(points)} points", parts)


def _flops(rate: float) -> str:
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if rate >= size:
            return f"{rate / size:g} {unit}"
    return f"{rate:g}"
