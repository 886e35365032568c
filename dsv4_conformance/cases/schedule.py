"""Schedules: what happens to the sequences of a stateful case, as a line of text that ids and reproducers can carry.

A schedule is steps separated by spaces. A step is a letter and its arguments:

    p0:70+1:5    prefill 70 tokens of sequence 0 and 5 of sequence 1 in one batch
    d0+1         decode one token of sequences 0 and 1
    v0:4         verify 4 draft tokens of sequence 0
    k0:72        keep the first 72 tokens of sequence 0: the later ones were rejected
    f0>2:256     start sequence 2 from the first 256 tokens of sequence 0
    r0           release sequence 0
    x            poison every byte that no live sequence owns
    i            an idle step: no sequence takes part

``~3`` after a batch adds 3 rows that belong to nobody. Torch-free.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from dsv4_conformance.errors import BadInput

Kind = Literal["prefill", "decode", "verify", "keep", "fork", "release", "poison", "idle"]
_KINDS: dict[str, Kind] = {
    "p": "prefill",
    "d": "decode",
    "v": "verify",
    "k": "keep",
    "f": "fork",
    "r": "release",
    "x": "poison",
    "i": "idle",
}
_BATCH = re.compile(r"(?P<parts>[0-9]+(:[0-9]+)?(\+[0-9]+(:[0-9]+)?)*)(~(?P<padding>[0-9]+))?")
LARGEST = {"sequence number": 1 << 20, "tokens": 1 << 20, "padding rows": 1 << 16}
"""No engine has more; a number beyond is a slip of the keyboard."""
BATCHES = ("prefill", "decode", "verify")


@dataclass(frozen=True)
class Step:
    """One step. ``parts``: (sequence, tokens) pairs of a batch; keep: (sequence, length); release: (sequence, 0);
    fork: (source, length), with the new sequence in ``target``. ``padding``: rows that belong to nobody."""

    kind: Kind
    parts: tuple[tuple[int, int], ...] = ()
    padding: int = 0
    target: int = -1

    def text(self) -> str:
        """The step as ``steps`` reads it."""
        letter = next(key for key, kind in _KINDS.items() if kind == self.kind)
        if self.kind == "fork":
            (source, length), target = self.parts[0], self.target
            return f"f{source}>{target}:{length}"
        bare = self.kind in ("decode", "release")
        body = "+".join(f"{sequence}" if bare else f"{sequence}:{count}" for sequence, count in self.parts)
        return f"{letter}{body}" + (f"~{self.padding}" if self.padding else "")


def steps(schedule: str) -> tuple[Step, ...]:
    """The steps of a schedule. Raises BadInput, naming the step, if it cannot be read."""
    found = tuple(_step(word) for word in schedule.split())
    for step in found:
        numbers = [sequence for sequence, _ in step.parts] + [step.target]
        asked = {
            "sequence number": max(numbers),
            "tokens": max((count for _, count in step.parts), default=0),
            "padding rows": step.padding,
        }
        for what, number in asked.items():
            if number > LARGEST[what]:
                raise BadInput(f"step {step.text()[:60]!r} has {what} {number}; at most {LARGEST[what]:,} is possible.")
    return found


def _step(word: str) -> Step:
    kind = _KINDS.get(word[:1])
    body = word[1:]
    if kind in ("poison", "idle") and not body:
        return Step(kind)
    if kind == "fork" and (found := re.fullmatch(r"([0-9]+)>([0-9]+):([0-9]+)", body)):
        source, target, length = map(int, found.groups())
        return Step(kind, ((source, length),), target=target)
    if kind in (*BATCHES, "keep", "release") and (found := _BATCH.fullmatch(body)):
        parts = [part.partition(":") for part in found["parts"].split("+")]
        bare = kind in ("decode", "release")
        if all(bool(count) != bare for _, _, count in parts) and (kind in BATCHES or not found["padding"]):
            one = 1 if kind == "decode" else 0
            pairs = tuple((int(sequence), int(count) if count else one) for sequence, _, count in parts)
            return Step(kind, pairs, int(found["padding"] or 0))
    raise BadInput(
        f"step {word!r} of a schedule cannot be read; write it as in 'p0:70+1:5~3 d0+1 v0:4 k0:72 f0>2:256 r0'."
    )


def longest(schedule: str) -> int:
    """The largest number of tokens that any sequence ever holds."""
    lengths: dict[int, int] = {}
    most = 0
    for step in steps(schedule):
        for sequence, count in step.parts:
            if step.kind in BATCHES:
                lengths[sequence] = lengths.get(sequence, 0) + count
            elif step.kind == "keep":
                lengths[sequence] = count
            elif step.kind == "fork":
                lengths[step.target] = count
            else:
                lengths.pop(sequence, None)
        most = max([most, *lengths.values()])
    return most


def sequences(schedule: str) -> int:
    """How many sequences it numbers, each counted once."""
    numbers = {sequence for step in steps(schedule) for sequence, _ in step.parts}
    return len(numbers | {step.target for step in steps(schedule) if step.kind == "fork"})
