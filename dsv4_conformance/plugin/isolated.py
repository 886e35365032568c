"""Runs the cases of a run without workers in a forked child, so that what ends the child costs its own case only.

The parent has collected and writes the journal; it has not touched a device, which is why its children can. A child
lives as long as its cases let it; the next one goes on with the rest.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from typing import Any

import pytest

from dsv4_conformance.errors import HarnessError
from dsv4_conformance.plugin import forked, watchdog
from dsv4_conformance.plugin.casualties import Casualties
from dsv4_conformance.plugin.confinement import end_group
from dsv4_conformance.plugin.keys import PLANNED
from dsv4_conformance.plugin.process import Process
from dsv4_conformance.plugin.wire import Wire

TICK_S = 1.0
LAST_WORDS_S = 0.2
CLOSING_S = 10.0
"""What a child may take to tear down its fixtures."""


class Unfit(Exception):
    """No child can run these cases."""


class Isolated:
    """Registered in the single process, unless a debugger has to reach the cases."""

    def __init__(self, process: Process, casualties: Casualties, executing: Any) -> None:
        self._process, self._casualties, self._executing = process, casualties, executing
        self._config = process.config
        self._session: pytest.Session | None = None
        self._wire: Wire | None = None
        self._pid = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """pytest's own loop, except that planned cases run in the child. Left to pytest if no child can use the GPU."""
        if session.testsfailed or session.config.option.collectonly:
            return None
        self._session = session
        ours = [number for number, item in enumerate(session.items) if PLANNED in item.stash]
        following = dict(zip(ours, [*ours, None][1:], strict=True))
        others = [item for item in session.items if PLANNED not in item.stash]
        after = dict(zip(others, [*others, None][1:], strict=True))
        try:
            for number, item in enumerate(session.items):
                if number in following:
                    self._case(item, number, following[number])
                else:
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=after[item])
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        except Unfit:
            return None
        except KeyboardInterrupt:
            if self._wire is not None:
                os.kill(self._pid, signal.SIGKILL)
            raise
        finally:
            self._close()
        return True

    def _case(self, item: pytest.Item, number: int, following: int | None) -> None:
        """Run one case, in as many children as it takes."""
        while True:
            self._open()
            assert self._wire is not None
            with suppress(OSError):
                self._wire.send(number, following)
            killed_late, finished = self._listen()
            if finished:
                return
            died = self._casualties.learn(self._process.worker, self._buried(), killed_late=killed_late)
            report = pytest.TestReport(
                nodeid=item.nodeid,
                location=item.location,
                keywords={},
                outcome="failed",
                longrepr=None,
                when="???",  # type: ignore[arg-type]
            )
            report.sections += self._printed()
            again = self._casualties.settle(report, died, self._process.worker)
            item.ihook.pytest_runtest_logreport(report=report)
            if not again:
                return

    def _listen(self) -> tuple[bool, bool]:
        """Hear the child out about one case. Returns whether it was killed as overdue, and whether it has finished."""
        killed_late = False
        while True:
            try:
                message = self._receive()
            except TimeoutError:
                if watchdog.overdue(self._process.results, self._process.worker) and not killed_late:
                    killed_late = True
                    with suppress(OSError):
                        os.kill(self._pid, signal.SIGKILL)
                continue
            if message is None:
                return killed_late, False
            if message[0] == "done":
                return False, True
            self._obey(*message)

    def _receive(self) -> tuple[Any, ...] | None:
        """The child's next message, None if it is dead. Raises TimeoutError after a while without one."""
        assert self._wire is not None
        try:
            return self._wire.receive(TICK_S)
        except TimeoutError:
            # What it has started may hold the other end open.
            if os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                raise
            end_group(self._pid)
            with suppress(TimeoutError):
                return self._wire.receive(LAST_WORDS_S)
            return None

    def _obey(self, kind: str, *content: Any) -> None:
        hook = self._config.hook
        if kind in ("logstart", "logfinish"):
            nodeid, location = content
            getattr(hook, f"pytest_runtest_{kind}")(nodeid=nodeid, location=location)
        elif kind == "report":
            report = hook.pytest_report_from_serializable(config=self._config, data=content[0])
            hook.pytest_runtest_logreport(report=report)
        elif kind == "interrupt":
            raise KeyboardInterrupt
        elif kind == "exit":
            raise pytest.exit.Exception(*content)
        elif kind == "broken":
            raise HarnessError(f"The process that runs the cases failed:\n{content[0]}")

    def _open(self) -> None:
        """Have a child that is ready."""
        if self._wire is not None:
            return
        assert self._session is not None
        here, there = socket.socketpair()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            here.close()
            forked.serve(Wire(there), self._process, self._session, self._executing, parent)
        there.close()
        self._wire = Wire(here)
        message = self._wire.receive()
        if message == ("unfit",):
            raise Unfit

    def _buried(self) -> int | None:
        """The dead child's exit code; nothing of it is left."""
        if self._wire is not None:
            self._wire.socket.close()
        self._wire = None
        deadline = time.monotonic() + CLOSING_S
        while os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > deadline:  # it has closed its end and lives on
                os.kill(self._pid, signal.SIGKILL)
                break
            time.sleep(0.005)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        end_group(self._pid)
        return code

    def _printed(self) -> list[tuple[str, str]]:
        """What the dead child had printed since its last report."""
        capture: Any = self._config.pluginmanager.getplugin("capturemanager")
        if capture is None or not capture.is_globally_capturing():
            return []
        out, err = capture.read_global_capture()
        return [(f"Captured {name} call", text) for name, text in (("stdout", out), ("stderr", err)) if text]

    def _close(self) -> None:
        """Let the child end; it is killed if it does not."""
        if self._wire is None:
            return
        with suppress(OSError):
            self._wire.socket.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + CLOSING_S
        with suppress(TimeoutError, OSError):
            while self._wire.receive(max(LAST_WORDS_S, deadline - time.monotonic())) is not None:
                pass
        with suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
        self._buried()
