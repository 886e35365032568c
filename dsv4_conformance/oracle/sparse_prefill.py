"""What sparse prefill gathers and what each query then attends to, by definition, in plain numbers (spec §4, §13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

WINDOW = 128
"""Positions a query sees in its window, itself included (spec §4)."""


class Query(NamedTuple):
    """One query row: its request, and the position of its token."""

    request: int
    position: int


def queries(seq_lens: Sequence[int], extend_lens: Sequence[int]) -> list[Query]:
    """The new tokens of an extend batch, request by request: the last ``extend_lens[r]`` of ``seq_lens[r]``."""
    return [
        Query(request, position)
        for request, (seq_len, new) in enumerate(zip(seq_lens, extend_lens, strict=True))
        for position in range(seq_len - new, seq_len)
    ]


def entries(tokens: int, ratio: int) -> int:
    """Compressed entries of the first ``tokens`` tokens: one per whole group of ``ratio``; none at ratio 0."""
    return tokens // ratio if ratio else 0


def window(position: int) -> range:
    """Positions that the query at ``position`` sees in its window."""
    return range(max(0, position - WINDOW + 1), position + 1)


def gathered_window(seq_len: int, extend_len: int) -> range:
    """Positions that some new token of a request sees in its window: what the window gather holds (spec §13.2)."""
    return range(window(seq_len - extend_len).start, seq_len)


def gathered_entries(seq_lens: Sequence[int], ratio: int, gather: Literal["ragged", "rectangular"]) -> int:
    """Compressed rows gathered for a batch: what each request has, or at least 1 and as many for all (spec §13.2)."""
    held = [entries(seq_len, ratio) for seq_len in seq_lens]
    return sum(held) if gather == "ragged" else len(held) * max(max(held), 1)


def processed(position: int, ratio: int, topk: int) -> int:
    """Length of a combined index row: compressed entries that the query may select, then its window (spec §13.3)."""
    return min(entries(position + 1, ratio), topk) + len(window(position))


def slot(pages: Sequence[int], row: int, ratio: int = 1) -> int:
    """Slot of stored row ``row`` of a request with these 256-token pages, which hold 256 / ratio rows (spec §9.4)."""
    held = 256 // ratio
    return pages[row // held] * held + row % held
