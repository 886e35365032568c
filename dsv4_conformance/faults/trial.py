"""Runs a profile's cases on one implementation in this process: what a fault's trial is, without pytest.

A case is judged as the plugin judges it, save for discrimination margins, which change no verdict. The truth of an
attention call does not depend on who answers it, so it is computed once for all faults that a process tries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from dsv4_conformance.cases.plan import PlannedCase, expand
from dsv4_conformance.cases.profiles import get_profile
from dsv4_conformance.cli.suite_functions import SuiteFunction, suite_functions
from dsv4_conformance.errors import ConformanceFailure, NotApplicable
from dsv4_conformance.faults import truths
from dsv4_conformance.implementations.api import Implementation
from dsv4_conformance.numerics.truth import Truth
from dsv4_conformance.runner.execute import Call
from dsv4_conformance.runner.session import Session
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.texts import summary_of


class Judge(Subject):
    """A subject without discrimination margins, whose truths are shared."""

    def truth(self, call: Call) -> Truth:
        """The float64 answer, computed once for equal calls."""
        return truths.shared(super().truth, call)

    def mutants_of(self, call: Call, truth: Truth) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Failure:
    """A case that failed: ``raised`` if all that happened is that the implementation raised; ``reason`` in a sentence;
    ``seconds``: since the trial began."""

    requirement: str
    case_id: str
    surface: str
    folder: str
    reason: str
    raised: bool
    seconds: float


@cache
def _functions() -> tuple[SuiteFunction, ...]:
    return tuple(suite_functions())


@cache
def plan(profile: str, surfaces: tuple[str, ...]) -> tuple[tuple[SuiteFunction, PlannedCase], ...]:
    """Cases of ``profile`` on ``surfaces``; those that take long on the built-in implementation come last."""
    chosen = get_profile(profile)
    found = [
        (function, case)
        for function in _functions()
        for case in expand(function.spec, function.name, chosen, 0)
        if case.surface in surfaces
    ]
    return tuple(sorted(found, key=lambda pair: pair[1].surface == "AttentionLayer"))


def trial(
    implementation: type[Implementation],
    surfaces: Sequence[str],
    profile: str,
    told: Callable[[str], None] = lambda case_id: None,
    first: str = "",
) -> Iterator[Failure]:
    """The first failing case of every requirement that fails, as they are found.

    Cases of requirement ``first`` come before the others. ``told`` hears of each case before it runs.
    """
    torch.manual_seed(0)
    session, began = Session(implementation, "cpu"), time.perf_counter()
    failed: set[str] = set()
    for function, case in sorted(plan(profile, tuple(surfaces)), key=lambda pair: pair[1].requirement != first):
        requirement = case.requirement
        if requirement in failed:
            continue
        told(case.case_id)
        failure = _judge(session, function, case)
        if failure is not None:
            failed.add(requirement)
            reason, raised = failure
            folder = function.path.parts[1]
            yield Failure(requirement, case.case_id, case.surface, folder, reason, raised, time.perf_counter() - began)


def _judge(session: Session, function: SuiteFunction, case: PlannedCase) -> tuple[str, bool] | None:
    subject: Any = Judge(session.implementation, session.device, case.requirement)
    try:
        function.function(subject, case.case)
    except NotApplicable:
        return None
    except ConformanceFailure as failure:
        return str(failure), _raised(failure)
    except (torch.OutOfMemoryError, MemoryError) as error:
        return f"out of memory: {summary_of(error)}", True
    return None


def _raised(failure: BaseException) -> bool:
    """Whether an exception of the implementation lies at the bottom of a failure."""
    while isinstance(failure.__cause__, ConformanceFailure):
        failure = failure.__cause__
    return failure.__cause__ is not None
