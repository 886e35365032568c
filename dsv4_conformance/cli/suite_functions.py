"""The test functions of the suites, as pytest finds them, without expanding any case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance import resources
from dsv4_conformance.cli.pytest_run import base_arguments
from dsv4_conformance.errors import HarnessError
from dsv4_conformance.suite import TestSpec


@dataclass(frozen=True)
class SuiteFunction:
    """One test function and where it stands; ``path`` is relative to the folder of suites/."""

    function: Callable[..., None]
    spec: TestSpec
    path: Path

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__


class _Catcher:
    def __init__(self) -> None:
        self.found: list[SuiteFunction] = []
        self.errors: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, collector: pytest.Module, name: str, obj: Any) -> list[pytest.Item] | None:
        spec = getattr(obj, "dsv4", None)
        if not isinstance(spec, TestSpec) or not collector.istestfunction(obj, name):
            return None
        root = resources.suites_dir().parent
        self.found.append(SuiteFunction(obj, spec, collector.path.relative_to(root)))
        return []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.errors.append(f"{report.nodeid}: {str(report.longrepr).strip().splitlines()[-1]}")


def suite_functions() -> list[SuiteFunction]:
    """Every suite function in the order of collection. Raises HarnessError if a suite module cannot be imported."""
    catcher = _Catcher()
    silent = ["--collect-only", "-p", "no:terminal", "-p", "no:dsv4", str(resources.suites_dir())]
    pytest.main([*base_arguments(), *silent], plugins=[catcher])
    if catcher.errors:
        raise HarnessError(f"The suites cannot be collected: {catcher.errors[0]}")
    if not catcher.found:
        raise HarnessError(f"There are no suites in {resources.suites_dir()}.")
    return catcher.found
