"""Hooks of the process that owns the journal: plan, results as they arrive, crashes, verdict and exit code."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest

import dsv4_conformance
from dsv4_conformance.errors import BadInput, ExitCode
from dsv4_conformance.plugin import crashes, sanitizer
from dsv4_conformance.plugin.collected import CollectedPlan
from dsv4_conformance.plugin.ending import Ending, footer
from dsv4_conformance.plugin.heading import head
from dsv4_conformance.plugin.journal import Footer, Header, Journal, PlanEntry, Result
from dsv4_conformance.plugin.process import Process
from dsv4_conformance.plugin.refusal import refusal
from dsv4_conformance.plugin.results_folder import JOURNAL, JournalWriter, ResultsFolder, now, unwritable
from dsv4_conformance.plugin.resuming import earlier, payload_of, reports
from dsv4_conformance.status import QUALIFYING, Status


class Recording:
    """Registered in the single process and in the controller. Raises BadInput if the results folder cannot be had."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._config = process.config
        self._folder = ResultsFolder(process.results)
        self._earlier = earlier(process.results) if process.settings.options.resume else None
        self._kept = self._earlier.kept if self._earlier is not None else {}
        process.done = frozenset(self._kept)
        self._started = now()
        self._header: Header | None = None
        self._writer: JournalWriter | None = None
        self._plan: dict[str, PlanEntry] = {}
        self._latest: dict[str, dict[str, Any]] = {}
        self._results: dict[str, Result] = {}
        self._problems: list[str] = []
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
            self._header = self._headed(collected)
            self._plan = {entry.nodeid: entry for entry in self._header.plan}
            planned = {row[1] for row in [*collected.rows, *collected.elsewhere]}
            self._problems = self._process.settings.waivers.problems(collected.unmatched, planned)
            self._results = {nodeid: result for nodeid, result in self._kept.items() if nodeid in self._plan}
            self._latest = {nodeid: payload_of(result) for nodeid, result in self._results.items()}
            try:
                self._folder.retire()
                self._writer = JournalWriter(self._folder.path / JOURNAL, self._header, self._results.values())
            except OSError as error:
                self._give_up(unwritable(self._folder.path, error))

    def _headed(self, collected: CollectedPlan) -> Header:
        header = head(self._process, collected, self._started)
        if self._earlier is None:
            return header
        try:
            self._earlier.check(header)
        except BadInput as error:
            self._give_up(str(error))
        return header.model_copy(update={"resumed": self._earlier.runs})

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """In the end let pytest hear of the results that were taken over, so that JUnit has them as well."""
        kept = self._kept
        try:
            return (yield)
        finally:
            for report in reports(result for nodeid, result in kept.items() if nodeid in self._plan):
                self._config.hook.pytest_runtest_logreport(report=report)

    def _give_up(self, sentence: str) -> NoReturn:
        self._bad_input = sentence
        raise refusal(sentence, int(ExitCode.BAD_INPUT))

    def pytest_report_header(self) -> str:
        """What is under test, above pytest's own lines."""
        settings = self._process.settings
        identity = settings.implementation.identity
        kept = f"\nresuming: {len(self._kept)} results are taken over" if settings.options.resume else ""
        return (
            f"dsv4-conformance {dsv4_conformance.__version__}: {identity.name} {identity.version} "
            f"on {settings.device}, profile {settings.profile.name}, seed {settings.options.seed}"
            f"{f', server {settings.options.endpoint.url}' if settings.options.endpoint.url else ''}{kept}"
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None]:
        """Keep a case's outcome; write it when the case is over, which for a crash is as soon as it is known."""
        payload: dict[str, Any] | None = getattr(report, "dsv4", None)
        if payload is not None:
            if report.nodeid not in self._results:
                self._latest[report.nodeid] = payload
            self._obey(payload)
        elif report.failed and report.nodeid not in self._plan:
            self._others_failed = True
        yield
        if report.when == "teardown" and report.nodeid in self._latest and report.nodeid not in self._kept:
            if report.nodeid in self._results:
                self._repeated(report.nodeid)
            else:
                self._write(self._latest[report.nodeid])

    def _repeated(self, nodeid: str) -> None:
        """A case that ran more than once, as under a plugin that repeats failures, is judged by its first result."""
        told = f"{self._plan[nodeid].case_id} ran more than once, and its first result counts."
        if told not in self._problems:
            self._problems = [*self._problems, told]

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
        settings = self._process.settings
        waiver = settings.waivers.of(entry.requirement, entry.case_id, entry.surface, entry.nodeid)
        ended = status
        status, reason, used = settings.waivers.judge(waiver, status, reason)
        waived = str(ended) if status is Status.WAIVED else None
        reproducer = settings.options.reproducer(entry.case_id)
        return crashes.payload(entry, status, reason, worker, reproducer) | {"waiver": used, "waived_status": waived}

    def overrule(self, nodeid: str, status: Status, reason: str) -> None:
        """Take a result that qualifies back, for what was found out later."""
        if self._results[nodeid].status in QUALIFYING:
            told = self.payload(self._plan[nodeid], status, reason)
            self._latest[nodeid] |= {key: told[key] for key in crashes.OVERRULED}
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
        self.footer = footer(self._header, results, self._ending(exitstatus))
        self._append(self.footer)
        if self._writer is not None:
            self._writer.close()
        elif self.footer.exit_code != ExitCode.BAD_INPUT:  # the last line did not fit
            self.footer = footer(self._header, results, self._ending(exitstatus))
        code = self.footer.exit_code
        session.exitstatus = code
        reporter: pytest.TerminalReporter | None = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            from dsv4_conformance.report.terminal import hide_from_pytest

            hide_from_pytest(reporter)

    def _ending(self, exitstatus: int) -> Ending:
        broken = "pytest failed internally" if exitstatus == pytest.ExitCode.INTERNAL_ERROR else ""
        return Ending(
            bad_input=self._bad_input,
            interrupted=self._interrupted,
            broken="a suite module could not be collected" if self._collection_failed else broken,
            others_failed=self._others_failed,
            problems=(*self._problems, *self._unsanitized()),
        )

    def _unsanitized(self) -> list[str]:
        tool, folder = self._process.settings.options.sanitizer, os.environ.get(sanitizer.LOGS)
        if tool is None or not folder:
            return []
        records: list[Any] = [result.record.get("sanitizer") for result in self._results.values()]
        charged = sum(record["count"] for record in records if isinstance(record, dict))
        return sanitizer.problems(tool, Path(folder), charged)

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
            Status.STALE_WAIVER: ("failed", "S"),
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
