"""Runs suite functions in this process on an adapter, as the plugin does, without pytest and without margins."""

from __future__ import annotations

from functools import cache

import torch

from dsv4_conformance.cases.plan import PlannedCase, expand
from dsv4_conformance.cases.profiles import get_profile
from dsv4_conformance.cli.suite_functions import SuiteFunction, suite_functions
from dsv4_conformance.errors import ConformanceFailure, NotApplicable
from dsv4_conformance.implementations.api import Implementation
from dsv4_conformance.numerics.truth import Truth
from dsv4_conformance.runner.execute import Call
from dsv4_conformance.runner.session import Session
from dsv4_conformance.runner.subject import Subject


class _Judge(Subject):
    """A subject that does not measure margins: they take most of a case's time and change no verdict."""

    def mutants_of(self, call: Call, truth: Truth) -> None:
        """Nothing."""


@cache
def functions() -> tuple[SuiteFunction, ...]:
    """Every suite function."""
    return tuple(suite_functions())


def requirements() -> list[str]:
    """Every requirement that the default profile selects, in the suites' order."""
    return list(dict.fromkeys(f.spec.requirement for f in functions()))


@cache
def planned(function: SuiteFunction, profile: str) -> tuple[PlannedCase, ...]:
    """The cases of one function."""
    return tuple(expand(function.spec, function.name, get_profile(profile), 0))


def first_failure(
    adapter: type[Implementation], requirement: str, profile: str = "default", most: int | None = None
) -> str | None:
    """What the first failing case of a requirement says, or None if every case passes or does not apply.

    ``most``: of each function, only so many cases. Raises AssertionError if no case was checked.
    """
    torch.manual_seed(0)
    session, checked = Session(adapter, "cpu"), 0
    for function in functions():
        if function.spec.requirement != requirement:
            continue
        for case in planned(function, profile)[:most]:
            if case.surface not in adapter.surfaces:
                continue
            subject = _Judge(session.implementation, session.device, requirement)
            try:
                function.function(subject, case.case)
            except NotApplicable:
                continue
            except ConformanceFailure as failure:
                return str(failure)
            checked += bool(subject.record()["checked"])
    assert checked, f"{requirement} was not checked at all"
    return None
