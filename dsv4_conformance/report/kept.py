"""A case as a report keeps it: what is shown of it, in texts of bounded length."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from dsv4_conformance.plugin.journal import Result
from dsv4_conformance.report import escaping
from dsv4_conformance.report.measured import mapping, number, ratios, worst
from dsv4_conformance.report.measured import margins as margins_of
from dsv4_conformance.status import QUALIFYING, Status


@dataclass(frozen=True, slots=True)
class Case:
    """``id``: the case's, shortened if it is too long to show, and still unlike others'. ``test``: file and function;
    ``label``: what the case is. ``outputs``: name -> (error in budgets, absolute error, budget), None where nothing was
    recorded. ``margin``: of the known mistakes the least rejected one, ``weakest``, in budgets."""

    id: str
    requirement: str
    surface: str
    test: str
    label: str
    status: Status
    reason: str
    outputs: dict[str, tuple[float, float | None, float | None]]
    margin: float | None
    weakest: str
    duration_s: float
    reproducer: str
    waiver: str

    @property
    def bad(self) -> bool:
        """Whether it does not qualify."""
        return self.status not in QUALIFYING

    @property
    def worst(self) -> float | None:
        """Its largest error in budgets."""
        return max((ratio for ratio, _, _ in self.outputs.values()), default=None)


def case_of(result: Result) -> Case:
    """What is kept of a result."""
    metrics, budget = mapping(result.record.get("metrics")), mapping(result.record.get("budget"))
    outputs = {
        escaping.name(name): (ratio, number(metrics.get(f"{name}_error")), number(budget.get(name)))
        for name, ratio in ratios(result.record).items()
    }
    weakest, margin = min(margins_of(result.record), key=lambda found: found[1], default=("", None))
    test, label = _named(result)
    return Case(
        id=identifier(result.case_id),
        requirement=identifier(result.requirement),
        surface=escaping.name(result.surface),
        test=test,
        label=label,
        status=result.status,
        reason=escaping.block(result.reason),
        outputs=outputs,
        margin=margin,
        weakest=escaping.name(weakest),
        duration_s=result.duration_s,
        reproducer=escaping.line(result.reproducer, 400),
        waiver=escaping.name(result.waiver),
    )


def identifier(text: str) -> str:
    """``text`` as a name; one that is too long ends in its digest, so that it stays different from others."""
    if len(text) <= escaping.ID_LENGTH:
        return escaping.name(text)
    return f"{escaping.line(text[:60], 300)}…{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:12]}"


def test_of(nodeid: str) -> str:
    """File and function of a nodeid, such as ``attention/test_formula.py::test_sink``."""
    return nodeid.partition("[")[0].removeprefix("suites/")


def _named(result: Result) -> tuple[str, str]:
    test = test_of(result.nodeid)
    label = result.nodeid.partition("[")[2].removesuffix("]").removesuffix(result.case_id).rstrip("-")
    return escaping.name(test), escaping.name(label)


def worst_of(result: Result) -> float | None:
    """The largest error of a result, in budgets."""
    return worst(ratios(result.record))
