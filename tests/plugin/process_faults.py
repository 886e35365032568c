"""What an adapter can do to the process that runs it, without a GPU and without torch."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

LONG_S = 3600


def segfault() -> None:
    ctypes.string_at(8)


def abort() -> None:
    os.abort()


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave_quietly() -> None:
    os._exit(0)


def hang_with_the_gil() -> None:
    ctypes.PyDLL(None).sleep(LONG_S)


def hang_without_the_gil() -> None:
    time.sleep(LONG_S)


def hang_in_a_loop() -> None:
    while True:
        pass


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def take_all_memory() -> None:
    bytearray(1 << 46)


def die_and_leave_a_child() -> None:
    """The child inherits whatever its parent talks through, and outlives it."""
    if os.fork() == 0:
        time.sleep(LONG_S)
    os.kill(os.getpid(), signal.SIGKILL)


def close_everything() -> None:
    os.closerange(3, 4096)


@dataclass(frozen=True)
class Fault:
    """``act`` and what the case at fault, and no other, has to get for it."""

    act: Callable[[], None]
    status: str
    reason: str


FAULTS = {
    fault.act.__name__: fault
    for fault in (
        Fault(segfault, "CRASH", "died of SIGSEGV while it ran this case. It was at process_faults.py"),
        Fault(abort, "CRASH", "died of SIGABRT while it ran this case. It was at process_faults.py"),
        Fault(kill_itself, "CRASH", "died of SIGKILL while it ran this case."),
        Fault(leave_quietly, "CRASH", "exited with code 0 while it ran this case."),
        Fault(hang_with_the_gil, "TIMEOUT", "did not end within 2 s; its process was ended. It was at process_faults"),
        Fault(hang_without_the_gil, "TIMEOUT", "ended. It was at process_faults.py:"),
        Fault(hang_in_a_loop, "TIMEOUT", "in hang_in_a_loop."),
        Fault(stop, "TIMEOUT", "did not end within 2 s"),
        Fault(take_all_memory, "OUT_OF_MEMORY", "Out of memory"),
        Fault(die_and_leave_a_child, "CRASH", "died of SIGKILL while it ran this case."),
    )
}
