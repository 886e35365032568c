"""Hooks of a process that runs cases: each item's outcome becomes a status, a sentence and a payload on its report."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from _pytest._code.code import ExceptionRepr

from dsv4_conformance.errors import BadInput, ContractViolation, NotApplicable
from dsv4_conformance.plugin import outcome, sanitizer
from dsv4_conformance.plugin.aftermath import Memory, check_context
from dsv4_conformance.plugin.collection import PlannedItem
from dsv4_conformance.plugin.deaths import DEAD_CONTEXT_EXIT, RETIRED_EXIT
from dsv4_conformance.plugin.jsonsafe import json_safe
from dsv4_conformance.plugin.keys import PLANNED
from dsv4_conformance.plugin.outcome import Outcome, Quarantined, UnsupportedRequired
from dsv4_conformance.plugin.process import Process
from dsv4_conformance.plugin.results_folder import StartLog, unwritable
from dsv4_conformance.plugin.torch_state import TorchState, restored, torch_state
from dsv4_conformance.plugin.waivers import Waiver
from dsv4_conformance.status import QUALIFYING, Status
from dsv4_conformance.suite import ENDPOINT
from dsv4_conformance.texts import clean, summary_of

_OUTCOME = pytest.StashKey[Outcome]()
_RECORD = pytest.StashKey[dict[str, Any]]()


class Executing:
    """Registered in the single process and in workers."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._starts = StartLog(process.results, process.worker)
        self._session: pytest.Session | None = None
        self._memory = Memory(process.workers)
        self._unwritable = ""
        self._leave = 0
        self._log: sanitizer.Log | None = None
        self._mark: sanitizer.Mark | None = None
        self._pid = os.getpid()
        self._torch: TorchState | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note which case comes next, so that a crash is charged to it, and count its time."""
        self._pid = os.getpid()
        planned = item.stash.get(PLANNED, None)
        if planned is None or planned.planned is None:
            return (yield)
        self._session, self._leave = item.session, 0
        watchdog = self._process.watchdog
        try:
            self._log = sanitizer.log_here()
            self._mark = self._log.mark() if self._log is not None else None
            self._starts.starting(planned.case_id, item.nodeid, self._mark)
            if watchdog is not None:
                watchdog.arm()
        except OSError as error:
            self._unwritable = unwritable(self._process.results, error)
        self._memory.begin()
        try:
            return (yield)
        finally:
            if watchdog is not None:
                watchdog.disarm()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Refuse a case on a surface that the implementation does not offer; no fixture runs for it."""
        planned = item.stash.get(PLANNED, None)
        if planned is not None and self._unwritable:
            raise BadInput(self._unwritable)
        if planned is None:
            return
        waiver = self._waiver(item)
        if waiver is not None and self._process.settings.waivers.quarantines(waiver):
            raise Quarantined(f"Waiver {waiver.id} sets this case aside until {waiver.expires} ({waiver.issue}).")
        if planned.planned is not None:
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

    def _waiver(self, item: pytest.Item) -> Waiver | None:
        planned = item.stash[PLANNED]
        of = self._process.settings.waivers.of
        return of(planned.requirement.id, planned.case_id, planned.surface, item.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """After the fixtures: is the device still of use? What a case broke, it must not break for the next."""
        planned = item.stash.get(PLANNED, None)
        if planned is not None and planned.planned is not None and self._process.session is not None:
            check_context(self._process.session)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Decide the outcome in the phase that decides it, and shape pytest's report after it."""
        if os.getpid() != self._pid:
            os._exit(0)  # a copy that the case has forked, and that would tell of it, too
        report = yield
        planned = item.stash.get(PLANNED, None)
        if planned is None:
            return report
        if call.when == "setup":
            self._torch = torch_state()
        record = self._record_of(item) if call.when == "call" else item.stash.get(_RECORD, {})
        before = item.stash.get(_OUTCOME, None)
        decided = _decide(before, call, planned, record)
        if decided is None:
            return report
        if call.when == "call":
            decided = self._as_it_was(self._sanitized(decided, record))
        waivers = self._process.settings.waivers
        status, reason, waiver = waivers.judge(self._waiver(item), decided.status, decided.reason)
        ended = decided.status if status is Status.WAIVED else None
        decided = replace(decided, status=status, reason=reason, waiver=waiver, waived_status=ended)
        item.stash[_OUTCOME], item.stash[_RECORD] = decided, record
        failed = before is not None and before.status not in QUALIFYING
        self._shape(report, decided, planned, call, item.config.getoption("tbstyle"), failed)
        payload = self._payload(decided, planned, item, record, call.duration)
        report.dsv4 = payload  # type: ignore[attr-defined]
        item.user_properties = _properties(payload)
        report.user_properties = list(item.user_properties)
        return report

    def _as_it_was(self, decided: Outcome) -> Outcome:
        """A case that changed what the process shares has failed, however right it was."""
        if not (told := restored(self._torch)):
            return decided
        status = Status.FAIL if decided.status in QUALIFYING else decided.status
        return replace(decided, status=status, reason=" ".join(filter(None, [decided.reason, told])))

    def _sanitized(self, decided: Outcome, record: dict[str, Any]) -> Outcome:
        """With what compute-sanitizer has found since the case began."""
        if self._log is None or self._mark is None:
            return decided
        if self._process.session is not None:
            with suppress(Exception):  # all that the case has launched is over now; how it ended, others say
                self._process.session.probe()
        tool = str(self._process.settings.options.sanitizer)
        found = self._log.since(self._mark)
        record["sanitizer"] = sanitizer.record(tool, found)
        return sanitizer.charge(decided, tool, found)

    def _record_of(self, item: pytest.Item) -> dict[str, Any]:
        """What the case's subject has measured so far, {} if there is none."""
        subject = getattr(item, "funcargs", {}).get("subject")
        if subject is None:
            return {}
        try:
            record: dict[str, Any] = json_safe(subject.record())
        except Exception as error:  # the case fails as unchecked, and this says why
            record = {"checked": False, "reason": f"record() raised {summary_of(error)}"}
        with suppress(Exception):  # of a GPU that cannot be asked any more
            record["memory"] = self._memory.record(self._process.session)
        return record

    def _shape(
        self,
        report: pytest.TestReport,
        decided: Outcome,
        planned: PlannedItem,
        call: pytest.CallInfo[None],
        style: str,
        failed: bool,
    ) -> None:
        """Make ``report`` say to pytest what the status says to us. ``failed``: an earlier phase has done so."""
        status = decided.status
        reproduce = f"re-run: {self._process.settings.options.reproducer(planned.case_id)}"
        told = f"{planned.requirement.id} {planned.requirement.title}\n{decided.reason}\n{reproduce}"
        if status in (Status.PASS, Status.WARN):
            report.outcome, report.longrepr = "passed", None
            if decided.reason:
                report.sections.append((f"dsv4 {status.lower()}", told))
            return
        if status is Status.WAIVED:
            report.wasxfail = decided.reason
        if status in (Status.NOT_APPLICABLE, Status.NOT_RUN, Status.QUARANTINED, Status.WAIVED):
            path, line, _ = report.location
            report.outcome, report.longrepr = "skipped", (path, (line or 0) + 1, f"Skipped: {decided.reason}")
            return
        raised = call.excinfo is not None
        if report.when == "teardown" and failed:
            report.outcome, report.longrepr = "passed", None  # a case fails once
            return
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
            "leave": DEAD_CONTEXT_EXIT if decided.context_dead else RETIRED_EXIT if decided.retires else 0,
            "waiver": decided.waiver,
            "waived_status": decided.waived_status and str(decided.waived_status),
            "bad_input": decided.bad_input,
        }

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Leave a process that would fail the cases that follow.

        The report has been sent when this runs: another process goes on with the rest.
        """
        payload = getattr(report, "dsv4", None)
        if self._session is None:  # the cases run in a child
            return
        if payload is not None:
            self._leave = payload["leave"]
        over = report.when == "teardown" or self._leave == DEAD_CONTEXT_EXIT
        if not self._process.isolated:
            if over and self._leave == DEAD_CONTEXT_EXIT:
                self._session.shouldstop = "The CUDA context died, and this process cannot go on without one."
        elif over and (self._leave or self._memory.outgrown):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._leave or RETIRED_EXIT)

    def pytest_unconfigure(self) -> None:
        """Close what is open."""
        self._starts.close()


def _decide(
    before: Outcome | None, call: pytest.CallInfo[None], planned: PlannedItem, record: dict[str, Any]
) -> Outcome | None:
    """The outcome that this phase decides, after what an earlier one decided; None if it decides nothing."""
    level = planned.requirement.level
    if call.when == "teardown":
        if call.excinfo is None:
            return None
        decided = outcome.of_exception(call.excinfo.value, level)
        if before is not None and before.status not in (Status.PASS, Status.WARN, Status.WAIVED):
            if not decided.context_dead or before.context_dead:
                return None
            return replace(decided, reason=f"{decided.reason} Before that: {before.reason}")
        at_fault = decided.status in (Status.CRASH, Status.OUT_OF_MEMORY)
        if at_fault or isinstance(call.excinfo.value, ContractViolation):
            return decided
        return Outcome(Status.HARNESS_ERROR, f"Teardown failed: {decided.reason}")
    if call.excinfo is not None:
        return outcome.of_exception(call.excinfo.value, level)
    return outcome.of_return(record) if call.when == "call" else None


def _properties(payload: dict[str, Any]) -> list[tuple[str, object]]:
    """What --junitxml shows of a case."""
    keys = ("requirement", "case_id", "surface", "status")
    properties: list[tuple[str, object]] = [(f"dsv4_{key}", payload[key]) for key in keys]
    for output, margin in (payload["record"].get("margin") or {}).items():
        properties.append((f"dsv4_margin_{output}", margin))
    return properties
