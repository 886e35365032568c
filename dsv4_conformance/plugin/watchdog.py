"""A time budget per case that also ends calls which hold the GIL, and a note of where a process was when it died.

Inside the process, faulthandler's own thread counts: it needs no GIL. Its last words, and those of a fatal signal, go
to ``<worker>.fault``. Outside, whoever reads ``<worker>.deadline`` can end a process that this does not reach, such as
a stopped one.
"""

from __future__ import annotations

import faulthandler
import os
import re
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dsv4_conformance.plugin.results_folder import WORKERS

START_S = 600.0
"""What making the adapter may take: engines load weights and compile."""
GRACE_S = 10.0
"""How long past its limit, or for as long again, a process is given before it is killed from outside."""
_WIDTH = 30
_STARTING = "starting"
_LIBRARY = sysconfig.get_path("stdlib")


class Watchdog:
    """Of a process that runs cases; its files are made with the first case. Raises OSError if they cannot be."""

    def __init__(self, folder: Path, worker: str, limit_s: float) -> None:
        self._folder, self._worker, self._limit_s = folder / WORKERS, worker, limit_s
        self._fault = self._deadline = -1

    def arm(self) -> None:
        """From now on the case's time counts."""
        if self._fault < 0:
            self._open()
        self._count(self._limit_s)

    def disarm(self) -> None:
        """The case is over."""
        faulthandler.cancel_dump_traceback_later()
        self._write(0.0)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """While the adapter is made, its own limit holds; the case's time starts afterwards."""
        if self._fault >= 0:
            self._count(max(START_S, self._limit_s), _STARTING)
        try:
            yield
        finally:
            if self._fault >= 0:
                self._count(self._limit_s)

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        fault = self._folder / f"{self._worker}.fault"
        self._deadline = os.open(self._folder / f"{self._worker}.deadline", os.O_CREAT | os.O_WRONLY, 0o644)
        self._fault = os.open(fault, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND, 0o644)
        faulthandler.enable(file=self._fault, all_threads=False)

    def _count(self, limit_s: float, phase: str = "") -> None:
        self._write(time.time() + limit_s + min(GRACE_S, limit_s), phase)
        # Where the file of last words is closed by the case (an adapter that closes every descriptor), only the
        # watch from outside is left.
        with suppress(OSError):
            faulthandler.dump_traceback_later(limit_s, exit=True, file=self._fault)

    def _write(self, deadline: float, phase: str = "") -> None:
        with suppress(OSError):
            os.pwrite(self._deadline, f"{deadline:.3f} {phase}".ljust(_WIDTH).encode(), 0)


def overdue(folder: Path, worker: str) -> bool:
    """Whether ``worker`` is past its deadline by so much that its own watchdog cannot have worked."""
    words = _deadline(folder, worker)
    return bool(words) and 0 < float(words[0]) < time.time()


def died_starting(folder: Path, worker: str) -> bool:
    """Whether the process of ``worker`` never got so far as to have an adapter."""
    return _STARTING in _deadline(folder, worker)


def _deadline(folder: Path, worker: str) -> list[str]:
    try:
        words = (folder / WORKERS / f"{worker}.deadline").read_text().split()
        float(words[0])
    except (OSError, ValueError, IndexError):
        return []
    return words


def last_words(folder: Path, worker: str) -> str:
    """What faulthandler left of a process of ``worker``, "" if it left nothing."""
    try:
        return (folder / WORKERS / f"{worker}.fault").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def timed_out(words: str) -> bool:
    """Whether a process with these last words was ended because its time was over."""
    return words.startswith("Timeout (")


def place(words: str) -> str:
    """Innermost frame, outside Python's own library, of the thread that ran the case: "kernel.py:12 in decode"."""
    threads = re.split(r"^(?:Current t|T)hread ", words, flags=re.MULTILINE)
    # A fatal signal tells of one thread; a timeout tells of all, the newest first: the main one is the last.
    for path, line, function in re.findall(r'File "([^"]*)", line (\d+) in (\S+)', threads[-1]):
        if not path.startswith(_LIBRARY) or "site-packages" in path:
            return f"{Path(path).name}:{line} in {function}"
    return ""
