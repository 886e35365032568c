"""Hooks of the process that owns the journal, about processes that died: who is at fault, and who goes on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from _pytest.junitxml import xml_key

from dsv4_conformance.plugin import crashes, sanitizer, watchdog
from dsv4_conformance.plugin.confinement import end_group
from dsv4_conformance.plugin.deaths import Death, OomKills, death
from dsv4_conformance.plugin.monitor import Monitor
from dsv4_conformance.plugin.process import Process
from dsv4_conformance.plugin.recording import Recording
from dsv4_conformance.plugin.results_folder import last_start, last_started

RETRIES = 2
"""How often a case that a process did not get to is given to another one."""
STARTS = 2
"""How many processes in a row may die while they make the adapter."""
BARREN = 4
"""How many workers in a row, per worker, may die before they begin any case."""


class Casualties:
    """Registered in the single process and in the controller, after the recording."""

    def __init__(self, process: Process, recording: Recording) -> None:
        self._process, self._recording = process, recording
        self._folder = process.results
        self._oom_kills = OomKills()
        self._monitor = Monitor(self._folder)
        self._retries: Counter[str] = Counter()
        self._starts = self._barren = 0
        self._awaiting_teardown: set[int] = set()
        self._void: set[int] = set()

    def learn(self, worker: str, code: int | None, *, killed_late: bool = False) -> Death:
        """How a process of ``worker`` died; its last words are read, and a kill for memory is counted."""
        starved = code == -signal.SIGKILL and not killed_late and self._oom_kills.one_more()
        words = watchdog.last_words(self._folder, worker)
        starting = watchdog.died_starting(self._folder, worker)
        self._starts = self._starts + 1 if starting else 0
        if self._starts >= STARTS:
            self._recording.halt("Making the adapter ended the process, twice; no further case was begun.")
        return death(code, words, killed_late=killed_late, out_of_memory=starved)

    def settle(self, report: pytest.TestReport, died: Death, worker: str) -> bool:
        """Shape the report of a crash for its case, or make it void. Returns whether the case has to be run again."""
        nodeid = report.nodeid
        entry = self._recording.planned(nodeid)
        if entry is None:
            return False
        known, begun = self._recording.latest(nodeid), last_started(self._folder, worker)
        if self._recording.is_complete(nodeid):
            self._blame(nodeid, died)
            self._make_void(report)
            return False
        if known is None and begun != nodeid and self._retries[nodeid] < RETRIES:
            self._retries[nodeid] += 1
            if begun is not None:
                self._blame(begun, died)
            self._make_void(report)
            return True
        limit_s = self._process.settings.options.timeout_s
        late = died.sentence("right after this case", limit_s)
        reason = late if known else crashes.reason_of(died, begun, nodeid, limit_s)
        found = self._found(worker) if known is None and begun == nodeid else []
        tool = str(self._process.settings.options.sanitizer)
        reason = f"{reason} {sanitizer.sentence(tool, found)}" if found else reason
        told = self._recording.payload(entry, died.status, reason, worker)
        told["record"] = {"sanitizer": sanitizer.record(tool, found)} if found else {}
        crashes.charge(report, told, known)
        if report.when == "call":
            self._awaiting_teardown.add(id(report))
        return False

    def _found(self, worker: str) -> list[sanitizer.Finding]:
        """What compute-sanitizer found in the last case of a dead process."""
        folder, line = os.environ.get(sanitizer.LOGS), last_start(self._folder, worker)
        if not folder or "sanitizer_mark" not in line:
            return []
        mark = sanitizer.Mark(*line["sanitizer_mark"])
        return sanitizer.Log(Path(folder) / mark.log).since(mark)

    def _blame(self, nodeid: str, died: Death) -> None:
        """Charge a process's death after its last word of a case to that case, unless it said that it would leave."""
        if not died.told and self._recording.is_complete(nodeid):
            limit_s = self._process.settings.options.timeout_s
            self._recording.overrule(nodeid, died.status, died.sentence("right after this case", limit_s))

    def _make_void(self, report: pytest.TestReport) -> None:
        report.outcome, report.longrepr = "rerun", None  # type: ignore[assignment]
        self._void.add(id(report))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None]:
        """After a crash's report of the call comes that of its teardown; a void one leaves no trace."""
        yield
        if id(report) in self._awaiting_teardown:
            self._awaiting_teardown.discard(id(report))
            self._process.config.hook.pytest_runtest_logreport(report=crashes.teardown_of(report))
        if id(report) in self._void:
            self._void.discard(id(report))
            xml = self._process.config.stash.get(xml_key, None)
            if xml is not None:
                reporter = xml.node_reporters.pop((report.id, getattr(report, "node", None)), None)
                if reporter in xml.node_reporters_ordered:
                    xml.node_reporters_ordered.remove(reporter)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """A void report shows nowhere."""
        return ("", "", "") if id(report) in self._void else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """A worker died: charge the case that it was running, once, or let another worker run it."""
        node: Any = report.node
        worker = str(node.gateway.id)
        popen = _popen(node)
        died = self.learn(worker, _exit_code(popen), killed_late=worker in self._monitor.killed)
        if self.settle(report, died, worker):
            try:
                sched.mark_test_pending(crashitem)
            except NotImplementedError:  # schedulers of groups cannot
                self._void.discard(id(report))
                self._retries[crashitem] = RETRIES
                report.outcome = "failed"
                self.settle(report, died, worker)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_testnodeready(self, node: Any) -> None:
        """Watch a worker from outside."""
        popen = _popen(node)
        if popen is not None:
            self._monitor.watch(str(node.gateway.id), popen)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Workers are replaced as often as it takes, but not for ever if they never get to a case."""
        worker, popen = str(node.gateway.id), _popen(node)
        self._monitor.forget(worker)
        if popen is not None:
            end_group(popen.pid)
        dsession: Any = self._process.config.pluginmanager.getplugin("dsession")
        if not error or dsession is None:
            return
        self._barren = 0 if last_started(self._folder, worker) else self._barren + 1
        if self._process.config.option.maxworkerrestart is None:
            hopeless = self._barren > BARREN * max(1, len(self._process.config.getoption("tx", None) or []))
            dsession._max_worker_restart = 0 if hopeless else None

    def pytest_keyboard_interrupt(self) -> None:
        """Workers lead groups of their own, which the terminal's Ctrl-C does not reach."""
        self._monitor.interrupt()

    def pytest_unconfigure(self) -> None:
        """Nothing is left to be watched."""
        self._monitor.stop()


def _popen(node: Any) -> subprocess.Popen[bytes] | None:
    """The worker's process, None if it is remote or execnet keeps it elsewhere."""
    popen = getattr(getattr(node.gateway, "_io", None), "popen", None)
    return popen if isinstance(popen, subprocess.Popen) else None


def _exit_code(popen: subprocess.Popen[bytes] | None) -> int | None:
    if popen is None:
        return None
    with suppress(subprocess.TimeoutExpired):
        return popen.wait(timeout=5)
    # It has closed its channel and does not end: what it is in cannot be waited for.
    with suppress(OSError):
        os.kill(popen.pid, signal.SIGKILL)
    return None
