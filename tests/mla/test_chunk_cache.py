"""Gather lists and combined index rows of sparse prefill, on batches small enough to write the answer down."""

import pytest
import torch

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.chunk_cache import SparsePrefillChunkCache
from dsv4_conformance.mla.combine import window_part


def slots(requests: int, columns: int) -> torch.Tensor:
    """Window slot of position p of request r: 10000 (r + 1) + p."""
    first = 10000 * torch.arange(1, requests + 1, dtype=torch.int32)
    return first[:, None] + torch.arange(columns, dtype=torch.int32)


def build(seq_lens: tuple[int, ...], extend_lens: tuple[int, ...], pads: int = 0) -> SparsePrefillChunkCache:
    return SparsePrefillChunkCache.build(
        seq_lens, extend_lens, slots(len(seq_lens), max(seq_lens)), sum(extend_lens) + pads
    )


def tables(cache: SparsePrefillChunkCache, pages: int) -> torch.Tensor:
    """Request r has pages 100 (r + 1), 100 (r + 1) + 1, ...; one row per query row, rows of nobody 0."""
    table = torch.zeros(cache.query_rows, pages, dtype=torch.int32)
    owned = cache.query_start_loc[-1]
    table[:owned] = 100 * (cache.request_of_row[:owned, None] + 1) + torch.arange(pages)
    return table


# Kills: window rows of another length or start, slots of another request, newest first.
def test_window_gather_holds_the_last_positions_that_a_query_sees() -> None:
    cache = build((300, 5), (2, 5))
    assert (cache.swa_gather_lens, cache.swa_first_pos, cache.swa_offsets) == ([129, 5], [171, 0], [0, 129, 134])
    ids = cache.window_token_ids()
    assert ids.tolist() == [*range(10171, 10300), *range(20000, 20005)]
    assert cache.window_base(0).tolist() == [0, 129]
    assert cache.max_seq_len == 300


# Kills: a rectangular gather, ceil for floor, bases of another ratio, window rows that ignore the compressed ones.
def test_compressed_rows_are_what_each_request_has() -> None:
    cache = build((259, 3, 260), (1, 1, 1))
    assert cache.compressed_base(4).tolist() == [0, 64, 64]
    assert cache.compressed_rows(4) == 64 + 0 + 65
    assert cache.compressed_base(128).tolist() == [0, 2, 2]
    assert cache.window_base(128).tolist() == [4, 132, 135]
    assert cache.workspace_rows(4) == 129 + 128 + 3 + 128
    assert (cache.compressed_rows(0), cache.workspace_rows(0)) == (0, 259)


# Kills: entries of the wrong page, the page table of the last row of nobody, a page size that is not used.
def test_c4_gather_follows_the_page_table() -> None:
    cache = build((260, 8), (3, 2), pads=1)
    cache.ensure_c4(tables(cache, 3))
    assert cache.token_ids(4).tolist() == [*range(6400, 6464), 6464, 12800, 12801]
    other = build((260, 8), (1, 2))
    other.ensure_c4(tables(other, 40), page_size=2)
    assert other.token_ids(4).tolist() == [*range(200, 265), 400, 401]


# Kills: the first row (none visible), the last row of the batch, holes taken as entries.
def test_c128_gather_reads_the_last_row_of_each_request() -> None:
    cache = build((256, 130), (256, 2), pads=2)
    seen = torch.full((260, 3), -1, dtype=torch.int32)
    seen[127:256, 0], seen[255, 1], seen[256:258, 0] = 70, 71, 90
    cache.ensure_c128(seen)
    assert cache.token_ids(128).tolist() == [70, 71, 90]


# Kills: any slip of a base, a length or the order; positions of the first query taken for all.
def test_combined_rows_of_a_small_batch() -> None:
    cache = build((6, 9), (2, 3), pads=1)
    raw = torch.tensor([[0, -1, 7], [0, -1, -1], [0, -1, -1], [1, 0, -1], [-1, 1, 0], [5, 5, 5]], dtype=torch.int32)
    rows, lengths = cache.combined(4, raw)
    assert (rows.shape, rows.dtype, lengths.dtype) == ((6, 256), torch.int32, torch.int32)
    assert lengths.tolist() == [1 + 5, 1 + 6, 1 + 7, 2 + 8, 2 + 9, 0]
    # compressed rows: 0 | 1, 2; window rows: 3 to 8 | 9 to 17
    assert rows[0].tolist() == [0, 3, 4, 5, 6, 7] + [-1] * 250
    assert rows[1].tolist() == [0, *range(3, 9)] + [-1] * 249
    assert rows[2].tolist() == [1, *range(9, 16)] + [-1] * 248
    assert rows[3].tolist() == [2, 1, *range(9, 17)] + [-1] * 246
    assert rows[4].tolist() == [-1, 2, *range(9, 18)] + [-1] * 245
    assert rows[5].tolist() == [-1] * 256


# Kills: a window that starts at the request's first row instead of the query's, topk that cuts nothing.
def test_window_and_topk_are_cut_at_128_and_topk() -> None:
    cache = build((300,), (2,))
    raw = torch.tensor([[9, 8], [7, 6]], dtype=torch.int32)
    rows, lengths = cache.combined(4, raw)
    assert lengths.tolist() == [130, 130]
    assert rows[0, :130].tolist() == [9, 8, *range(75, 203)]
    assert rows[1, :130].tolist() == [7, 6, *range(76, 204)]
    rows, lengths = cache.combined(0)
    assert (rows.shape[1], lengths.tolist()) == (128, [128, 128])
    assert rows[0].tolist() == [*range(128)]
    rows, lengths = cache.combined(128)
    assert (rows.shape[1], lengths.tolist()) == (256, [130, 130])
    assert rows[1, :130].tolist() == [0, 1, *range(3, 131)]


# Kills: window rows in the places of entries.
def test_places_of_entries_are_empty_until_they_are_named() -> None:
    rows, lengths = window_part(
        torch.tensor([9, -1], dtype=torch.int32), torch.tensor([30, 0], dtype=torch.int32), 4, 3
    )
    assert rows[0].tolist() == [-1, -1, *range(30, 40)] + [-1] * 244
    assert (rows[1] == -1).all()
    assert lengths.tolist() == [12, 0]


# Kills: rows rebuilt per layer, and a selection of one layer that another layer sees.
def test_rows_are_shared_by_layers_and_selections_are_not() -> None:
    cache = build((300,), (2,))
    assert cache.combined(128)[0] is cache.combined(128)[0]
    first, _ = cache.combined(4, torch.tensor([[9, 8], [7, 6]], dtype=torch.int32))
    kept = first.clone()
    second, _ = cache.combined(4, torch.tensor([[1, 2], [3, 4]], dtype=torch.int32))
    assert torch.equal(first, kept)
    assert second[:, :2].tolist() == [[1, 2], [3, 4]]


# Kills: a gather that is built again from another layer's table.
def test_the_first_table_counts() -> None:
    cache = build((260, 8), (1, 2))
    cache.ensure_c4(tables(cache, 2))
    cache.ensure_c128(torch.full((3, 2), 50, dtype=torch.int32))
    kept = cache.token_ids(4), cache.token_ids(128)
    cache.ensure_c4(tables(cache, 3) + 1)
    cache.ensure_c128(torch.full((3, 2), 60, dtype=torch.int32))
    assert (cache.token_ids(4) is kept[0], cache.token_ids(128) is kept[1]) == (True, True)


# Kills: extents from the table's width.
def test_a_wide_table_costs_nothing() -> None:
    cache = build((9, 3), (1, 1))
    cache.ensure_c4(torch.zeros(2, 4096, dtype=torch.int32))
    cache.ensure_c128(torch.full((2, 8192), -1, dtype=torch.int32))
    assert (len(cache.token_ids(4)), len(cache.token_ids(128))) == (2, 0)
    assert cache.combined(128)[0].shape == (2, 128)


def test_tables_that_hold_too_little_are_refused() -> None:
    cache = build((260, 3), (1, 1))
    with pytest.raises(BadInput, match="holds 64 entries of ratio 4 and a request has 65"):
        cache.ensure_c4(torch.zeros(2, 1, dtype=torch.int32))
    with pytest.raises(BadInput, match="holds 1 entries of ratio 128 and a request has 2"):
        cache.ensure_c128(torch.zeros(2, 1, dtype=torch.int32))
    with pytest.raises(BadInput, match=r"page_table is \(1, 2\); pass one row for each of 2 query rows"):
        cache.ensure_c4(torch.zeros(1, 2, dtype=torch.int32))
    with pytest.raises(BadInput, match="ensure_c4 first"):
        cache.token_ids(4)
    with pytest.raises(BadInput, match="the selection is none"):
        cache.combined(4)
    with pytest.raises(BadInput, match=r"the selection is \(3, 4\)"):
        cache.combined(4, torch.zeros(3, 4, dtype=torch.int32))
    with pytest.raises(BadInput, match="ratio 0 gathers no compressed rows"):
        cache.token_ids(0)


@pytest.mark.parametrize(
    ("seq_lens", "extend_lens", "columns", "rows", "said"),
    [
        ((), (), 0, 0, "0 seq_lens"),
        ((5, 5), (5,), 5, 5, "2 seq_lens, 1 extend_lens"),
        ((5, 5), (5, 0), 5, 5, "request 1 has 0 new tokens of 5"),
        ((5,), (6,), 5, 6, "request 0 has 6 new tokens of 5"),
        ((5,), (2,), 5, 1, "1 query rows cannot hold 2 new tokens"),
        ((5,), (2,), 4, 2, "window_slots cover 4 positions of 5"),
    ],
)
def test_batches_that_contradict_themselves_are_refused(
    seq_lens: tuple[int, ...], extend_lens: tuple[int, ...], columns: int, rows: int, said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        SparsePrefillChunkCache.build(seq_lens, extend_lens, slots(len(seq_lens), columns), rows)
