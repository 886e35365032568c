"""Accuracy and performance in a report: what the records of such cases say, brought into one form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsv4_conformance.plugin.journal import Result
from dsv4_conformance.report import escaping
from dsv4_conformance.report.folding import Run
from dsv4_conformance.report.gathering import Gathered
from dsv4_conformance.report.kept import Case, case_of
from dsv4_conformance.report.measured import mapping, number, told

SHOWN_ITEMS = 40
"""Questions lost or gained that are listed."""


@dataclass(frozen=True)
class Accuracy:
    """One judged accuracy run; shares in points. ``moved``: (word, question, golden, candidate) with right/passes."""

    run: Run
    task: str
    verdict: str
    candidate: str
    golden: str
    paragraph: str
    passes: str
    statuses: dict[str, str]
    scores: tuple[float, float] | None = None
    difference: tuple[float, float, float] | None = None
    margin: float | None = None
    findings: tuple[tuple[str, str, str], ...] = ()
    moved: tuple[tuple[str, str, str, str], ...] = ()
    more_moved: int = 0
    invalid: tuple[str, ...] = ()


def accuracies(gathered: Gathered) -> list[Accuracy]:
    """The accuracy runs of all journals."""
    return [_accuracy(run, record) for run in gathered.runs for record in run.accuracy]


def _accuracy(run: Run, record: Mapping[str, Any]) -> Accuracy:
    score = mapping(record.get("score"))
    golden = mapping(record.get("golden"))
    numbers = {name: number(score.get(name)) for name in ("candidate", "golden", "low", "difference", "high")}
    candidate, before, low, difference, high = (
        None if numbers[n] is None else 100 * (numbers[n] or 0.0)
        for n in ("candidate", "golden", "low", "difference", "high")
    )
    margin = number(mapping(record.get("rule")).get("margin"))
    moved = [
        (word, escaping.name(str(item.get("item", ""))), *(f"{_int(item, a)}/{_int(item, b)}" for a, b in _PAIRS))
        for key, word in (("broken", "broken"), ("lost", "lost"), ("gained", "gained"))
        for item in map(mapping, _list(score.get(key)))
    ]
    return Accuracy(
        run=run,
        task=escaping.name(str(record.get("task", ""))),
        verdict=escaping.name(str(record.get("verdict", ""))),
        candidate=escaping.name(str(record.get("candidate", ""))),
        golden=escaping.name(str(golden.get("name", ""))),
        paragraph=escaping.line(str(record.get("paragraph", ""))),
        passes=f"{_int(record, 'passes')} against {_int(golden, 'runs')}",
        statuses={escaping.name(n): escaping.name(s) for n, s in mapping(record.get("statuses")).items()},
        scores=None if candidate is None or before is None else (candidate, before),
        difference=None if low is None or difference is None or high is None else (low, difference, high),
        margin=None if margin is None else 100 * margin,
        findings=tuple(
            tuple(escaping.line(str(found.get(name, "")), 600) for name in ("gate", "verdict", "sentence"))  # type: ignore[misc]
            for found in map(mapping, _list(record.get("findings")))
        ),
        moved=tuple((w, i, g, c) for w, i, g, c in moved[:SHOWN_ITEMS]),
        more_moved=max(0, len(moved) - SHOWN_ITEMS),
        invalid=tuple(escaping.line(str(why), 600) for why in _list(record.get("invalid"))),
    )


_PAIRS = (("golden", "runs"), ("candidate", "repeats"))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _int(record: Mapping[str, Any], name: str) -> str:
    value = number(record.get(name))
    return "?" if value is None else f"{value:g}"


@dataclass(frozen=True)
class Timed:
    """One performance case: its numbers by name, and where it stands under the roof, if it says so."""

    run: Run
    case: Case
    numbers: dict[str, str]
    point: tuple[float, float] | None = None
    roof: tuple[float, float] | None = None
    spread: tuple[float, float, float] | None = None


@dataclass
class Performance:
    """All performance cases. ``roofs``: (run, flop/s, byte/s, points) with points (letter, flop/byte, flop/s)."""

    cases: list[Timed] = field(default_factory=list)
    roofs: list[tuple[Run, float, float, list[tuple[str, float, float]]]] = field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        """Names of the numbers, in order of appearance."""
        return list(dict.fromkeys(name for case in self.cases for name in case.numbers))


def performance(gathered: Gathered) -> Performance:
    """What the performance cases of all journals measured.

    Every number of ``metrics`` is told. ``record.performance`` may add ``seconds`` (median, low, high), ``flops``,
    ``bytes`` of one call, and ``ceilings`` (flops_per_s, bytes_per_s), which make a roofline.
    """
    found = Performance()
    for run in gathered.runs:
        mine = [_timed(run, result) for result in run.performance]
        found.cases += mine
        roofs = [case.roof for case in mine if case.roof is not None]
        points = [(str(n), *case.point) for n, case in enumerate(mine, 1) if case.point is not None]
        if roofs and points:
            found.roofs.append((run, max(roof[0] for roof in roofs), max(roof[1] for roof in roofs), points))
    return found


def _timed(run: Run, result: Result) -> Timed:
    metrics = mapping(result.record.get("metrics"))
    extra = mapping(result.record.get("performance"))
    numbers = {escaping.name(key): told(value) for key in metrics if (value := number(metrics[key])) is not None}
    seconds = mapping(extra.get("seconds"))
    median, low, high = (number(seconds.get(name)) for name in ("median", "low", "high"))
    flops, moved = number(extra.get("flops")), number(extra.get("bytes"))
    ceilings = mapping(extra.get("ceilings"))
    top, wide = number(ceilings.get("flops_per_s")), number(ceilings.get("bytes_per_s"))
    point = (flops / moved, flops / median) if _positive(flops, moved, median) and flops and moved and median else None
    return Timed(
        run=run,
        case=case_of(result),
        numbers=numbers,
        point=point,
        roof=(top, wide) if _positive(top, wide) and top and wide else None,
        spread=None if median is None or low is None or high is None else (low, median, high),
    )


def _positive(*values: float | None) -> bool:
    return all(value is not None and 0 < value < float("inf") for value in values)
