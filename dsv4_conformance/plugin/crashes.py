"""What the controller makes of a worker's death: one result for the case that was running, one entry in JUnit."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.plugin.journal import PlanEntry
from dsv4_conformance.plugin.results_folder import last_started
from dsv4_conformance.status import QUALIFYING, Status


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
        "context_dead": False,
        "bad_input": False,
    }


def charge(
    report: pytest.TestReport, entry: PlanEntry, known: dict[str, Any] | None, results: Path, reproducer: str
) -> None:
    """Turn xdist's report of a crash into the one that the case still owes.

    Without a report of the call before (``known`` is None) it becomes the call's. After one it becomes the teardown's:
    a second failure would count the case twice. There a failed case stays so, and one that had passed is a CRASH.
    """
    node: Any = report.node
    worker = str(node.gateway.id)
    how = cause_of_death(node)
    if known is None:
        begun = last_started(results, worker)
        reason = f"The worker process {how} while it ran this case."
        if begun != entry.nodeid:
            before = f"; the last one it began was {begun}" if begun else ""
            reason = f"The worker process {how} before it began this case{before}."
        report.when = "call"
        told = payload(entry, Status.CRASH, reason, worker, reproducer)
    else:
        report.when = "teardown"
        told = dict(known)
        if Status(known["status"]) in QUALIFYING:
            told |= {"status": str(Status.CRASH), "reason": f"The worker process {how} right after this case."}
        else:
            report.outcome, report.longrepr = "passed", None
    if report.outcome == "failed":
        report.longrepr = f"{told['reason']}\nre-run: {reproducer}"
    report.dsv4 = told  # type: ignore[attr-defined]
    report.user_properties = [(f"dsv4_{key}", told[key]) for key in ("requirement", "case_id", "surface", "status")]


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
    report.node = crash.node  # type: ignore[attr-defined]
    return report


def cause_of_death(node: Any) -> str:
    """How the worker's process ended, as far as its parent knows: "died of SIGSEGV", "exited with code 3", "died"."""
    try:
        code = node.gateway._io.popen.wait(timeout=5)
    except Exception:  # the process is remote, or execnet keeps it elsewhere
        return "died"
    if code < 0:
        try:
            return f"died of {signal.Signals(-code).name}"
        except ValueError:
            return f"died of signal {-code}"
    return f"exited with code {code}"
