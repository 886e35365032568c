"""Hooks of the process that owns the journal: plan, results as they arrive, crashes, verdict and exit code."""

from __future__ import annotations

import sys
from collections.abc import Generator
from dataclasses import asdict
from typing import Any, NoReturn

import pytest

import dsv4_conformance
from dsv4_conformance.errors import ExitCode
from dsv4_conformance.plugin import crashes, environment, verdict
from dsv4_conformance.plugin.collected import CollectedPlan
from dsv4_conformance.plugin.journal import (
    Footer,
    Header,
    ImplementationRecord,
    Journal,
    Named,
    NotSelected,
    PlanEntry,
    Result,
    count_statuses,
    plan_hash,
    results_hash,
)
from dsv4_conformance.plugin.jsonsafe import json_safe
from dsv4_conformance.plugin.process import Process
from dsv4_conformance.plugin.refusal import refusal
from dsv4_conformance.plugin.results_folder import JOURNAL, JournalWriter, ResultsFolder, new_run_id, now, unwritable
from dsv4_conformance.status import QUALIFYING, Status

INTERRUPTED = 130


class Recording:
    """Registered in the single process and in the controller. Raises BadInput if the results folder cannot be had."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._config = process.config
        self._folder = ResultsFolder(process.results)
        self._started = now()
        self._header: Header | None = None
        self._writer: JournalWriter | None = None
        self._plan: dict[str, PlanEntry] = {}
        self._latest: dict[str, dict[str, Any]] = {}
        self._results: dict[str, Result] = {}
        self._partial = ""
        self._bad_input = ""
        self._why_not_run = "The run ended before this case."
        self._interrupted = self._collection_failed = self._others_failed = False
        self.footer: Footer | None = None

    @property
    def journal(self) -> Journal | None:
        """What has been recorded, None if nothing was planned."""
        return None if self._header is None else Journal(self._header, list(self._results.values()), self.footer)

    def begin(self, collected: CollectedPlan) -> None:
        """Write the header, once; workers collect the same plan. Ends pytest if there is nothing to run it with."""
        if self._header is not None:
            return
        if collected.problem:
            self._give_up(collected.problem)
        if collected.unknown:
            settings = self._process.settings
            where = f"profile {settings.profile.name}" if settings.options.profile_given else "any profile"
            self._give_up(
                f"No collected test has the case {collected.unknown[0]} in {where} with seed {settings.options.seed}; "
                "take the id, the profile and the seed from the failure's report."
            )
        if collected.rows:
            self._header = self._head(collected)
            self._plan = {entry.nodeid: entry for entry in self._header.plan}
            try:
                self._folder.retire()
                self._writer = JournalWriter(self._folder.path / JOURNAL, self._header)
            except OSError as error:
                self._give_up(unwritable(self._folder.path, error))

    def _give_up(self, sentence: str) -> NoReturn:
        self._bad_input = sentence
        raise refusal(sentence, int(ExitCode.BAD_INPUT))

    def _head(self, collected: CollectedPlan) -> Header:
        settings = self._process.settings
        plan = [PlanEntry(case_id=c, requirement=r, surface=s, nodeid=n) for c, r, s, n in collected.rows]
        planned = sorted({entry.requirement for entry in plan}, key=verdict.order)
        requirements = [settings.registry.get(name) for name in planned]
        adapter = settings.implementation
        return Header(
            run_id=new_run_id(),
            started=self._started,
            version=dsv4_conformance.__version__,
            command=[sys.argv[0], *self._config.invocation_params.args],
            profile=settings.profile.name,
            seed=settings.options.seed,
            device=settings.device,
            workers=max(1, len(self._config.getoption("tx", None) or [])),
            implementation=ImplementationRecord(
                requested=settings.options.impl,
                identity=json_safe(adapter.identity),
                surfaces={
                    n: {"convention": type(c).__name__, **json_safe(asdict(c))} for n, c in adapter.surfaces.items()
                },
                devices=list(adapter.devices),
            ),
            environment=environment.describe(),
            requirements=[Named(id=r.id, level=r.level, title=r.title) for r in requirements],
            plan=plan,
            plan_hash=plan_hash(plan),
            not_selected=self._left_out(collected),
        )

    def _left_out(self, collected: CollectedPlan) -> list[NotSelected]:
        left = dict(collected.not_selected)
        partial = []
        if self._process.settings.options.cases:
            partial.append("only cases named by --dsv4-case")
            left["all other cases"] = "--dsv4-case names the cases to run"
        else:
            missing = [name for name in self._process.settings.registry.ids if name not in collected.seen]
            left |= {name: "its tests were not collected" for name in missing}
            partial += [f"{len(missing)} requirement(s) not collected"] if missing else []
        for name, count in collected.deselected.items():
            left[f"{count} case(s) of {name}"] = "deselected on the command line"
        if collected.deselected:
            partial.append(f"{sum(collected.deselected.values())} case(s) deselected")
        self._partial = ", ".join(partial)
        return [NotSelected(what=what, reason=reason) for what, reason in left.items()]

    def pytest_report_header(self) -> str:
        """What is under test, above pytest's own lines."""
        settings = self._process.settings
        identity = settings.implementation.identity
        return (
            f"dsv4-conformance {dsv4_conformance.__version__}: {identity.name} {identity.version} "
            f"on {settings.device}, profile {settings.profile.name}, seed {settings.options.seed}"
            f"{f', server {settings.options.endpoint.url}' if settings.options.endpoint.url else ''}"
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None]:
        """Keep a case's outcome; write it when the case is over, which for a crash is as soon as it is known."""
        payload: dict[str, Any] | None = getattr(report, "dsv4", None)
        if payload is not None:
            self._latest[report.nodeid] = payload
            self._obey(payload)
        elif report.failed and report.nodeid not in self._plan:
            self._others_failed = True
        yield
        if report.when == "teardown" and report.nodeid in self._latest:
            self._write(self._latest[report.nodeid])

    def _obey(self, payload: dict[str, Any]) -> None:
        """Stop at once if the input is at fault: every further case would only say so again."""
        if payload["bad_input"]:
            self._stop(payload["reason"])

    def _stop(self, sentence: str) -> None:
        if not self._bad_input:
            self._bad_input = sentence
            self._why_not_run = f"The run was stopped: {sentence}"
            self._runner().shouldstop = sentence

    def _write(self, payload: dict[str, Any]) -> None:
        result = Result.model_validate(payload)
        self._results.pop(result.nodeid, None)
        self._results[result.nodeid] = result
        self._append(result)

    def _append(self, line: Result | Footer) -> None:
        """Write a line; a journal that cannot take it is given up, and with it the run."""
        if self._writer is None:
            return
        try:
            self._writer.write(line)
        except OSError as error:
            self._writer.abandon()
            self._writer = None
            self._stop(unwritable(self._folder.path, error))

    def planned(self, nodeid: str) -> PlanEntry | None:
        """The plan's entry of this name."""
        return self._plan.get(nodeid)

    def latest(self, nodeid: str) -> dict[str, Any] | None:
        """What has been said of a case so far."""
        return self._latest.get(nodeid)

    def is_complete(self, nodeid: str) -> bool:
        """Whether a case has its result, teardown included."""
        return nodeid in self._results

    def payload(self, entry: PlanEntry, status: Status, reason: str, worker: str = "") -> dict[str, Any]:
        """A result that no worker reported."""
        reproducer = self._process.settings.options.reproducer(entry.case_id)
        return crashes.payload(entry, status, reason, worker, reproducer)

    def overrule(self, nodeid: str, status: Status, reason: str) -> None:
        """Take a result that qualifies back, for what was found out later."""
        if self._results[nodeid].status in QUALIFYING:
            self._latest[nodeid] |= {"status": str(status), "reason": reason}
            self._write(self._latest[nodeid])

    def halt(self, sentence: str) -> None:
        """Begin no further case; what has been found out stands."""
        self._why_not_run = sentence
        self._runner().shouldstop = sentence

    def _runner(self) -> Any:
        return self._config.pluginmanager.getplugin("dsession") or self._config.pluginmanager.getplugin("session")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A suite module that cannot be collected is the harness's failure."""
        if report.failed:
            self._collection_failed = True
            self._why_not_run = "A suite module could not be collected."

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Ctrl-C, as opposed to pytest's own reasons to stop, which arrive here as well."""
        if excinfo.type is KeyboardInterrupt:
            self._interrupted = True
            self._why_not_run = "The run was interrupted."

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Account for every planned case, close the journal and set the exit code."""
        if self._header is None:
            if self._collection_failed:
                session.exitstatus = ExitCode.HARNESS_ERROR
            return
        for nodeid, entry in self._plan.items():
            if nodeid in self._latest and nodeid not in self._results:
                self._write(self._latest[nodeid])
            elif nodeid not in self._latest:
                self._write(self.payload(entry, Status.NOT_RUN, self._why_not_run))
        results = list(self._results.values())
        statuses = [result.status for result in results]
        code, note = self._judge(statuses, exitstatus)
        counts = count_statuses(results)
        self.footer = Footer(
            finished=now(),
            counts=counts,
            requirements=verdict.by_requirement((result.requirement, result.status) for result in results),
            exit_code=code,
            qualifies=code == ExitCode.QUALIFIES and not note,
            verdict=verdict.sentence(code, self._header.profile, counts, note),
            results_hash=results_hash(results),
        )
        self._append(self.footer)
        if self._writer is not None:
            self._writer.close()
        elif code != ExitCode.BAD_INPUT:  # the last line did not fit
            code, note = self._judge(statuses, exitstatus)
            told = verdict.sentence(code, self._header.profile, counts, note)
            self.footer = self.footer.model_copy(update={"exit_code": code, "qualifies": False, "verdict": told})
        session.exitstatus = code
        reporter: pytest.TerminalReporter | None = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            from dsv4_conformance.report.terminal import hide_from_pytest

            hide_from_pytest(reporter)

    def _judge(self, statuses: list[Status], exitstatus: int) -> tuple[int, str]:
        """Exit code, and what the verdict has to say beyond the counts."""
        if self._bad_input:
            return ExitCode.BAD_INPUT, self._bad_input
        if self._interrupted:
            return INTERRUPTED, "interrupted"
        broken = "pytest failed internally" if exitstatus == pytest.ExitCode.INTERNAL_ERROR else ""
        broken = "a suite module could not be collected" if self._collection_failed else broken
        code = verdict.exit_code(statuses, harness_failed=bool(broken))
        if self._others_failed and code in (ExitCode.QUALIFIES, ExitCode.NOTHING_CHECKED):
            return ExitCode.FAILED, "a test outside the suites failed"
        return code, broken or self._partial

    def pytest_unconfigure(self) -> None:
        """Let another run have the results folder."""
        self._folder.release()

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Our status words where pytest would say passed or failed."""
        status = getattr(report, "dsv4", {}).get("status")
        shown = {
            Status.WARN: ("passed", "w"),
            Status.CRASH: ("failed", "C"),
            Status.TIMEOUT: ("failed", "T"),
            Status.OUT_OF_MEMORY: ("failed", "M"),
            Status.UNSUPPORTED_REQUIRED: ("failed", "U"),
            Status.INCONCLUSIVE: ("failed", "?"),
            Status.INVALID: ("failed", "V"),
        }
        if status in shown and report.when == "call":
            return (*shown[Status(status)], status)
        return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Requirements, failures, what was not selected, verdict."""
        if self.journal is not None and self.footer is not None:
            from dsv4_conformance.report.terminal import write_summary

            write_summary(terminalreporter, self.journal, self._folder.path / JOURNAL)
