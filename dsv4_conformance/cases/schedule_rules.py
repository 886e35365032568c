"""Which steps a schedule may take: a step uses what its sequences hold by then. Torch-free."""

from __future__ import annotations

from dsv4_conformance.cases.schedule import BATCHES, Step, steps
from dsv4_conformance.errors import BadInput

LOOKBACK = 8
"""Tokens of the longest verify step, and tokens that can be taken back, unless an adapter declares fewer."""
PAGE = 256
COMPRESSOR_KINDS = ("prefill", "decode", "verify", "keep", "release", "poison")


class Held:
    """What living sequences hold, step by step. ``lengths``: sequence -> tokens. ``lookback``: tokens that can be taken
    back, counted from the most that a sequence ever held."""

    def __init__(self, lookback: int = LOOKBACK) -> None:
        self.lookback = lookback
        self.lengths: dict[int, int] = {}
        self._reached: dict[int, int] = {}
        self._shared: dict[int, int] = {}

    def lowest(self, sequence: int) -> int:
        """Fewest tokens that a living sequence can be cut to: one, those it shares, those beyond the lookback."""
        return max(1, self._shared.get(sequence, 0), self._reached[sequence] - self.lookback)

    def take(self, step: Step) -> None:
        """Account for a step. Raises BadInput, naming the step, if what the sequences hold does not allow it."""
        numbers = [sequence for sequence, _ in step.parts]
        if len(set(numbers)) < len(numbers):
            raise _refused(step, "names a sequence twice", "join its tokens into one part")
        for sequence, count in step.parts:
            if step.kind != "prefill" and sequence not in self.lengths:
                raise _refused(step, f"takes sequence {sequence}, which holds no tokens", "prefill it before")
            self._check(step, sequence, count)
        for sequence, count in step.parts:
            self._apply(step, sequence, count)

    def _check(self, step: Step, sequence: int, count: int) -> None:
        held = self.lengths.get(sequence, 0)
        if step.kind in BATCHES and count < 1:
            raise _refused(step, f"gives sequence {sequence} no tokens", "give it one at least, or leave it out")
        if step.kind == "verify" and count > self.lookback:
            raise _refused(step, f"verifies {count} drafts", f"at most {self.lookback} can be taken back")
        if step.kind == "keep" and not self.lowest(sequence) <= count <= held:
            raise _refused(
                step,
                f"keeps {count} of the {held} tokens of sequence {sequence}",
                f"keep {self.lowest(sequence)} to {held}: state goes back {self.lookback} tokens, never into a prefix "
                "that is shared, and one is left",
            )
        if step.kind == "fork":
            if step.target in self.lengths:
                raise _refused(step, f"starts sequence {step.target}, which is alive", "release it before")
            if count % PAGE or not PAGE <= count <= held:
                raise _refused(
                    step,
                    f"shares {count} of the {held} tokens of sequence {sequence}",
                    f"share a multiple of {PAGE} that it holds",
                )

    def _apply(self, step: Step, sequence: int, count: int) -> None:
        if step.kind in BATCHES:
            self._set(sequence, self.lengths.get(sequence, 0) + count)
        elif step.kind == "keep":
            self.lengths[sequence] = count
        elif step.kind == "fork":
            self._set(step.target, count)
            for one in (sequence, step.target):
                self._shared[one] = max(count, self._shared.get(one, 0))
        else:
            del self.lengths[sequence], self._reached[sequence]
            self._shared.pop(sequence, None)

    def _set(self, sequence: int, length: int) -> None:
        self.lengths[sequence] = length
        self._reached[sequence] = max(length, self._reached.get(sequence, 0))


def check_schedule(schedule: str, surface: str = "AttentionLayer", lookback: int = LOOKBACK) -> None:
    """Raise BadInput, naming the first step that cannot be taken, unless ``schedule`` can be run on ``surface``.

    A Compressor has no prefixes to share, no idle steps and no rows of nobody, and its state is poisoned only while no
    sequence lives.
    """
    held, parsed = Held(lookback), steps(schedule)
    for step in parsed:
        if surface == "Compressor":
            if step.kind not in COMPRESSOR_KINDS or step.padding:
                raise _refused(step, "means nothing to a Compressor", "use p, d, v, k, r and x without ~")
            if step.kind == "poison" and held.lengths:
                raise _refused(step, "poisons state that sequences own", "release them before")
        held.take(step)
    if not any(step.kind in BATCHES for step in parsed):
        raise BadInput(f"the schedule {schedule!r} has no tokens; begin with a prefill such as p0:5.")


def _refused(step: Step, what: str, remedy: str) -> BadInput:
    return BadInput(f"step {step.text()!r} of a schedule {what}; {remedy}.")
