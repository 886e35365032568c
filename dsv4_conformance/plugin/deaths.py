"""How a process that ran cases ended, and which status its case gets for it."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dsv4_conformance.plugin import watchdog
from dsv4_conformance.status import Status

DEAD_CONTEXT_EXIT = 70
"""The process has told that its CUDA context is dead, and leaves."""
RETIRED_EXIT = 71
"""The process has grown too large to run further cases, and leaves."""


@dataclass(frozen=True)
class Death:
    """``how``: "died of SIGSEGV". ``told``: it left on its own after it had said why. ``place``: where it was last."""

    how: str
    status: Status = Status.CRASH
    told: bool = False
    place: str = ""

    def sentence(self, when: str, limit_s: float) -> str:
        """What became of the case; ``when``: "while it ran this case"."""
        where = f" It was at {self.place}." if self.place else ""
        if self.status is Status.TIMEOUT:
            return f"The case did not end within {limit_s:g} s; its process was ended.{where}"
        if self.status is Status.OUT_OF_MEMORY:
            return f"The machine ran out of memory, and the kernel killed the worker process {when}.{where}"
        return f"The worker process {self.how} {when}.{where}"


def death(code: int | None, words: str, *, killed_late: bool = False, out_of_memory: bool = False) -> Death:
    """From an exit code (negative: a signal; None: unknown) and last words; ``killed_late``: killed as overdue."""
    how = _how(code)
    if killed_late or (watchdog.timed_out(words) and code in (1, None)):
        return Death(how, Status.TIMEOUT, place=watchdog.place(words))
    if out_of_memory and code == -signal.SIGKILL:
        return Death(how, Status.OUT_OF_MEMORY)
    return Death(how, told=code in (DEAD_CONTEXT_EXIT, RETIRED_EXIT), place=watchdog.place(words))


def _how(code: int | None) -> str:
    if code is None:
        return "died"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"died of {signal.Signals(-code).name}"
    except ValueError:
        return f"died of signal {-code}"


class OomKills:
    """Counts processes that the kernel has killed for memory since this object was made.

    A SIGKILL says nothing of its sender; the control group's counter does, or the machine's.
    """

    def __init__(self, files: Iterable[Path] | None = None) -> None:
        self._files = list(_counters() if files is None else files)
        self._seen = self._read()

    def one_more(self) -> bool:
        """Whether there was a kill that no earlier call has been told of."""
        news = self._read() > self._seen
        self._seen += news
        return news

    def _read(self) -> int:
        counts = (_count(path) for path in self._files)
        return next((count for count in counts if count is not None), 0)


def _counters() -> list[Path]:
    """Where to look, this process's own control group first."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if not controllers:  # version 2
            found += [Path("/sys/fs/cgroup") / inside / "memory.events", Path("/sys/fs/cgroup/memory.events")]
        elif "memory" in controllers.split(","):
            root = Path("/sys/fs/cgroup/memory")
            found += [root / inside / "memory.oom_control", root / "memory.oom_control"]
    return [*found, Path("/proc/vmstat")]


def _count(path: Path) -> int | None:
    try:
        for line in path.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    except (OSError, ValueError):
        pass
    return None
