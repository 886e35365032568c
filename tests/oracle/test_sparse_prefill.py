"""What sparse prefill gathers and attends to, against numbers written down by hand."""

import pytest

from dsv4_conformance.oracle.sparse_prefill import (
    Query,
    entries,
    gathered_entries,
    gathered_window,
    processed,
    queries,
    slot,
    window,
)


# Kills: positions counted from 0 in a request with a prefix, requests in another order.
def test_queries_are_the_last_tokens_of_each_request() -> None:
    assert queries((5, 3), (2, 3)) == [Query(0, 3), Query(0, 4), Query(1, 0), Query(1, 1), Query(1, 2)]


# Kills: a window of 127 or 129, one without the query itself.
@pytest.mark.parametrize(("position", "first"), [(0, 0), (127, 0), (128, 1), (1000, 873)])
def test_window(position: int, first: int) -> None:
    assert (window(position)[0], window(position)[-1]) == (first, position)


# Kills: E + 126 or E + 128 rows, rows before position 0, the window of the last token for that of the first.
@pytest.mark.parametrize(
    ("seq_len", "extend", "seen"),
    [(5, 5, range(0, 5)), (128, 1, range(0, 128)), (129, 1, range(1, 129)), (300, 100, range(73, 300))],
)
def test_gathered_window(seq_len: int, extend: int, seen: range) -> None:
    assert gathered_window(seq_len, extend) == seen
    assert len(seen) == min(seq_len, extend + 127)


# Kills: ceil for floor, a group that counts before it is whole, entries of layers without compression.
def test_entries_and_what_is_gathered() -> None:
    assert [entries(n, 4) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]
    assert [entries(n, 128) for n in (127, 128, 255, 256)] == [0, 1, 1, 2]
    assert entries(500, 0) == 0
    assert gathered_entries((3, 260), 4, "ragged") == 65
    assert gathered_entries((3, 260), 4, "rectangular") == 130
    assert gathered_entries((3, 1), 4, "ragged") == 0
    assert gathered_entries((3, 1), 4, "rectangular") == 2


# Kills: visibility of position // ratio, topk that cuts nothing or the window too.
def test_length_of_a_combined_row() -> None:
    assert [processed(t, 4, 2) for t in (0, 2, 3, 15)] == [1, 3, 5, 18]
    assert [processed(t, 128, 99) for t in (126, 127, 1000)] == [127, 129, 135]
    assert processed(300, 0, 64) == 128


def test_slots() -> None:
    assert [slot([7, 3], row, 4) for row in (0, 63, 64, 70)] == [448, 511, 192, 198]
    assert [slot([7, 3], row, 128) for row in (1, 2)] == [15, 6]
    assert slot([7, 3], 257) == 769
