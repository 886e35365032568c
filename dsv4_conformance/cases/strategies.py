"""Hypothesis strategies of schedules that can be run, written so that failures shrink to short ones.

What is drawn is a list of wishes that know nothing of each other; a wish becomes a step, or a part of one, by what the
sequences hold when its turn comes, or nothing. So any wish can be taken out of the list, and what is left is a schedule
again. Smaller numbers are simpler steps. All wishes have one shape, and few numbers: Hypothesis deletes at most five
choices at a time.

No integer is drawn from a range that reaches 100: Hypothesis would mix in constants of the modules that happen to be
loaded, and schedules would differ between processes.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from dsv4_conformance.cases.schedule import BATCHES, Kind, Step
from dsv4_conformance.cases.schedule_rules import COMPRESSOR_KINDS, LOOKBACK, PAGE, Held

SEQUENCES = 4
SPARED = 8
"""One in so many tokens is left by prefills to decode and verify steps."""
LANDINGS = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 23, 25, 27),
    *(63, 64, 66, 90, 125, 126, 127, 128, 129, 130, 254, 255, 256, 257, 259),
    *(300, 383, 384, 385, 510, 511, 512, 513, 516, 767, 768, 769, 1022, 1023, 1024, 1025),
)
"""Lengths to reach with one prefill: ends of groups of 4 and 128, of the window and of pages."""
WISHES = {
    "prefill": 5,
    "join": 6,
    "decode": 4,
    "verify": 3,
    "keep": 4,
    "fork": 2,
    "release": 2,
    "poison": 1,
    "pad": 3,
    "idle": 1,
}
"""Wish -> how often it is drawn. join: one more part of the batch before, pad: one more row of nobody in it."""

Wish = tuple[str, int, int]
"""What, of which sequence, and a number: of a length to reach, of drafts, of tokens to take back, of pages."""


def layer_schedules(tokens: int, lookback: int = LOOKBACK) -> st.SearchStrategy[str]:
    """Schedules of a layer: at most ``tokens`` new tokens of at most four sequences that live together."""
    return _schedules(tuple(WISHES), tokens, lookback, layer=True)


def compressor_schedules(tokens: int, lookback: int = LOOKBACK) -> st.SearchStrategy[str]:
    """Schedules of a Compressor session, likewise; state is poisoned only while no sequence lives."""
    return _schedules(("join", *COMPRESSOR_KINDS), tokens, lookback, layer=False)


def _schedules(kinds: Sequence[str], tokens: int, lookback: int, layer: bool) -> st.SearchStrategy[str]:
    numbers = st.integers(0, sum(length <= tokens for length in LANDINGS) - 1)
    sequences = st.sampled_from((0, 0, 0, 1, 1, 2, 3))
    weighted = [kind for kind in WISHES if kind in kinds for _ in range(WISHES[kind])]
    # A list holds five on average: three lists give schedules of about eight steps.
    some = st.lists(st.tuples(st.sampled_from(weighted), sequences, numbers), max_size=10)
    first = st.tuples(st.just("prefill"), sequences, numbers)
    return st.tuples(first, some, some, some).map(
        lambda drawn: Plan(tokens, lookback, layer).schedule([drawn[0], *drawn[1], *drawn[2], *drawn[3]])
    )


class Plan:
    """Turns wishes into a schedule of at most ``tokens`` new tokens, of a layer or of a Compressor."""

    def __init__(self, tokens: int, lookback: int, layer: bool) -> None:
        self._left, self._spared, self._layer = tokens, tokens // SPARED, layer
        self._held = Held(lookback)
        self._batch = Step("idle")
        """The batch that may still grow; no batch if its kind is idle."""
        self._words: list[str] = []

    def schedule(self, wishes: Sequence[Wish]) -> str:
        """The schedule as cases/schedule.py reads it."""
        for kind, sequence, number in wishes:
            if kind not in ("join", "pad"):
                self._close()
            getattr(self, f"_{kind}")(sequence, number)
        self._close()
        return " ".join(self._words)

    def _take(self, step: Step) -> None:
        self._held.take(step)
        self._words.append(step.text())

    def _close(self) -> None:
        if self._batch.parts:
            self._take(self._batch)
        self._batch = Step("idle")

    def _add(self, kind: Kind, sequence: int | None, count: int, spared: int = 0) -> None:
        """One more part of the batch, if there are tokens for it and its sequence has none yet."""
        count = min(count, self._left - spared)
        if sequence is None or count < 1 or sequence in dict(self._batch.parts):
            return
        self._left -= count
        self._batch = Step(kind, (*self._batch.parts, (sequence, count)), self._batch.padding)

    def _alive(self, number: int) -> int | None:
        """The living sequence that ``number`` stands for: itself, else one of the others; None if none lives."""
        alive = sorted(self._held.lengths)
        return number if number in alive else alive[number % len(alive)] if alive else None

    def _join(self, sequence: int, number: int) -> None:
        if self._batch.kind in BATCHES:
            getattr(self, f"_{self._batch.kind}")(sequence, number)

    def _pad(self, sequence: int, number: int) -> None:
        if self._batch.kind in BATCHES:
            self._batch = Step(self._batch.kind, self._batch.parts, self._batch.padding + 1)

    def _prefill(self, sequence: int, number: int) -> None:
        """Up to the length wanted, or by as many tokens if the sequence holds more."""
        length, held = LANDINGS[number], self._held.lengths.get(sequence, 0)
        self._add("prefill", sequence, length - held if length > held else length, self._spared)

    def _decode(self, sequence: int, number: int) -> None:
        """One sequence, or for odd numbers all that live, from that one on; every other two with a row of nobody."""
        alive, living = sorted(self._held.lengths), self._alive(sequence)
        if living is not None:
            place = alive.index(living)
            for each in (alive[place:] + alive[:place])[: len(alive) if number % 2 else 1]:
                self._add("decode", each, 1)
            if self._layer and number % 4 > 1:
                self._pad(sequence, number)

    def _verify(self, sequence: int, number: int) -> None:
        if self._held.lookback:
            self._add("verify", self._alive(sequence), 1 + number % self._held.lookback)

    def _keep(self, sequence: int, number: int) -> None:
        living = self._alive(sequence)
        if living is not None:
            held = self._held.lengths[living]
            kept = max(held - 1 - number % LOOKBACK, self._held.lowest(living))
            if kept < held:
                self._take(Step("keep", ((living, kept),)))

    def _fork(self, sequence: int, number: int) -> None:
        """A prefix of whole pages; if the sequence has none, its first page is filled up before."""
        living = self._alive(sequence)
        free = [other for other in range(SEQUENCES) if other not in self._held.lengths]
        if living is None or not free:
            return
        self._add("prefill", living, PAGE - self._held.lengths[living])
        self._close()
        pages = self._held.lengths[living] // PAGE
        if pages:
            self._take(Step("fork", ((living, min(pages, 1 + number % SEQUENCES) * PAGE),), target=free[0]))

    def _release(self, sequence: int, number: int) -> None:
        living = self._alive(sequence)
        if living is not None:
            self._take(Step("release", ((living, 0),)))

    def _poison(self, sequence: int, number: int) -> None:
        if self._layer or not self._held.lengths:
            self._take(Step("poison"))

    def _idle(self, sequence: int, number: int) -> None:
        self._take(Step("idle"))
