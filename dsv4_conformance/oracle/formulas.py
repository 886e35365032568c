"""Offsets and sizes by definition, in Python's whole numbers, which have no width (spec §6, §7, §9, §13, §15)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

PAGE_TOKENS = 256
INDEX_ENTRIES = 64


def page_bytes(page_size: int) -> int:
    """A main-cache page: 584 bytes per slot, in whole 576s (spec §9.1)."""
    return -(-584 * page_size // 576) * 576


def workspace_rows(ratio: int, pieces: Sequence[tuple[int, int]]) -> int:
    """Rows that a layer gathers for new tokens of some requests, as (end, count): the last ``count`` of ``end`` tokens
    are new. Every entry that the last of them sees, and the window of each (spec §13.2)."""
    entries = sum(end // ratio for end, _ in pieces) if ratio else 0
    return entries + sum(min(end, count + 127) for end, count in pieces)


def _pages(tokens: int) -> int:
    return (tokens + PAGE_TOKENS - 1) // PAGE_TOKENS


def _compressed_slot(ratio: int, page: int, entry: int) -> int:
    per_page = PAGE_TOKENS // ratio
    return page * per_page + entry % per_page


EXACT: Mapping[str, Callable[..., int]] = {
    "kv_data_byte": lambda p, slot: slot // p * page_bytes(p) + slot % p * 576,
    "kv_scale_byte": lambda p, slot: slot // p * page_bytes(p) + p * 576 + slot % p * 8,
    "index_value_byte": lambda slot: slot // INDEX_ENTRIES * (INDEX_ENTRIES * 132) + slot % INDEX_ENTRIES * 128,
    "index_scale_byte": lambda slot: (
        slot // INDEX_ENTRIES * (INDEX_ENTRIES * 132) + INDEX_ENTRIES * 128 + slot % INDEX_ENTRIES * 4
    ),
    "window_slot": lambda page, position: page * PAGE_TOKENS + position % PAGE_TOKENS,
    "compressed_slot": _compressed_slot,
    "selected_slot": lambda page, entry: _compressed_slot(4, page, entry),
    "workspace_byte": lambda rows, row: row * 1024,
    "score_byte": lambda rows, entries, row, entry: (row * entries + entry) * 4,
    "query_byte": lambda rows, heads, row, head: (row * heads + head) * 1024,
    "c4_bytes": lambda tokens: _pages(tokens) * page_bytes(64),
    "c128_bytes": lambda tokens: _pages(tokens) * page_bytes(2),
    "index_bytes": lambda tokens: _pages(tokens) * INDEX_ENTRIES * 132,
    "workspace_rows": lambda ratio, capacity, tokens, new: workspace_rows(ratio, [(tokens, new)]),
}
"""Formula -> its one right value. Of ``window_bytes`` and ``state_rows`` there are only bounds."""


def window_bytes(tokens: int) -> tuple[int, int]:
    """Least and most bytes of the window pages of a decoding request: those that its last 128 positions touch, and two
    (spec §9.1)."""
    first = max(tokens - 128, 0)
    touched = (tokens - 1) // PAGE_TOKENS - first // PAGE_TOKENS + 1
    return touched * page_bytes(PAGE_TOKENS), 2 * page_bytes(PAGE_TOKENS)


def query_bytes(rows: int, n_heads: int, tp: int) -> tuple[int, int]:
    """Least and proper bytes of padded queries: the rank's heads alone, and those of a call, 64 where the rank's fit
    and there is more than one rank, else all (spec §15)."""
    local = n_heads // tp
    padded = 64 if tp > 1 and local <= 64 else n_heads
    return rows * local * 1024, rows * padded * 1024


def least_state_rows(ratio: int) -> int:
    """Raw tokens that a compressor has to keep: an open group, at ratio 4 the group before it as well (spec §6)."""
    return {4: 7, 128: 127}[ratio]
