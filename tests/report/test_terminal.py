"""The terminal's summary: which of a requirement's tests failed."""

from types import SimpleNamespace
from typing import Any, cast

from dsv4_conformance.plugin.journal import Result
from dsv4_conformance.report.terminal import _failing_tests
from dsv4_conformance.status import Status


def results(*told: tuple[str, Status]) -> list[Result]:
    """One result of each test and status, in parameters of its own."""
    rows: list[Any] = [
        SimpleNamespace(nodeid=f"suites/a.py::{name}[case::{number}]", status=status)
        for number, (name, status) in enumerate(told)
    ]
    return cast(list[Result], rows)


# Kills: cases that were not judged counted, tests that hold named.
def test_where_several_tests_judge_a_requirement_those_that_fail_are_named() -> None:
    told = [
        ("test_formula", Status.PASS),
        ("test_subnormals", Status.FAIL),
        ("test_subnormals", Status.PASS),
        ("test_subnormals", Status.CRASH),
        ("test_subnormals", Status.NOT_APPLICABLE),
    ]
    assert _failing_tests(results(*told)) == ["2 of 3 in test_subnormals"]


def test_of_a_single_test_nothing_is_said() -> None:
    told = [("test_formula", Status.FAIL), ("test_other", Status.NOT_APPLICABLE), ("test_third", Status.NOT_RUN)]
    assert _failing_tests(results(*told)) == []
