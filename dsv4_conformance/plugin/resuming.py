"""Going on with a run that was killed, interrupted or stopped: what its journal still tells is not run again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.plugin.fitting import SAME_RUN, refuse_unless_equal
from dsv4_conformance.plugin.journal import Header, Journal, Result, read_journal
from dsv4_conformance.plugin.results_folder import JOURNAL
from dsv4_conformance.status import Status

AGAIN = frozenset({Status.NOT_RUN, Status.HARNESS_ERROR, Status.INVALID})
"""Statuses that say nothing of the implementation: such cases are run again."""


@dataclass(frozen=True)
class Earlier:
    """The journal to go on with, at ``path``."""

    path: Path
    journal: Journal

    @property
    def kept(self) -> dict[str, Result]:
        """nodeid -> result of every case that is not run again."""
        return {result.nodeid: result for result in self.journal.results if result.status not in AGAIN}

    def check(self, header: Header) -> None:
        """Raise BadInput, naming the field, unless ``header`` is of the same run."""
        refuse_unless_equal(SAME_RUN, self.journal.header, header, "resumed", self.path)

    @property
    def runs(self) -> list[str]:
        """Ids of the runs that the journal comes from, oldest first."""
        return [*self.journal.header.resumed, self.journal.header.run_id]


def earlier(folder: Path) -> Earlier | None:
    """The journal in a results folder, None if there is none. Raises BadInput if it is none or is damaged."""
    path = folder / JOURNAL
    return Earlier(path, read_journal(path)) if path.exists() else None


def payload_of(result: Result) -> dict[str, Any]:
    """The payload that a worker sent for this result."""
    return result.model_dump(mode="json") | {"leave": 0, "bad_input": False}


def reports(results: Iterable[Result]) -> Iterable[pytest.TestReport]:
    """What pytest is to hear of results that it has not seen being made: a call and its teardown for each."""
    for result in results:
        path, _, name = result.nodeid.partition("::")
        told = f"{result.reason}\nre-run: {result.reproducer}"
        outcome = outcome_of(result.status)
        longrepr: Any = None
        if outcome == "failed":
            longrepr = told
        elif outcome == "skipped":
            longrepr = (path, 1, f"Skipped: {result.reason}")
        properties = [(f"dsv4_{key}", getattr(result, key)) for key in ("requirement", "case_id", "surface", "status")]
        for when in ("call", "teardown"):
            over = when == "teardown"
            report = pytest.TestReport(
                nodeid=result.nodeid,
                location=(path, None, name),
                keywords={},
                outcome="passed" if over else outcome,
                longrepr=None if over else longrepr,
                when=when,
                duration=0.0 if over else result.duration_s,
                user_properties=[(key, str(value)) for key, value in properties],
            )
            if result.status is Status.WAIVED and not over:
                report.wasxfail = result.reason
            if not over:
                report.dsv4 = payload_of(result)  # type: ignore[attr-defined]
            yield report


def outcome_of(status: Status) -> Any:
    """pytest's word for a status."""
    if status in (Status.PASS, Status.WARN):
        return "passed"
    if status in (Status.NOT_APPLICABLE, Status.NOT_RUN, Status.QUARANTINED, Status.WAIVED):
        return "skipped"
    return "failed"
