"""Points at which formulas are evaluated, and the row budgets of plans. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_conformance.cases.draws import Draws
from dsv4_conformance.cases.extent_case import FormulaCase, PlannerCase
from dsv4_conformance.oracle.formulas import page_bytes, workspace_rows

WIDTHS = (2**31, 2**32, 2**34, 2**24)
"""Where an int32, a uint32, an int32 that counts 8-byte words, and a float32 go wrong."""
LAST_SLOT = 2**31 - 1
"""Slots are int32 in index lists (spec §10)."""
LONGEST = 1 << 20
TOKENS = (
    1,
    2,
    127,
    128,
    129,
    255,
    256,
    257,
    383,
    384,
    385,
    511,
    512,
    513,
    1023,
    1024,
    8191,
    65536,
    LONGEST - 1,
    LONGEST,
)
CAPACITIES = (0, 4096, 131072, LONGEST)
"""Tokens that a page table could name beyond those that are there."""


def points(case: FormulaCase, pool_bytes: int) -> list[tuple[int, ...]]:
    """Arguments of the case's formula: both sides of every WIDTHS in bytes and in units, the last place of a pool of
    ``pool_bytes``, and random places."""
    draws = Draws("points", case.name, case.seed)
    return list(dict.fromkeys(_POINTS[case.name](draws, pool_bytes)))


def _slots(stride: int, per_page: int, draws: Draws, pool_bytes: int) -> Iterator[int]:
    pages = min(pool_bytes // stride, (LAST_SLOT + 1) // per_page)
    for width in WIDTHS:
        for page in (width // stride - 1, width // stride, width // stride + 1, width // per_page, width):
            if 0 <= page < pages:
                yield from (page * per_page, page * per_page + per_page - 1)
    yield from (0, per_page, pages * per_page - 1)
    yield from (draws.integer(pages * per_page) for _ in range(4))


def _kv(draws: Draws, pool_bytes: int) -> Iterator[tuple[int, ...]]:
    for size in (64, 256, 2, 1 + draws.integer(300)):
        yield from ((size, slot) for slot in _slots(page_bytes(size), size, draws, pool_bytes))


def _index(draws: Draws, pool_bytes: int) -> Iterator[tuple[int, ...]]:
    yield from ((slot,) for slot in _slots(64 * 132, 64, draws, pool_bytes))


def _paged(per_page: int, ratio: int, draws: Draws) -> Iterator[tuple[int, int]]:
    """(page, row of the sequence) whose slots reach every width that a slot number may have."""
    last = (LAST_SLOT + 1) // per_page - 1
    for page in (1, 2**24 // per_page, 2**24 // per_page + 1, last - 1, last, draws.integer(last)):
        for token in (0, 255, 256, 65535, LONGEST - 1, draws.integer(LONGEST)):
            yield page, token // ratio


def _compressed(draws: Draws, pool_bytes: int) -> Iterator[tuple[int, ...]]:
    for ratio in (4, 128):
        yield from ((ratio, page, entry) for page, entry in _paged(256 // ratio, ratio, draws))


def _rows(row_bytes: int, draws: Draws, pool_bytes: int) -> Iterator[int]:
    last = pool_bytes // row_bytes - 1
    for width in WIDTHS:
        yield from (r for r in (width // row_bytes - 1, width // row_bytes, width // row_bytes + 1, width) if r <= last)
    yield from (0, last, draws.integer(last))


def _workspace(draws: Draws, pool_bytes: int) -> Iterator[tuple[int, ...]]:
    yield from ((row + 1 + draws.integer(1000), row) for row in _rows(1024, draws, pool_bytes))


def _scores(draws: Draws, pool_bytes: int) -> Iterator[tuple[int, ...]]:
    for entries in (LONGEST // 4, LONGEST // 4 - 1, 4096, 1 + draws.integer(LONGEST // 4)):
        for row in _rows(4 * entries, draws, min(pool_bytes, 2**36)):
            yield from ((row + 1, entries, row, entry) for entry in (0, entries - 1, draws.integer(entries)))


def _queries(draws: Draws, pool_bytes: int) -> Iterator[tuple[int, ...]]:
    for heads in (64, 128):
        for row in _rows(1024 * heads, draws, pool_bytes):
            yield from ((row + 1, heads, row, head) for head in (0, heads - 1))


def _tokens(draws: Draws) -> list[int]:
    return [*TOKENS, *(1 + draws.integer(LONGEST) for _ in range(6))]


def _lengths(draws: Draws, pool_bytes: int) -> Iterator[tuple[int, ...]]:
    yield from ((tokens,) for tokens in _tokens(draws))


def _states(draws: Draws, pool_bytes: int) -> Iterator[tuple[int, ...]]:
    yield from ((ratio, tokens) for ratio in (4, 128) for tokens in _tokens(draws))


def _gathers(draws: Draws, pool_bytes: int) -> Iterator[tuple[int, ...]]:
    for ratio in (0, 4, 128):
        for tokens in (1, 3, 4, 127, 128, 129, 255, 256, 257, 4099, 1 + draws.integer(20000)):
            new = 1 + draws.integer(min(tokens, 300))
            for more in CAPACITIES:
                yield ratio, max(-(-tokens // 256) * 256, more), tokens, new


def _padded(draws: Draws, pool_bytes: int) -> Iterator[tuple[int, ...]]:
    for n_heads in (64, 128):
        for tp in (1, 2, 4, 8, 16):
            yield from ((rows, n_heads, tp) for rows in (1, 24576, 65536, 1 + draws.integer(200_000)))


_POINTS = {
    "kv_data_byte": _kv,
    "kv_scale_byte": _kv,
    "index_value_byte": _index,
    "index_scale_byte": _index,
    "window_slot": lambda draws, _: _paged(256, 1, draws),
    "compressed_slot": _compressed,
    "selected_slot": lambda draws, _: _paged(64, 4, draws),
    "workspace_byte": _workspace,
    "score_byte": _scores,
    "query_byte": _queries,
    "window_bytes": _lengths,
    "c4_bytes": _lengths,
    "c128_bytes": _lengths,
    "index_bytes": _lengths,
    "state_rows": _states,
    "query_bytes": _padded,
    "workspace_rows": _gathers,
}


def needed_rows(ratios: tuple[int, ...], pieces: list[tuple[int, int]]) -> int:
    """Rows that (end, count) pieces gather in the layer that gathers most."""
    return max(workspace_rows(ratio, pieces) for ratio in ratios)


def smallest_budget(case: PlannerCase) -> int:
    """Rows that the case's most demanding token gathers alone: the last of the longest request."""
    return max(needed_rows(case.ratios, [(length, 1)]) for length in case.seq_lens)


def budget(case: PlannerCase) -> int:
    """Rows of the case's workspace."""
    whole = needed_rows(case.ratios, list(zip(case.seq_lens, case.extend_lens, strict=True)))
    return max(-(-whole // case.parts), smallest_budget(case))
