"""How the simulated server behaves: its model of the questions, and everything that can go wrong with a server."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from dsv4_conformance.accuracy.item_model import MODELS, Change, Floats, ItemModel
from dsv4_conformance.errors import BadInput

RATES = (
    "truncate",
    "empty",
    "no_answer",
    "filtered",
    "unfinished",
    "error_500",
    "malformed",
    "error_body",
    "hang_up",
    "stall",
)


@dataclass(frozen=True)
class Behaviour:
    """What a simulated server does. The default answers like a sound engine.

    The model: ``drop`` points less, evenly; ``drop_unstable`` points less on undecided questions; ``broken`` questions
    that passed never do; ``broken_items`` by name; ``jitter``: other numerics, same mean. ``stream`` picks the draws:
    another stream is another run of the same engine. ``mean_tokens`` None takes the task's.

    Replies, as shares of (question, seed), the same at every try: ``truncate`` (cut at the token limit), ``empty``
    (null content), ``no_answer``, ``filtered`` (finish_reason content_filter), ``unfinished`` (finish_reason null);
    ``parts``: every content is a list of parts. As shares of single tries: ``error_500``, ``malformed`` (JSON cut in
    half), ``error_body`` (an error in an HTTP 200), ``hang_up`` (connection closed), ``stall`` (``stall_s`` late).
    ``refuse``: questions that always get HTTP 400. ``down_after`` that many answers everything is HTTP 503.

    Identity: ``model`` name, another one after ``rename_after`` answers; ``version`` of the engine, another one after
    ``upgrade_after`` answers; ``template`` is a name, and another name another token count of every prompt.
    """

    drop: float = 0.0
    drop_unstable: float = 0.0
    broken: int = 0
    broken_items: tuple[str, ...] = ()
    jitter: bool = False
    stream: int = 0
    mean_tokens: int | None = None
    truncate: float = 0.0
    empty: float = 0.0
    no_answer: float = 0.0
    filtered: float = 0.0
    unfinished: float = 0.0
    parts: bool = False
    error_500: float = 0.0
    malformed: float = 0.0
    error_body: float = 0.0
    hang_up: float = 0.0
    stall: float = 0.0
    stall_s: float = 3600.0
    refuse: tuple[str, ...] = ()
    down_after: int | None = None
    latency_s: float = 0.0
    reasoning_chars: int = 200
    ignore_seeds: bool = False
    one_seed: bool = False
    ignore_thinking: bool = False
    always_thinking: bool = False
    model: str = "simulated"
    template: str = "v1"
    version: str = "1"
    rename_after: int | None = None
    upgrade_after: int | None = None

    def __post_init__(self) -> None:
        for name in RATES:
            if not 0 <= getattr(self, name) <= 1:
                raise BadInput(f"--{name.replace('_', '-')} is {getattr(self, name)}; give a share from 0 to 1.")
        counts = ("mean_tokens", "down_after", "rename_after", "upgrade_after", "reasoning_chars", "stream")
        for name in ("drop", "drop_unstable", "broken", "stall_s", "latency_s", *counts):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:  # true for nan
                option = {"stall_s": "stall-seconds", "latency_s": "latency"}.get(name, name.replace("_", "-"))
                raise BadInput(f"--{option} is {value}; give 0 or more.")

    def changes(self) -> list[Change]:
        """The changes of the item model, in the order in which they are applied."""
        found = [Change("jitter", "jitter")] if self.jitter else []
        found += [Change("drop", "uniform", drop=self.drop / 100)] if self.drop else []
        found += [Change("drop", "unstable", drop=self.drop_unstable / 100)] if self.drop_unstable else []
        return found + ([Change("broken", "broken", items=self.broken)] if self.broken else [])

    def told(self) -> str:
        """What is not as in a sound engine, in the words of the options; empty if nothing is."""
        odd = [f for f in fields(self) if getattr(self, f.name) != f.default]
        return ", ".join(f"{f.name.replace('_', '-')} {getattr(self, f.name)}" for f in odd)


def pass_probabilities(task: str, items: Sequence[str], behaviour: Behaviour) -> dict[str, float]:
    """Item -> probability that it is answered right.

    Ranks are a fixed shuffle of the items, so the same question is as hard in every process; which questions break is
    fixed as well. A set smaller than the task's is a sample of its quantiles.
    """
    known = MODELS[task]
    model = ItemModel(max(len(items), 2), known.mean, known.noise_ratio)
    order = sorted(items, key=lambda item: hashlib.sha256(f"{task} {item}".encode()).digest())
    p: Floats = model.quantile((np.arange(len(order)) + 0.5) / len(order))[None, :]
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(task.encode()).digest()[:8], "big"))
    for change in behaviour.changes():
        p = change.apply(p, rng)
    found = dict(zip(order, map(float, p[0]), strict=True))
    return {item: 0.0 if item in behaviour.broken_items else found[item] for item in items}


def uniform(*parts: object) -> float:
    """A number in [0, 1) that depends on ``parts`` only."""
    digest = hashlib.blake2b("|".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
