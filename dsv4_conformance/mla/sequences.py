"""Sequences alive in a layer: their pages, compressor state rows and lengths (spec §4, §6, §9.4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.pages import DUMMY_PAGE, PageAllocator

PAGE = 256
"""Tokens per page of the window pool; a page of the same number holds 64 C4 or 2 C128 entries (spec §9.4)."""
LOOKBACK = 8
"""Drafts that a verify step may reject; the compressor's rings have room for them beyond one window."""
PADDING_ROW = 0
"""State row of rows that belong to nobody."""


@dataclass
class Sequence:
    """One sequence: compressor state row, pages in order of position, tokens held."""

    state_row: int
    pages: list[int] = field(default_factory=list)
    length: int = 0
    own_from: int = 0
    """Tokens before this one are on pages that another sequence has or had as well: they are not taken back."""
    reached: int = 0
    """Most tokens it ever held."""


class Sequences:
    """Up to ``max_sequences`` sequences of up to ``max_tokens`` tokens, numbered by the caller."""

    def __init__(self, max_sequences: int, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.width = -(-max_tokens // PAGE)
        self.pages = PageAllocator(1 + max_sequences * self.width)
        self._free_rows = list(range(max_sequences, PADDING_ROW, -1))
        self._alive: dict[int, Sequence] = {}

    @property
    def state_rows(self) -> int:
        """Compressor state rows to allocate, the padding row included."""
        return 1 + len(self._free_rows) + len(self._alive)

    def __getitem__(self, number: int) -> Sequence:
        """The sequence ``number``. Raises BadInput if it is not alive."""
        if number not in self._alive:
            raise BadInput(f"sequence {number} is not alive; give it tokens first.")
        return self._alive[number]

    def length(self, number: int) -> int:
        """Tokens that sequence ``number`` holds, 0 if it is not alive."""
        return self._alive[number].length if number in self._alive else 0

    def check_room(self, number: int, count: int) -> None:
        """Raise BadInput unless ``count`` more tokens of sequence ``number`` have room; changes nothing."""
        held = self.length(number)
        if count < 1:
            raise BadInput(f"sequence {number} is given {count} tokens; a step takes at least one of each sequence.")
        if held + count > self.max_tokens:
            raise BadInput(
                f"sequence {number} would reach {held + count} tokens; the layer was opened for {self.max_tokens}."
            )

    def check_new(self, numbers: Iterable[int]) -> None:
        """Raise BadInput unless all of ``numbers`` that are not alive find a state row; changes nothing."""
        new = [number for number in numbers if number not in self._alive]
        if len(new) > len(self._free_rows):
            raise BadInput(
                f"sequences {new} need {len(new)} state rows and {len(self._free_rows)} are free; release some, or "
                "open the layer for more."
            )

    @property
    def free(self) -> int:
        """Sequences that can still be opened."""
        return len(self._free_rows)

    def grow(self, number: int, count: int) -> int:
        """Add ``count`` tokens to sequence ``number``, opened if it is new; the position of the first. Call
        ``check_room`` before."""
        if number not in self._alive:
            self._alive[number] = Sequence(self._free_rows.pop())
        sequence = self._alive[number]
        first = sequence.length
        sequence.length += count
        sequence.reached = max(sequence.reached, sequence.length)
        while len(sequence.pages) * PAGE < sequence.length:
            sequence.pages.append(self.pages.take())
        return first

    def truncate(self, number: int, length: int) -> None:
        """Keep the first ``length`` tokens. Raises BadInput beyond the lookback that compressor state allows."""
        sequence = self[number]
        lowest = max(sequence.own_from, sequence.reached - LOOKBACK)
        if not lowest <= length <= sequence.length:
            raise BadInput(
                f"sequence {number} holds {sequence.length} tokens and cannot be cut to {length}; its state goes back "
                f"to {lowest}, so take back fewer tokens, or release it and start again."
            )
        sequence.length = length
        while len(sequence.pages) * PAGE >= length + PAGE:
            self.pages.give_back(sequence.pages.pop())

    def fork(self, source: int, target: int, length: int) -> Sequence:
        """Start ``target`` from whole pages of ``source``. Raises BadInput for a length that is no multiple of 256."""
        origin = self[source]
        if length % PAGE or not 0 < length <= origin.length:
            raise BadInput(
                f"a prefix of {length} tokens of a sequence of {origin.length} cannot be shared; give a multiple of "
                f"{PAGE} that it holds."
            )
        if target in self._alive:
            raise BadInput(f"sequence {target} is alive; release it before it takes another's prefix.")
        self.check_new([target])
        self.check_room(target, length)
        pages = origin.pages[: length // PAGE]
        for page in pages:
            self.pages.share(page)
        origin.own_from = max(origin.own_from, length)  # what the target reads, too, must not be written again
        self._alive[target] = Sequence(self._free_rows.pop(), list(pages), length, length, length)
        return self._alive[target]

    def release(self, number: int) -> None:
        """Forget a sequence; pages that no other one shares, and its state row, are free."""
        sequence = self[number]
        for page in sequence.pages:
            self.pages.give_back(page)
        self._free_rows.append(sequence.state_row)
        del self._alive[number]

    def page_row(self, number: int) -> list[int]:
        """Pages of a sequence, widened with the dummy page to the width of the page table."""
        pages = self[number].pages
        return pages + [DUMMY_PAGE] * (self.width - len(pages))

    def live_rows(self) -> list[int]:
        """State rows in use."""
        return [sequence.state_row for sequence in self._alive.values()]
