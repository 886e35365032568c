"""One case judged by its suite function in this process: a status and a sentence, whatever happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dsv4_conformance.cases.plan import PlannedCase
from dsv4_conformance.errors import BadInput, ConformanceFailure, NotApplicable
from dsv4_conformance.numerics.truth import Truth
from dsv4_conformance.runner.execute import Call
from dsv4_conformance.runner.session import Session
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.requirements import load_registry
from dsv4_conformance.status import Status
from dsv4_conformance.texts import summary_of


@dataclass(frozen=True)
class Judged:
    """What became of a case. ``fatal``: the process's device is of no use any more."""

    status: Status
    sentence: str
    seconds: float
    fatal: bool = False

    @property
    def failed(self) -> bool:
        """Whether the implementation is at fault."""
        return self.status in (Status.FAIL, Status.CRASH, Status.TIMEOUT, Status.OUT_OF_MEMORY)


class _WithoutMargins(Subject):
    """Margins say what a pass rules out, take half of a case's time, and change no verdict."""

    def mutants_of(self, call: Call, truth: Truth) -> None:
        """Nothing."""


def judge(session: Session, function: Callable[..., Any], planned: PlannedCase) -> Judged:
    """Run ``function`` on ``planned``. Ctrl-C passes through; a failed SHOULD is a WARN."""
    subject = _WithoutMargins(session.implementation, session.device, planned.requirement)
    started = time.perf_counter()
    status, sentence, fatal = Status.PASS, "", False
    try:
        function(subject, planned.case)
        session.probe()
        if not subject.record()["checked"]:
            status, sentence = Status.HARNESS_ERROR, "The test compared nothing."
    except NotApplicable as outside:
        status, sentence = Status.NOT_APPLICABLE, str(outside)
    except ConformanceFailure as failure:
        should = load_registry().get(planned.requirement).level == "SHOULD"
        status, sentence = Status.WARN if should else Status.FAIL, str(failure)
        fatal = _lost(failure)
    except (torch.OutOfMemoryError, MemoryError) as error:
        status, sentence = Status.OUT_OF_MEMORY, summary_of(error)
    except (Exception, SystemExit) as error:
        status, sentence = Status.HARNESS_ERROR, summary_of(error)
        if isinstance(error, BadInput):
            sentence = f"The case is none that can be built: {error}"
        if "cuda error" in str(error).lower():
            status, fatal = Status.CRASH, True
    return Judged(Status.CRASH if fatal else status, sentence, time.perf_counter() - started, fatal)


def _lost(failure: ConformanceFailure) -> bool:
    return "cuda error" in f"{failure} {failure.__cause__}".lower()
