"""What became of a case: the one place where an exception, or its absence, becomes a status and a sentence."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from dsv4_conformance.errors import BadInput, ConformanceFailure, ContractViolation, Inconclusive, NotApplicable
from dsv4_conformance.status import Status
from dsv4_conformance.texts import clean, text_of

STICKY = (
    "illegal memory access",
    "device-side assert",
    "misaligned address",
    "unspecified launch failure",
    "illegal instruction",
    "hardware stack error",
    "invalid program counter",
    "operation not supported on global/shared address space",
    "launch timed out",
    "uncorrectable",
)
"""Words of CUDA errors after which every further call of the process fails: its context is dead."""


OUT_OF_MEMORY = (
    "can't allocate memory",
    "cuda out of memory",
    "cuda error: out of memory",
    "std::bad_alloc",
    "cublas_status_alloc_failed",
)
"""Words of errors that are no MemoryError and mean one."""


class ContextDead(Exception):
    """The process's CUDA context was found dead when its case was over."""


class Quarantined(Exception):
    """A waiver sets the case aside."""


class UnsupportedRequired(ConformanceFailure):
    """The profile makes a surface mandatory that the adapter does not offer."""


@dataclass(frozen=True)
class Outcome:
    """Status of a case and, unless it passed, one or more sentences why.

    ``context_dead``: the process can run no further case on its GPU. ``bad_input``: the user's input is at fault, so
    no further case will fare better. ``waiver``: the id of the waiver that made the status what it is;
    ``waived_status``: what it was before, if it is WAIVED now.
    """

    status: Status
    reason: str = ""
    context_dead: bool = False
    bad_input: bool = False
    waiver: str = ""
    waived_status: Status | None = None

    @property
    def retires(self) -> bool:
        """Whether a fresh process should go on: what is left of memory would be the next case's trouble."""
        return self.status is Status.OUT_OF_MEMORY


def of_exception(error: BaseException, level: Literal["MUST", "SHOULD"]) -> Outcome:
    """Outcome of a case that raised ``error``, for a requirement of this level."""
    text = text_of(error) or f"{type(error).__name__} without a message"
    if isinstance(error, ContextDead):
        return Outcome(Status.CRASH, text, context_dead=True)
    for cause in _chain(error):
        if _kills_context(cause):
            said = f"The CUDA context died: {_first_line(cause)}. {_unless_same(text, cause)}"
            return Outcome(Status.CRASH, said.strip(), context_dead=True)
        if _is_out_of_memory(cause):
            return Outcome(Status.OUT_OF_MEMORY, f"Out of memory: {_first_line(cause)}")
    if isinstance(error, Quarantined):
        return Outcome(Status.QUARANTINED, text)
    if isinstance(error, NotApplicable):
        return Outcome(Status.NOT_APPLICABLE, text)
    if isinstance(error, UnsupportedRequired):
        return Outcome(Status.UNSUPPORTED_REQUIRED, text)
    if isinstance(error, Inconclusive):
        return Outcome(Status.INCONCLUSIVE, text)
    if isinstance(error, AssertionError):  # ConformanceFailure is one, and so is a plain assert of a suite
        # A SHOULD that is not met wastes something. An exception or a broken contract is wrong at any level.
        wasteful = level == "SHOULD" and not isinstance(error, ContractViolation) and error.__cause__ is None
        return Outcome(Status.WARN if wasteful else Status.FAIL, text)
    if isinstance(error, BadInput):
        return Outcome(Status.HARNESS_ERROR, text, bad_input=True)
    if isinstance(error, pytest.skip.Exception | pytest.xfail.Exception):
        return Outcome(Status.NOT_RUN, f"The suite skipped a planned case: {text}")
    return Outcome(Status.HARNESS_ERROR, f"{type(error).__name__}: {text}")


def of_return(record: Mapping[str, Any]) -> Outcome:
    """Outcome of a case whose test returned, from what its subject recorded."""
    if not record.get("checked"):
        why = str(record.get("reason") or "")
        said = "The test ended without comparing any call of the implementation."
        return Outcome(Status.HARNESS_ERROR, f"{said} {why}".strip())
    hint = Status(record.get("status_hint") or Status.PASS)
    return Outcome(hint, clean(str(record.get("reason") or "")))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """``error`` and what caused it; an exception of the adapter arrives as the cause of a ConformanceFailure."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _kills_context(error: BaseException) -> bool:
    text = text_of(error).lower()
    return isinstance(error, RuntimeError) and "cuda" in text and any(words in text for words in STICKY)


def _is_out_of_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")  # if nobody imported it, it raised nothing
    kinds = (MemoryError, torch.OutOfMemoryError) if torch is not None else (MemoryError,)
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    text = text_of(error).lower() if isinstance(error, RuntimeError) else ""
    return isinstance(error, kinds) or any(words in text for words in OUT_OF_MEMORY)


def _first_line(error: BaseException) -> str:
    lines = text_of(error).splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def _unless_same(text: str, cause: BaseException) -> str:
    return "" if text_of(cause) == text else text
