"""A served model under test: its run, its judgement, and what one requirement makes of it. No torch.

A server is no adapter. It offers no calls; it is asked once per task, and several requirements look at that one run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsv4_conformance.cases.accuracy_case import AccuracyCase

if TYPE_CHECKING:
    from dsv4_conformance.accuracy.gate import Judgement


SCORE = ("score",)
"""The gate whose requirement carries a task's verdict and its numbers."""


@dataclass(frozen=True)
class Judged:
    """One task's judgement, or ``problem``, the sentence why there is none. ``run``: the run that was just made."""

    judgement: Judgement | None
    problem: str = ""
    run: str = ""

    @property
    def reused(self) -> int:
        """Answers that an earlier run got."""
        if self.judgement is None or not self.run:
            return 0
        return sum(session.answers for session in self.judgement.sessions if session.run != self.run)


class Tasks:
    """Judgements of this process's run, made when first asked for. ``obtain``: task -> judgement."""

    def __init__(self, obtain: Callable[[str], Judged]) -> None:
        self._obtain = obtain
        self._found: dict[str, Judged] = {}

    def judged(self, task: str) -> Judged:
        """The judgement of ``task``; asking the server takes minutes to hours, once."""
        if task not in self._found:
            self._found[task] = self._obtain(task)
        return self._found[task]


class EndpointSubject:
    """What a suite function gets: it names the gates that its requirement is about."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._record: dict[str, Any] = {"checked": False}

    def judge(self, case: AccuracyCase, *gates: str) -> None:
        """Take what the run of ``case`` says about ``gates`` as the outcome of this test."""
        judged = self._tasks.judged(case.task)
        self._record = outcome(judged, gates)
        if gates == SCORE and "accuracy" not in self._record:
            # A task about which nothing can be told is named in the summary all the same.
            self._record["accuracy"] = {"task": case.task, "verdict": "INVALID", "paragraph": judged.problem}

    def record(self) -> dict[str, Any]:
        """The case's record for the journal; its ``status_hint`` is the verdict."""
        return self._record


def outcome(judged: Judged, gates: tuple[str, ...]) -> dict[str, Any]:
    """The record of a test about ``gates``: status, sentence, numbers. INCONCLUSIVE and INVALID are statuses of their
    own; a finding that is no failure and worth a look is a WARN."""
    from dsv4_conformance.accuracy.pytest_words import in_pytest
    from dsv4_conformance.accuracy.verdict_text import paragraph

    judgement = judged.judgement
    if judgement is None:
        return {"checked": True, "status_hint": "INVALID", "reason": judged.problem, "metrics": {}}
    told = in_pytest(paragraph(judgement))
    numbers = {"accuracy": judgement.numbers() | {"paragraph": told}} if gates == SCORE else {}
    if judgement.score is None:
        reason = told if "errors" in gates else "Not comparable with the golden; INV-133 tells why."
        return {"checked": True, "status_hint": "INVALID", "reason": reason, "metrics": {}, **numbers}
    found = [finding for finding in judgement.findings if finding.gate in gates]
    worst = max(found, key=lambda finding: (finding.verdict, finding.warns))
    passed = worst.verdict.name == "PASS"
    record: dict[str, Any] = {
        "checked": True,
        "status_hint": "WARN" if passed and worst.warns else worst.verdict.name,
        "reason": told if gates == SCORE else "" if passed and not worst.warns else f"{worst.sentence}.",
        "metrics": {f"{f.gate}_{name}": value for f in found for name, value in f.numbers.items()},
    }
    if "errors" in gates and passed and judged.reused:
        record |= {"status_hint": "WARN", "reason": _reused(judged, judgement)}
    if gates == SCORE and passed and not worst.warns:
        record["reason"] = ""
    return record | numbers


def _reused(judged: Judged, judgement: Judgement) -> str:
    total = sum(session.answers for session in judgement.sessions)
    whole = "nothing was asked in this run" if judged.reused == total else f"{total - judged.reused:,} were asked in it"
    return (
        f"{judged.reused:,} of the {total:,} answers {'is' if judged.reused == 1 else 'are'} an earlier run's "
        f"(begun {judgement.sessions[0].started}), {whole}: if the build has changed since, name another "
        "--dsv4-answers folder."
    )
