"""What a case leaves behind in its process: a dead or complaining CUDA context, and memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from dsv4_conformance.errors import ContractViolation
from dsv4_conformance.plugin.outcome import ContextDead
from dsv4_conformance.texts import summary_of

_PAGE = os.sysconf("SC_PAGE_SIZE")
GROWTH_SHARE = 0.5
"""Of the machine's memory, divided among the workers: what a process may have grown by before a fresh one goes on."""


class Probed(Protocol):
    """What is asked of a worker's session (runner/session.py)."""

    def probe(self) -> None:
        """Use the device once; raises what CUDA says if its context is dead or an error is pending."""

    def device_bytes(self) -> int:
        """Bytes that tensors of this process hold on the GPU, 0 on a CPU."""


def check_context(session: Probed) -> None:
    """Raise ContextDead if the process can use its device no more, ContractViolation if an error was left pending."""
    try:
        session.probe()
    except Exception as first:
        try:
            session.probe()
        except Exception:
            raise ContextDead(f"The CUDA context was dead after this case: {summary_of(first)}.") from None
        raise ContractViolation(f"The case left a CUDA error behind, unchecked: {summary_of(first)}.") from None


class Memory:
    """Follows this process's resident memory from case to case, with one look at it per case."""

    def __init__(self, workers: int) -> None:
        self._limit = int(GROWTH_SHARE * _total() / max(1, workers))
        self._first = self._before = self._now = 0

    def begin(self) -> None:
        """A case begins."""
        self._before = self._now = self._now or _resident()

    def record(self, session: Probed | None) -> dict[str, Any]:
        """For the journal: bytes held on the host after the case, and by how many they grew in it."""
        self._now = _resident()
        # With the first case libraries and weights are loaded: what comes later is growth.
        self._first = self._first or self._now
        found = {"host_bytes": self._now, "host_growth_bytes": self._now - self._before}
        return found if session is None else found | {"device_bytes": session.device_bytes()}

    @property
    def outgrown(self) -> bool:
        """Whether the process has grown too large since its first case, so that others might run out of memory."""
        return self._now - self._first > self._limit


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def _total() -> int:
    return os.sysconf("SC_PHYS_PAGES") * _PAGE
