"""The terminal's summary: which of a requirement's tests failed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from dsv4_conformance.plugin.journal import Result, read_journal
from dsv4_conformance.report.markdown import markdown
from dsv4_conformance.report.terminal import _failing_tests, rows, weak
from dsv4_conformance.status import Status
from tests.report import made


def results(*told: tuple[str, Status]) -> list[Result]:
    """One result of each test and status, in parameters of its own."""
    found: list[Any] = [
        SimpleNamespace(nodeid=f"suites/a.py::{name}[case::{number}]", status=status)
        for number, (name, status) in enumerate(told)
    ]
    return cast(list[Result], found)


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


# Kills: an error or a margin that stands beside no checked case; summaries that do not say where a mistake may pass.
def test_what_does_not_apply_gives_no_figures_and_small_margins_are_named(tmp_path: Path) -> None:
    told = [
        made.result("INV-01-00000001", margin=1.5),
        made.result("INV-02-00000002"),
        made.result("INV-03-00000003", Status.NOT_APPLICABLE, ratio=0.9, margin=0.1),
    ]
    journal = read_journal(made.write(tmp_path / "journal.jsonl", told))
    found = {row.id: row for row in rows(journal)}
    assert (found["INV-03"].worst, found["INV-03"].margin) == (None, None) and found["INV-01"].margin == 1.5
    sentence = "A known mistake may pass here (margin below 3): INV-01."
    assert weak(list(found.values())) == sentence and f"\n{sentence}\n" in markdown(journal)
    assert weak([found["INV-02"]]) == ""
    environment = journal.header.environment
    assert f"| versions | dsv4-conformance {journal.header.version} {environment.commit[:10]}" in markdown(journal)
