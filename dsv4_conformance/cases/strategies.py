"""Hypothesis strategies of schedules that can be run, written so that failures shrink to short ones.

What is drawn is a list of wishes that know nothing of each other; a wish becomes a step, or a part of one, by what the
sequences hold when its turn comes, or nothing. So any wish can be taken out of the list, and what is left is a schedule
again. Smaller numbers are simpler steps. All wishes have one shape, and few numbers: Hypothesis deletes at most five
choices at a time.

No integer is drawn from a range that reaches 100: Hypothesis would mix in constants of the modules that happen to be
loaded, and schedules would differ between processes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hypothesis import strategies as st

from dsv4_conformance.cases.schedule import BATCHES, Kind, Step
from dsv4_conformance.cases.schedule_rules import COMPRESSOR_KINDS, LOOKBACK, PAGE, Held

SEQUENCES = 4
SPARED = 8
"""One in so many tokens is left by prefills to decode and verify steps."""
LANDINGS = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 23, 25, 27),
    *(63, 64, 66, 90, 125, 126, 127, 128, 129, 130, 254, 255, 256, 257, 258, 260, 263),
    *(300, 383, 384, 385, 510, 511, 512, 513, 516, 767, 768, 769, 1022, 1023, 1024, 1025),
)
"""Lengths to reach with one prefill: ends of groups of 4 and 128, of the window and of pages."""
WISHES = {
    "prefill": 5,
    "join": 9,
    "decode": 4,
    "verify": 3,
    "keep": 5,
    "fork": 3,
    "release": 2,
    "poison": 1,
    "pad": 3,
    "idle": 1,
}
"""Wish -> how often it is drawn. join: one more part of the batch before, pad: one more row of nobody in it."""

Wish = tuple[str, int, int]
"""What, of which sequence, and a number: of a length to reach, of drafts, of tokens to take back, of pages."""


def layer_schedules(
    tokens: int, lookback: int = LOOKBACK, sequences: int = SEQUENCES, without: Collection[str] = ()
) -> st.SearchStrategy[str]:
    """Schedules of a layer: at most ``tokens`` new tokens of at most ``sequences`` sequences that live together, no
    more than ``lookback`` of them taken back; ``without`` wishes of some kinds."""
    return _schedules([kind for kind in WISHES if kind not in without], tokens, lookback, sequences)


def compressor_schedules(tokens: int, lookback: int = LOOKBACK) -> st.SearchStrategy[str]:
    """Schedules of a Compressor session, likewise; state is poisoned only while no sequence lives."""
    kinds = ("join", *COMPRESSOR_KINDS)
    return _schedules([kind for kind in WISHES if kind in kinds], tokens, lookback, SEQUENCES)


def _schedules(kinds: list[str], tokens: int, lookback: int, most: int) -> st.SearchStrategy[str]:
    numbers = st.integers(0, sum(length <= tokens for length in LANDINGS) - 1)
    sequences = st.sampled_from([number for number in (0, 0, 0, 1, 1, 2, 3) if number < most])
    weighted = [kind for kind in kinds for _ in range(WISHES[kind])]
    # A list holds five on average: three lists give schedules of about eight steps.
    some = st.lists(st.tuples(st.sampled_from(weighted), sequences, numbers), max_size=10)
    first = st.tuples(st.just("prefill"), sequences, numbers)
    return st.tuples(first, some, some, some).map(
        lambda drawn: Plan(kinds, tokens, lookback, most).schedule([drawn[0], *drawn[1], *drawn[2], *drawn[3]])
    )


class Plan:
    """Turns wishes of these ``kinds`` into a schedule within ``tokens`` new tokens and ``most`` living sequences."""

    def __init__(self, kinds: Collection[str], tokens: int, lookback: int, most: int) -> None:
        self._kinds, self._left, self._spared, self._most = kinds, tokens, tokens // SPARED, most
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

    def _some(self, number: int, everyone: int) -> list[int]:
        """The living sequence that ``number`` stands for, or everyone from that one on."""
        alive, living = sorted(self._held.lengths), self._alive(number)
        if living is None:
            return []
        place = alive.index(living)
        return (alive[place:] + alive[:place])[: len(alive) if everyone else 1]

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
        """One sequence or, for odd numbers, all; every other two with a row of nobody."""
        for living in self._some(sequence, number % 2):
            self._add("decode", living, 1)
        if "pad" in self._kinds and number % 4 > 1:
            self._pad(sequence, number)

    def _verify(self, sequence: int, number: int) -> None:
        """1 to 8 drafts of one sequence or, for numbers that go on, of all."""
        if self._held.lookback:
            for place, living in enumerate(self._some(sequence, number // LOOKBACK % 2)):
                self._add("verify", living, 1 + (number + place) % self._held.lookback)

    def _keep(self, sequence: int, number: int) -> None:
        """1 to 8 tokens less or, for numbers that go on, as many as take the sequence back into a group of 128 or 4."""
        living = self._alive(sequence)
        if living is None:
            return
        held, lowest = self._held.lengths[living], self._held.lowest(living)
        kept = held - 1 - number % LOOKBACK
        if number // LOOKBACK % 2:
            kept = next((edge for edge in (held // 128 * 128 - 1, held // 4 * 4 - 1) if edge >= lowest), kept)
        if max(kept, lowest) < held:
            self._take(Step("keep", ((living, max(kept, lowest)),)))

    def _fork(self, sequence: int, number: int) -> None:
        """A prefix of whole pages; if the sequence has none, its first page is filled up before."""
        living = self._alive(sequence)
        free = [other for other in range(self._most) if other not in self._held.lengths]
        if living is None or not free:
            return
        self._add("prefill", living, PAGE - self._held.lengths[living])
        self._close()
        pages = self._held.lengths[living] // PAGE
        if pages:
            self._take(Step("fork", ((living, min(pages, 1 + number % SEQUENCES) * PAGE),), target=free[0]))

    def _release(self, sequence: int, number: int) -> None:
        """For odd numbers another sequence begins under its number."""
        living = self._alive(sequence)
        if living is not None:
            self._take(Step("release", ((living, 0),)))
            if number % 2:
                self._prefill(living, number)

    def _poison(self, sequence: int, number: int) -> None:
        if "idle" in self._kinds or not self._held.lengths:  # a Compressor has no idle steps
            self._take(Step("poison"))

    def _idle(self, sequence: int, number: int) -> None:
        self._take(Step("idle"))
