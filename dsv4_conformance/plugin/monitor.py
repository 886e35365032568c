"""A thread of the controller that watches workers from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from dsv4_conformance.plugin.confinement import end_group
from dsv4_conformance.plugin.watchdog import overdue

PERIOD_S = 1.0


class Monitor:
    """Ends workers whose own watchdog does not reach them, and what dead ones have left running.

    A child of a dead worker may hold its channel open, so that nobody learns of the death. ``killed``: names of the
    workers that were ended as overdue.
    """

    def __init__(self, folder: Path) -> None:
        self.killed: set[str] = set()
        self._folder = folder
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, worker: str, popen: subprocess.Popen[bytes]) -> None:
        """Watch this worker from now on."""
        self._workers[worker] = popen
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dsv4-monitor", daemon=True)
            self._thread.start()

    def forget(self, worker: str) -> None:
        """It has ended."""
        self._workers.pop(worker, None)

    def interrupt(self) -> None:
        """Pass Ctrl-C on to all workers."""
        for popen in list(self._workers.values()):
            with suppress(OSError):
                os.killpg(popen.pid, signal.SIGINT)

    def stop(self) -> None:
        """Watch nothing any more."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(PERIOD_S):
            for worker, popen in list(self._workers.items()):
                if popen.poll() is not None:
                    end_group(popen.pid)
                elif overdue(self._folder, worker):
                    self.killed.add(worker)
                    with suppress(OSError):
                        os.kill(popen.pid, signal.SIGKILL)
