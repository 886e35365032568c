"""Performance in a report: relations of times within one run, and calls under the roofline that the run measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsv4_conformance.plugin.journal import Result
from dsv4_conformance.report import escaping
from dsv4_conformance.report.folding import Run
from dsv4_conformance.report.gathering import Gathered
from dsv4_conformance.report.kept import Case, case_of
from dsv4_conformance.report.measured import mapping, number, told

UNITS = {"flops": (1e12, "TFLOP/s"), "bandwidth": (1e12, "TB/s"), "flop": (1e9, "GFLOP"), "bytes": (1e6, "MB")}
"""Last word of a metric's name -> what its number is divided by, and the unit then."""
SHARES = ("share", "spread")


@dataclass(frozen=True)
class Timed:
    """One performance case. ``numbers``: its metrics, told; ``relation``: (low, median, high, limit) of a ratio of
    times; ``point``: (FLOP per byte, FLOP/s), and ``roof``: the ceilings (FLOP/s, byte/s) measured beside it."""

    run: Run
    case: Case
    numbers: dict[str, str]
    relation: tuple[float, float, float, float] | None = None
    point: tuple[float, float] | None = None
    roof: tuple[float, float] | None = None


@dataclass
class Performance:
    """All performance cases. ``roofs``: (run, FLOP/s, byte/s, points); a point: (case, FLOP per byte, FLOP/s)."""

    cases: list[Timed] = field(default_factory=list)
    roofs: list[tuple[Run, float, float, list[tuple[str, float, float]]]] = field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        """Names of the numbers, in order of appearance."""
        return list(dict.fromkeys(name for case in self.cases for name in case.numbers))


def performance(gathered: Gathered) -> Performance:
    """What the performance cases of all journals measured; docs/performance.md lists their metrics.

    ``relative_time`` with ``_low``, ``_high`` and ``_limit`` is a relation; ``flop``, ``bytes``, ``achieved_flops``,
    ``ceiling_flops`` and ``ceiling_bandwidth`` make a point of the roofline. Every number is told.
    """
    found = Performance()
    for run in gathered.runs:
        first = len(found.cases) + 1
        mine = [_timed(run, result) for result in run.performance]
        found.cases += mine
        roofs = [case.roof for case in mine if case.roof is not None]
        points = [(str(n), *case.point) for n, case in enumerate(mine, first) if case.point is not None]
        if roofs and points:
            found.roofs.append((run, max(roof[0] for roof in roofs), max(roof[1] for roof in roofs), points))
    return found


def _timed(run: Run, result: Result) -> Timed:
    metrics = mapping(result.record.get("metrics"))
    value = {name: found for name in metrics if (found := number(metrics[name])) is not None}
    return Timed(
        run=run,
        case=case_of(result),
        numbers=_numbers(value),
        relation=_relation(value),
        point=_positive(value.get("flop"), value.get("bytes"), value.get("achieved_flops")),
        roof=_positive(value.get("ceiling_flops"), None, value.get("ceiling_bandwidth")),
    )


def _numbers(value: Mapping[str, float]) -> dict[str, str]:
    """The metrics by heading; a relation of times as one of them, errors left to the requirement's row."""
    found = {}
    relation = _relation(value)
    if relation is not None:
        low, middle, high, limit = relation
        found["relative time"] = f"{middle:.2f} ({low:.2f} to {high:.2f}), limit {limit:.2f}"
    for name, number_ in value.items():
        if not name.startswith("relative_time") and not name.endswith(("_ratio", "_error", "_cosine")):
            found[escaping.name(_heading(name))] = _told(name, number_)
    return found


def _relation(value: Mapping[str, float]) -> tuple[float, float, float, float] | None:
    names = ("relative_time_low", "relative_time", "relative_time_high", "relative_time_limit")
    low, middle, high, limit = (value.get(name) for name in names)
    if low is None or middle is None or high is None or limit is None:
        return None
    good = all(0 < found < math.inf for found in (low, middle, high, limit))
    return (low, middle, high, limit) if good else None


def _positive(one: float | None, by: float | None, other: float | None) -> tuple[float, float] | None:
    """(one / by, other), if all of them are positive and finite; ``by`` None is 1."""
    divisor = 1.0 if by is None else by
    if one is None or other is None or not all(0 < found < math.inf for found in (one, divisor, other)):
        return None
    return one / divisor, other


def _unit(name: str) -> tuple[float, str]:
    return UNITS.get(name.rpartition("_")[2], (1.0, "ms" if name.endswith("ms") else ""))


def _heading(name: str) -> str:
    unit = _unit(name)[1]
    plain = name.removesuffix("_ms").replace("_", " ")
    return f"{plain}, {unit}" if unit and plain != unit else plain


def _told(name: str, value: Any) -> str:
    if name.endswith(SHARES) and math.isfinite(value):
        return f"{value:.0%}"
    return told(value / _unit(name)[0])
