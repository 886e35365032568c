"""What a process that runs cases does to itself, so that nothing it does reaches beyond its case."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def confine(parent: int, *, own_group: bool, memory_gib: float) -> None:
    """Die with process ``parent``; be the first that the kernel kills when memory runs out; keep within a limit.

    ``own_group``: lead a process group, so that what an adapter has started can be ended with this process.
    ``memory_gib``: limit of private data in GiB, 0 for none. What the system does not offer is left out.
    """
    die_with(parent)
    if own_group:
        with suppress(OSError):
            os.setpgid(0, 0)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    if memory_gib:
        soft = int(memory_gib * (1 << 30))
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        # Addresses that CUDA reserves do not count as data, as they would for RLIMIT_AS.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def die_with(parent: int) -> None:
    """Let the kernel kill this process when ``parent``, which has started it, ends in whatever way."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def end_group(pid: int) -> None:
    """Kill process ``pid``, if it leads a group, with all that it has started and that outlived it."""
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
