"""Runs and goldens made by hand, without a server."""

import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dsv4_conformance.accuracy.golden_record import Golden, golden_of
from dsv4_conformance.accuracy.journal import Journal
from dsv4_conformance.accuracy.records import AccuracyRun, Answer, RunHeader

FINGERPRINT = {"task": "gsm8k/1", "temperature": "1.0", "max_tokens": "2048", "dataset": "abc", "thinking": "off"}


def run_of(
    right: ArrayLike, *, statuses: Mapping[tuple[int, int], str] | None = None, tokens: int | None = 100, **header: Any
) -> AccuracyRun:
    """A run from ``right`` (questions, passes) of 0 and 1; ``statuses``: (question, pass) -> other status than ok."""
    matrix = np.asarray(right)
    items = tuple(f"q{i}" for i in range(matrix.shape[0]))
    answers = [
        _answer(str(header.get("model")), item, r, bool(matrix[i, r]), (statuses or {}).get((i, r), "ok"), tokens)
        for r in range(matrix.shape[1])
        for i, item in enumerate(items)
    ]
    values: dict[str, Any] = {
        "task": "gsm8k",
        "model": "candidate",
        "endpoint": "chat",
        "seed": 1000,
        "items": items,
        "fingerprint": dict(FINGERPRINT),
        "started": "2026-11-30T00:00:00+00:00",
        "versions": {"lm_eval": "0.4.13"},
    }
    return AccuracyRun(RunHeader(**values | header), tuple(answers))


def _answer(who: str, item: str, repeat: int, right: bool, status: str, tokens: int | None) -> Answer:
    return Answer(
        task="gsm8k",
        item=item,
        repeat=repeat,
        request=f"{item}/{repeat}",
        status=status,  # type: ignore[arg-type]
        correct=right and status == "ok",
        answer=("18" if right else "19") if status == "ok" else None,
        fallback=0 if status == "ok" else -1,
        finish_reason="stop",
        seed=1000 + repeat,
        prompt_tokens=10,
        completion_tokens=None if status == "error" else tokens,
        reasoning_tokens=0,
        text="" if status in ("empty", "error") else f"{who}, pass {repeat}: #### {18 if right else 19}",
        reasoning="",
        error="500" if status == "error" else "",
        prompt=f"hash of {item}",
        expected="18",
        seconds=zlib.crc32(f"{who}/{item}/{repeat}".encode()) / 1000,
    )


def changed(run: AccuracyRun, item: str, repeat: int, **values: Any) -> AccuracyRun:
    """The run with one answer changed."""
    answers = [replace(a, **values) if a.key == (item, repeat) else a for a in run.answers]
    return replace(run, answers=tuple(answers))


def golden(right: ArrayLike, name: str = "reference", **how: Any) -> Golden:
    """A golden from ``right`` (questions, passes)."""
    run = run_of(right, model="golden model", **how)
    return golden_of(run, np.asarray(right).shape[1], name, {"recorded": "2026-11-30"}, simulated=False)


def matrix(rng: np.random.Generator, p: ArrayLike, passes: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Draws (questions, passes) with pass probabilities ``p``."""
    probabilities = np.asarray(p, dtype=np.float64)
    return (rng.random((len(probabilities), passes)) < probabilities[:, None]).astype(np.int64)


def written(run: AccuracyRun, path: Path) -> Path:
    """The run as a file; its path."""
    with Journal(path, run.header) as journal:
        for answer in run.answers:
            journal.append(answer)
        journal.end(run.header.server)
    return path
