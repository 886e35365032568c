"""What the simulated model says: which question a prompt asks, and the reply to it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass

from dsv4_conformance.accuracy import data
from dsv4_conformance.accuracy.simulator.behaviour import Behaviour, pass_probabilities, uniform
from dsv4_conformance.accuracy.tasks import Task

TOKENS = {"gsm8k": (150, 300), "aime25": (600, 17000)}
"""Mean completion tokens of an answer and of its reasoning, about those of public runs."""


@dataclass(frozen=True)
class Question:
    """One question that the server knows, with its pass probability."""

    task: str
    item: str
    target: str
    passes: float


@dataclass(frozen=True)
class Said:
    """A reply: its text (None: null), reasoning, finish reason and token counts."""

    text: str | None
    reasoning: str | None
    finish_reason: str | None
    completion_tokens: int
    reasoning_tokens: int


class Questions:
    """Finds the question in a prompt."""

    def __init__(self, sets: Iterable[tuple[Task, tuple[data.Row, ...]]], behaviour: Behaviour) -> None:
        self._by_prompt: dict[str, Question] = {}
        self._by_text: list[tuple[str, Question]] = []
        for task, rows in sets:
            passes = pass_probabilities(task.name, [row.id for row in rows], behaviour)
            for row in rows:
                question = Question(task.name, row.id, task.target(row), passes[row.id])
                self._by_prompt[task.prompt(row.question)] = question
                self._by_text.append((row.question, question))

    def find(self, prompt: str) -> Question | None:
        """The question that ``prompt``, the last message or a plain text, ends with; None if it is none it knows."""
        if (known := self._by_prompt.get(prompt)) is not None:
            return known
        last = prompt.rpartition("\n\nQuestion: ")[2]
        if (known := self._by_prompt.get(f"Question: {last.rstrip()}")) is not None:
            return known
        # Put by another client in words of its own.
        ends = [(prompt.rfind(text) + len(text), len(text), q) for text, q in self._by_text if text in prompt]
        return max(ends, key=lambda end: end[:2])[2] if ends else None


class Model:
    """Draws replies. The same question, seed and behaviour give the same reply, as with an engine that heeds seeds."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._start = os.urandom(8).hex()
        self._count = itertools.count()

    def draw_of(self, seed: int | None, temperature: float) -> str:
        """What a reply depends on besides its question."""
        behaviour = self._behaviour
        if behaviour.one_seed or not temperature:
            return f"{behaviour.stream}"
        if seed is None or behaviour.ignore_seeds:
            return f"{behaviour.stream} {self._start} {next(self._count)}"
        return f"{behaviour.stream} {seed}"

    def answer(self, question: Question, draw: str, thinking: bool) -> Said:
        """The reply to a question of a set."""
        behaviour = self._behaviour

        def chance(what: str) -> float:
            return uniform(what, question.item, draw)

        answer_tokens, thought_tokens = TOKENS[question.task]
        if behaviour.mean_tokens is not None:
            answer_tokens = behaviour.mean_tokens
        length = int(answer_tokens * (0.5 + chance("length")))
        thought = int(thought_tokens * (0.5 + chance("thought"))) if thinking else 0
        reasoning = _reasoning(question.item, draw, behaviour.reasoning_chars) if thinking else None
        steps = f"Step 1: read the question ({chance('words'):.6f}). Step 2: work it out."
        if chance("truncate") < behaviour.truncate:
            # As in real life, the right number may stand in what was cut off, and counts for nothing.
            return Said(f"{steps} So far {question.target}", reasoning, "length", length + thought, thought)
        if chance("empty") < behaviour.empty:
            return Said(None, reasoning, "stop", thought, thought)
        if chance("no answer") < behaviour.no_answer:
            return Said("This cannot be told.", reasoning, "stop", length + thought, thought)
        if chance("filtered") < behaviour.filtered:
            return Said(steps, reasoning, "content_filter", length + thought, thought)
        right = chance("pass") < question.passes
        number = question.target if right else _wrong(question, chance("which"))
        closing = f"\\boxed{{{number}}}" if question.task == "aime25" else f"#### {number}"
        finish = None if chance("unfinished") < behaviour.unfinished else "stop"
        return Said(f"{steps}\n{closing}", reasoning, finish, length + thought, thought)

    def chat(self, prompt: str, draw: str, thinking: bool, limit: int) -> Said:
        """The reply to anything else, such as a probe: numbers that depend on the draw."""
        numbers = ", ".join(str(1 + int(1000 * uniform(prompt, draw, i))) for i in range(12))
        thought = 40 if thinking else 0
        reasoning = _reasoning(prompt, draw, 60) if thinking else None
        cut = thought + 24 > limit
        return Said(
            None if thinking and cut else numbers, reasoning, "length" if cut else "stop", thought + 24, thought
        )


def _wrong(question: Question, chance: float) -> str:
    value = float(question.target)
    off = 1 + int(chance * 9)
    if question.task == "aime25":
        return str(int(value + off) % 1000)
    return f"{value + off:.0f}"


def _reasoning(item: str, draw: str, length: int) -> str:
    start = f"Let me think ({uniform('reasoning', item, draw):.8f}). "
    return (start + "Now this, then that. " * (length // 20))[: max(length, len(start))]
