"""What becomes of a case whose process died: one result, one entry in JUnit."""

from __future__ import annotations

from typing import Any

import pytest

from dsv4_conformance.plugin.deaths import Death
from dsv4_conformance.plugin.journal import PlanEntry
from dsv4_conformance.status import QUALIFYING, Status

OVERRULED = ("status", "reason", "waiver", "waived_status")
"""What a later finding changes in the result of a case that had passed."""


def payload(entry: PlanEntry, status: Status, reason: str, worker: str, reproducer: str) -> dict[str, Any]:
    """A result that no worker reported."""
    return {
        **entry.model_dump(),
        "status": str(status),
        "reason": reason,
        "record": {},
        "duration_s": 0.0,
        "worker": worker,
        "reproducer": reproducer,
        "waiver": "",
        "waived_status": None,
        "leave": 0,
        "bad_input": False,
    }


def charge(report: pytest.TestReport, told: dict[str, Any], known: dict[str, Any] | None) -> None:
    """Turn a report of a crash into the one that the case still owes.

    Without a report of the call before (``known`` is None) it becomes the call's, with the payload ``told``. After one
    it becomes the teardown's: a second failure would count the case twice. There a failed case stays so, and one that
    had passed gets status and reason of ``told``.
    """
    report.when = "teardown" if known else "call"
    if known and Status(known["status"]) in QUALIFYING:
        told = known | {key: told[key] for key in OVERRULED}
    elif known:
        told = known
        report.outcome, report.longrepr = "passed", None
    if told["status"] == Status.WAIVED and report.outcome == "failed":
        report.outcome, report.longrepr = "skipped", (report.location[0], 1, f"Skipped: {told['reason']}")
        report.wasxfail = told["reason"]
    if report.outcome == "failed":
        report.longrepr = f"{told['reason']}\nre-run: {told['reproducer']}"
    report.dsv4 = told  # type: ignore[attr-defined]
    report.user_properties = [(f"dsv4_{key}", told[key]) for key in ("requirement", "case_id", "surface", "status")]


def reason_of(death: Death, begun: str | None, nodeid: str, limit_s: float) -> str:
    """Why a case has the status of a death; ``begun`` is the last case that the process began."""
    if begun == nodeid:
        return death.sentence("while it ran this case", limit_s)
    before = f"; the last one it began was {begun}" if begun else ""
    return death.sentence(f"before it began this case{before}", limit_s)


def teardown_of(crash: pytest.TestReport) -> pytest.TestReport:
    """The teardown report that the dead worker did not send; JUnit closes a case, and writes its properties, on it."""
    report = pytest.TestReport(
        nodeid=crash.nodeid,
        location=crash.location,
        keywords={},
        outcome="passed",
        longrepr=None,
        when="teardown",
        user_properties=crash.user_properties,
    )
    report.node = getattr(crash, "node", None)  # type: ignore[attr-defined]
    return report
