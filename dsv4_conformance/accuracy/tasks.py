"""The tasks: which questions, how they are put, how a reply is scored. Needs nothing installed but this package.

Generation settings stand in task_files/*.yaml, which lm-eval reads; ``lm_tasks`` joins the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dsv4_conformance.accuracy import data, parse
from dsv4_conformance.accuracy.records import EndpointKind, Status
from dsv4_conformance.errors import BadInput

TASK_FILES = Path(__file__).parent / "task_files"
CUT = frozenset({"length", "max_tokens"})
"""Finish reasons of a reply that the token limit cut off."""


@dataclass(frozen=True)
class Scored:
    """A reply as scored: how it ended, the answer in it, the parser's level, and whether it is right."""

    status: Status
    answer: str | None
    fallback: int
    correct: bool


@dataclass(frozen=True)
class Task:
    """A question set and its rules.

    ``version`` is raised whenever prompts or scoring change. ``files`` names the lm-eval task for each kind of endpoint
    it can be asked through. The first ``shots`` rows of ``shots_from`` stand worked in every prompt: a block that never
    changes, so that a question's prompt does not depend on which other questions are asked.
    """

    name: str
    version: str
    questions: str
    files: Mapping[EndpointKind, str]
    prompt: Callable[[str], str]
    target: Callable[[data.Row], str]
    read: Callable[[str], parse.Parsed]
    shots: int = 0
    shots_from: str = ""

    @property
    def parser(self) -> str:
        """Name and version of the parser, for the fingerprint."""
        return f"{self.name}/{parse.VERSION}"

    def score(self, text: str, target: str, *, finish_reason: str | None = None) -> Scored:
        """Score a reply that arrived. One that the token limit cut off is wrong and is not read, whatever it says."""
        if finish_reason in CUT:
            return Scored("truncated", None, parse.NONE.fallback, False)
        if not text.strip():
            return Scored("empty", None, parse.NONE.fallback, False)
        found = self.read(text)
        if found.answer is None:
            return Scored("no_answer", None, found.fallback, False)
        return Scored("ok", found.answer, found.fallback, found.answer == target)


def gsm8k_prompt(question: str) -> str:
    """The user's message of a GSM8K question."""
    return f"Question: {question}\nAnswer:"


def aime_prompt(question: str) -> str:
    """The user's message of an AIME question."""
    return (
        f"{question}\n\nThe answer is an integer from 0 to 999. Reason step by step, and put the final answer alone in "
        "\\boxed{}."
    )


def gsm8k_worked(answer: str) -> str:
    """A worked solution of the set, without the calculator marks <<6*7=42>>, which no chat model should imitate."""
    return re.sub(r"<<[^<>]*>>", "", answer)


def _gsm8k_target(row: data.Row) -> str:
    return _number(row, row.answer.rpartition("####")[2])


def _aime_target(row: data.Row) -> str:
    return _number(row, row.answer)


def _number(row: data.Row, text: str) -> str:
    number = parse.first_number(text)
    if number is None:
        raise BadInput(f"The recorded answer of {row.id} has no number; fetch the questions anew.")
    return number


TASKS: Mapping[str, Task] = {
    "gsm8k": Task(
        name="gsm8k",
        version="1",
        questions="gsm8k-test",
        files={"chat": "dsv4_gsm8k", "completions": "dsv4_gsm8k_completions"},
        prompt=gsm8k_prompt,
        target=_gsm8k_target,
        read=parse.gsm8k,
        shots=5,
        shots_from="gsm8k-train",
    ),
    "aime25": Task(
        name="aime25",
        version="1",
        questions="aime25",
        # A thinking model needs its chat template, which the completions endpoint does not apply.
        files={"chat": "dsv4_aime25"},
        prompt=aime_prompt,
        target=_aime_target,
        read=parse.aime,
    ),
}


def task(name: str) -> Task:
    """The task ``name``. Raises BadInput for an unknown one."""
    if name not in TASKS:
        raise BadInput(f"There is no task {name!r}; use {' or '.join(TASKS)}.")
    return TASKS[name]


def task_file(wanted: Task, endpoint: EndpointKind) -> str:
    """lm-eval's name of the task for this kind of endpoint. Raises BadInput if it cannot be asked through it."""
    if endpoint not in wanted.files:
        raise BadInput(
            f"{wanted.name} is asked through {' or '.join(wanted.files)} endpoints only; leave out --kind {endpoint}."
        )
    return wanted.files[endpoint]
