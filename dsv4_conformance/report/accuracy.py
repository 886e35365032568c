"""Accuracy in a report: what the records of judged accuracy runs say, brought into one form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsv4_conformance.report import escaping
from dsv4_conformance.report.folding import Run
from dsv4_conformance.report.gathering import Gathered
from dsv4_conformance.report.measured import mapping, number

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
