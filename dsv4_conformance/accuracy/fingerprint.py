"""What must be equal before two runs may be compared, and how it is hashed.

Not in it, because it is what is under test or cannot change what is asked: engine, GPUs, parallelism, concurrency, the
server's handling of seeds, versions of lm-eval and Python. The prompts' hash covers what these could change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from dsv4_conformance.accuracy.data import Questions
from dsv4_conformance.accuracy.records import json_line
from dsv4_conformance.accuracy.tasks import Task

NOT_SETTINGS = frozenset({"messages", "prompt", "model", "seed", "stream"})
"""Fields of a request's body that have a field of the fingerprint or of the header to themselves."""


def sha256(text: str) -> str:
    """SHA-256 of a text, as hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def prompts_sha256(prompts: Iterable[tuple[str, str]]) -> str:
    """SHA-256 over (item, hash of its rendered prompt), in the items' order."""
    return sha256("\n".join(f"{item} {prompt}" for item, prompt in prompts))


def fingerprint(
    task: Task,
    questions: Questions,
    shots_sha256: str,
    prompts: list[tuple[str, str]],
    settings: Mapping[str, Any],
    server: Mapping[str, str],
    weights: str,
) -> dict[str, str]:
    """Every field that has to match.

    ``settings``: a request's body; each field that is no prompt is one field here. ``server``: what the probe found of
    the model's name and the template. ``weights``: what the user declares of revision and accuracy class.
    """
    fields = {
        "task": task.name,
        "task_version": task.version,
        "dataset": questions.sha256,
        "items": str(len(prompts)),
        "fewshot": f"{task.shots} {shots_sha256}" if task.shots else "0",
        "prompts": prompts_sha256(prompts),
        "parser": task.parser,
        "seeds": "base + repeat",
        "weights": weights,
        **server,
    }
    fields |= {name: _plain(value) for name, value in settings.items() if name not in NOT_SETTINGS}
    return dict(sorted(fields.items()))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json_line(value)
