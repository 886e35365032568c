"""Hooks of a process that runs cases: each item's outcome becomes a status, a sentence and a payload on its report."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from typing import Any

import pytest
from _pytest._code.code import ExceptionRepr

from dsv4_conformance.errors import BadInput, NotApplicable
from dsv4_conformance.plugin import outcome
from dsv4_conformance.plugin.collection import PlannedItem
from dsv4_conformance.plugin.jsonsafe import json_safe
from dsv4_conformance.plugin.keys import PLANNED
from dsv4_conformance.plugin.outcome import Outcome, UnsupportedRequired
from dsv4_conformance.plugin.process import Process
from dsv4_conformance.plugin.results_folder import StartLog, unwritable
from dsv4_conformance.status import Status
from dsv4_conformance.suite import ENDPOINT
from dsv4_conformance.texts import clean, summary_of

_OUTCOME = pytest.StashKey[Outcome]()
DEAD_CONTEXT_EXIT = 70


class Executing:
    """Registered in the single process and in workers."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._starts = StartLog(process.results, process.worker)
        self._session: pytest.Session | None = None
        self._unwritable = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Note which case comes next, so that a crash is charged to it."""
        self._session = item.session
        planned = item.stash.get(PLANNED, None)
        if planned is not None and planned.planned is not None:
            try:
                self._starts.starting(planned.case_id, item.nodeid)
            except OSError as error:
                self._unwritable = unwritable(self._process.results, error)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Refuse a case on a surface that the implementation does not offer; no fixture runs for it."""
        planned = item.stash.get(PLANNED, None)
        if planned is not None and self._unwritable:
            raise BadInput(self._unwritable)
        if planned is None or planned.planned is not None:
            return
        settings = self._process.settings
        if planned.surface == ENDPOINT:
            raise UnsupportedRequired(
                f"No server was named with --dsv4-endpoint; profile {settings.profile.name} makes accuracy mandatory."
            )
        name = settings.implementation.identity.name
        if settings.is_mandatory(planned.surface):
            raise UnsupportedRequired(
                f"{name} does not offer {planned.surface}, which profile {settings.profile.name} makes mandatory for "
                f"implementations of kind {settings.implementation.identity.kind}."
            )
        raise NotApplicable(f"{name} does not offer {planned.surface}.")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Decide the outcome in the phase that decides it, and shape pytest's report after it."""
        report = yield
        planned = item.stash.get(PLANNED, None)
        if planned is None:
            return report
        record = _record_of(item) if call.when == "call" else {}
        decided = _decide(item, call, planned, record)
        if decided is None:
            return report
        item.stash[_OUTCOME] = decided
        self._shape(report, decided, planned, call, item.config.getoption("tbstyle"))
        payload = self._payload(decided, planned, item, record, call.duration)
        report.dsv4 = payload  # type: ignore[attr-defined]
        item.user_properties = _properties(payload)
        report.user_properties = list(item.user_properties)
        return report

    def _shape(
        self,
        report: pytest.TestReport,
        decided: Outcome,
        planned: PlannedItem,
        call: pytest.CallInfo[None],
        style: str,
    ) -> None:
        """Make ``report`` say to pytest what the status says to us."""
        status = decided.status
        reproduce = f"re-run: {self._process.settings.options.reproducer(planned.case_id)}"
        told = f"{planned.requirement.id} {planned.requirement.title}\n{decided.reason}\n{reproduce}"
        if status in (Status.PASS, Status.WARN):
            report.outcome, report.longrepr = "passed", None
            if decided.reason:
                report.sections.append((f"dsv4 {status.lower()}", told))
            return
        if status in (Status.NOT_APPLICABLE, Status.NOT_RUN):
            path, line, _ = report.location
            report.outcome, report.longrepr = "skipped", (path, (line or 0) + 1, f"Skipped: {decided.reason}")
            return
        raised = call.excinfo is not None
        report.outcome = "failed"
        if report.when == "setup" and status is not Status.HARNESS_ERROR:
            report.when = "call"  # what an implementation gets wrong is a failure, not an error of a fixture
        wants_traceback = style in ("long", "short", "native") or status is Status.HARNESS_ERROR
        if raised and wants_traceback and not decided.bad_input and isinstance(report.longrepr, ExceptionRepr):
            report.longrepr.addsection(str(status), told)  # a Status would not pass xdist's wire
            shown = str(report.longrepr)
            if clean(shown) != shown:  # nor would a lone surrogate
                report.longrepr = f"{clean(shown)}\n{told}"
        else:
            report.longrepr = told

    def _payload(
        self, decided: Outcome, planned: PlannedItem, item: pytest.Item, record: dict[str, Any], duration_s: float
    ) -> dict[str, Any]:
        return {
            "case_id": planned.case_id,
            "requirement": planned.requirement.id,
            "surface": planned.surface,
            "nodeid": item.nodeid,
            "status": str(decided.status),
            "reason": decided.reason,
            "record": record,
            "duration_s": round(duration_s, 6),
            "worker": self._process.worker,
            "reproducer": self._process.settings.options.reproducer(planned.case_id),
            "context_dead": decided.context_dead,
            "bad_input": decided.bad_input,
        }

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Leave a process whose CUDA context is dead before it fails every case that follows.

        In a worker the report has been sent when this runs: xdist replaces the worker and re-schedules the rest.
        """
        if not getattr(report, "dsv4", {}).get("context_dead"):
            return
        if self._process.role == "worker":
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(DEAD_CONTEXT_EXIT)
        assert self._session is not None
        self._session.shouldstop = "The CUDA context died; with -n 1 or more, a crash costs its own case only."

    def pytest_unconfigure(self) -> None:
        """Close what is open."""
        self._starts.close()


def _decide(
    item: pytest.Item, call: pytest.CallInfo[None], planned: PlannedItem, record: dict[str, Any]
) -> Outcome | None:
    """The outcome that this phase decides; None if it decides nothing."""
    level = planned.requirement.level
    before = item.stash.get(_OUTCOME, None)
    if call.when == "teardown":
        if call.excinfo is None or (before is not None and before.status not in (Status.PASS, Status.WARN)):
            return None
        decided = outcome.of_exception(call.excinfo.value, level)
        dead = decided.status in (Status.CRASH, Status.OUT_OF_MEMORY)
        return decided if dead else Outcome(Status.HARNESS_ERROR, f"Teardown failed: {decided.reason}")
    if call.excinfo is not None:
        return outcome.of_exception(call.excinfo.value, level)
    return outcome.of_return(record) if call.when == "call" else None


def _record_of(item: pytest.Item) -> dict[str, Any]:
    """What the case's subject has measured so far, {} if there is none."""
    subject = getattr(item, "funcargs", {}).get("subject")
    if subject is None:
        return {}
    try:
        record: dict[str, Any] = json_safe(subject.record())
    except Exception as error:  # the case fails as unchecked, and this says why
        return {"checked": False, "reason": f"record() raised {summary_of(error)}"}
    return record


def _properties(payload: dict[str, Any]) -> list[tuple[str, object]]:
    """What --junitxml shows of a case."""
    keys = ("requirement", "case_id", "surface", "status")
    properties: list[tuple[str, object]] = [(f"dsv4_{key}", payload[key]) for key in keys]
    for output, margin in (payload["record"].get("margin") or {}).items():
        properties.append((f"dsv4_margin_{output}", margin))
    return properties
