"""Counting a run: how many of its answers per question were right, cut off, missing, and how long they were."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4_conformance.accuracy.records import AccuracyRun, Answer, json_line

Counts = NDArray[np.int64]
UNCOUNTED = 0.005
"""Share of usable replies that may lack a count of their tokens."""
_COLUMNS = ("correct", "truncated", "empty", "no_answer", "filtered", "malformed", "errors", "fallback", "reasoned")


@dataclass(frozen=True)
class Tally:
    """Counts per question over ``repeats`` passes, in the order of the header's items.

    ``fallback``: answers read by another rule than the form asked for; ``reasoned``: replies with reasoning.
    ``tokens``: completion tokens of the ``counted`` replies, None if more than 1 in 200 came without a count.
    ``prompts``, ``expected``: of each question, "" where passes disagree. ``passes``: right answers of each pass.
    """

    repeats: int
    correct: Counts
    truncated: Counts
    empty: Counts
    no_answer: Counts
    filtered: Counts
    malformed: Counts
    errors: Counts
    fallback: Counts
    reasoned: Counts
    tokens: Counts | None
    counted: Counts
    prompts: tuple[str, ...]
    expected: tuple[str, ...]
    passes: tuple[int, ...]

    @property
    def answers(self) -> int:
        """Requests in all."""
        return self.repeats * len(self.correct)

    @property
    def all_counted(self) -> bool:
        """Whether every usable reply came with a count of its tokens."""
        return int(self.counted.sum()) == self.answers - int(self.errors.sum())


def tally(run: AccuracyRun, repeats: int) -> Tally:
    """Count the first ``repeats`` passes. Answers that are not there count as nothing; see ``complete_passes``."""
    place = {item: i for i, item in enumerate(run.header.items)}
    n = len(place)
    counts: dict[str, Counts] = {name: np.zeros(n, dtype=np.int64) for name in _COLUMNS}
    tokens, counted = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    usable = 0
    prompts: list[set[str]] = [set() for _ in range(n)]
    expected: list[set[str]] = [set() for _ in range(n)]
    passes = [0] * repeats
    for answer in run.answers:
        if answer.repeat >= repeats or answer.item not in place:
            continue
        i = place[answer.item]
        for name in _marks(answer):
            counts[name][i] += 1
        passes[answer.repeat] += answer.correct
        prompts[i].add(answer.prompt)
        expected[i].add(answer.expected)
        usable += answer.status != "error"
        if answer.status != "error" and answer.completion_tokens is not None:
            tokens[i] += answer.completion_tokens
            counted[i] += 1
    enough = int(counted.sum()) >= (1 - UNCOUNTED) * usable
    rest: dict[str, Any] = {**counts, "tokens": tokens if enough else None, "counted": counted}
    return Tally(
        repeats=repeats,
        prompts=tuple(map(_single, prompts)),
        expected=tuple(map(_single, expected)),
        passes=tuple(passes),
        **rest,
    )


def pass_digests(run: AccuracyRun, repeats: int) -> tuple[str, ...]:
    """What tells each of the first ``repeats`` passes from every other that was ever asked, the same in every copy.

    The times are in it, since a server that heeds seeds may rightly say the same words again.
    """
    said: list[list[str]] = [[] for _ in range(repeats)]
    for a in run.answers:
        if a.repeat < repeats:
            said[a.repeat].append(json_line([a.item, a.request, a.status, a.answer, a.completion_tokens, a.seconds]))
    return tuple(hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16] for lines in said)


def complete_passes(run: AccuracyRun) -> int:
    """How many passes from the first on have an answer to every question."""
    done = {answer.key for answer in run.answers}
    passes = 0
    while run.header.items and all((item, passes) in done for item in run.header.items):
        passes += 1
    return passes


def _marks(answer: Answer) -> list[str]:
    marks = ["correct"] if answer.correct else []
    marks += [{"error": "errors"}.get(answer.status, answer.status)] if answer.status != "ok" else []
    marks += ["fallback"] if answer.status == "ok" and answer.fallback > 0 else []
    return marks + (["reasoned"] if answer.reasoning or answer.reasoning_tokens else [])


def _single(found: set[str]) -> str:
    return next(iter(found)) if len(found) == 1 else ""
