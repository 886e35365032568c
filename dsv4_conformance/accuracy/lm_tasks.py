"""What task_files/*.yaml call: data sets, prompts and scores in the shapes lm-eval wants. Imported by lm-eval only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import datasets
from lm_eval.api.filter import Filter
from lm_eval.api.registry import register_filter

from dsv4_conformance.accuracy import data
from dsv4_conformance.accuracy.tasks import TASKS, Task, gsm8k_worked

Doc = Mapping[str, Any]


@register_filter("dsv4_all_repeats")
class AllRepeats(Filter):  # type: ignore[misc]
    """Keeps every repeat of a question; lm-eval's own default scores the first and drops the others."""

    def apply(self, resps: Any, docs: Any) -> Iterable[Any]:
        """``resps`` as they are: per question the list of its replies."""
        return list(resps)


def gsm8k_dataset(verify: bool = True, **_: Any) -> dict[str, datasets.Dataset]:
    """Splits ``test`` and ``shots``; ``verify`` comes from ``--metadata``."""
    return _splits(TASKS["gsm8k"], verify)


def aime25_dataset(verify: bool = True, **_: Any) -> dict[str, datasets.Dataset]:
    """Split ``test``; ``verify`` comes from ``--metadata``."""
    return _splits(TASKS["aime25"], verify)


def _splits(task: Task, verify: bool) -> dict[str, datasets.Dataset]:
    splits = {"test": _dataset(task, data.load(task.questions, verify=verify).rows)}
    if task.shots:
        splits["shots"] = _dataset(task, data.load(task.shots_from, verify=verify).rows[: task.shots])
    return splits


def _dataset(task: Task, rows: Iterable[data.Row]) -> datasets.Dataset:
    return datasets.Dataset.from_list(
        [{"id": r.id, "question": r.question, "answer": r.answer, "target": task.target(r)} for r in rows]
    )


def gsm8k_prompt(doc: Doc) -> str:
    """The user's message."""
    return TASKS["gsm8k"].prompt(doc["question"])


def gsm8k_shot(doc: Doc) -> str:
    """The worked answer of an example."""
    return gsm8k_worked(doc["answer"])


def aime25_prompt(doc: Doc) -> str:
    """The user's message."""
    return TASKS["aime25"].prompt(doc["question"])


def gsm8k_results(doc: Doc, results: list[Any]) -> dict[str, float]:
    """Shares over the repeats of one question."""
    return _results(TASKS["gsm8k"], doc, results)


def aime25_results(doc: Doc, results: list[Any]) -> dict[str, float]:
    """Shares over the repeats of one question."""
    return _results(TASKS["aime25"], doc, results)


def _results(task: Task, doc: Doc, results: list[Any]) -> dict[str, float]:
    # One request per question; its replies are a list, or one string where another filter took the first.
    replies = [results[0]] if isinstance(results[0], str) else results[0]
    scored = [task.score(reply, doc["target"]) for reply in replies]
    return {
        "exact_match": sum(one.correct for one in scored) / len(scored),
        "no_answer": sum(one.answer is None for one in scored) / len(scored),
    }
