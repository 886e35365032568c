"""The child's side of a run without workers: it runs the cases it is told to, and sends every report at once."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from typing import Any, NoReturn

import pytest

from dsv4_conformance.plugin.process import Process
from dsv4_conformance.plugin.wire import Wire

REPORTING = ("pytest_runtest_logstart", "pytest_runtest_logreport", "pytest_runtest_logfinish")
"""Hooks that are for the parent: what others do in them would be done twice."""


class Sender:
    """The only plugin of the child that hears of reports."""

    def __init__(self, wire: Wire, process: Process, executing: Any) -> None:
        self._wire, self._process, self._executing = wire, process, executing

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """Pass on."""
        self._wire.send("logstart", nodeid, location)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Pass on; then the process may have to leave."""
        config = self._process.config
        self._wire.send("report", config.hook.pytest_report_to_serializable(config=config, report=report))
        self._executing.pytest_runtest_logreport(report)

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """Pass on."""
        self._wire.send("logfinish", nodeid, location)


def serve(wire: Wire, process: Process, session: pytest.Session, executing: Any, parent: int) -> NoReturn:
    """Be the child until the parent has nothing more to run."""
    code = 1
    try:
        interactive = process.config.getoption("capture", "") == "no" and sys.stdin.isatty()
        # A group in the background could not read from the terminal, and breakpoint() wants to.
        process.isolate(parent, own_group=not interactive)
        if _cannot_use_gpu(process):
            wire.send("unfit")
        else:
            _report_to(session.config, Sender(wire, process, executing))
            _run(wire, session)
        code = 0
    except KeyboardInterrupt:
        with suppress(OSError):
            wire.send("interrupt")
    except pytest.exit.Exception as ended:
        with suppress(OSError):
            wire.send("exit", str(ended.msg), ended.returncode)
    except BaseException:
        with suppress(OSError):
            wire.send("broken", traceback.format_exc())
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _run(wire: Wire, session: pytest.Session) -> None:
    wire.send("ready")
    while (message := wire.receive()) is not None:
        number, following = message
        item = session.items[number]
        nextitem = None if following is None else session.items[following]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        wire.send("done")
    session._setupstate.teardown_exact(None)


def _report_to(config: pytest.Config, sender: Sender) -> None:
    for name in REPORTING:
        caller: Any = getattr(config.hook, name)
        for implementation in list(caller.get_hookimpls()):
            caller._remove_plugin(implementation.plugin)
    config.pluginmanager.register(sender, "dsv4-sender")


def _cannot_use_gpu(process: Process) -> bool:
    """Whether CUDA was started before the fork, as by an adapter's check_available(): then no child can use it."""
    torch = sys.modules.get("torch")
    return process.settings.device == "cuda" and torch is not None and bool(torch.cuda._is_in_bad_fork())
