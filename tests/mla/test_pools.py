"""Page allocator and paged pools of the built-in implementation, down to their bytes."""

import pytest
import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.kernels import kv_format
from dsv4_conformance.mla.pages import PageAllocator
from dsv4_conformance.mla.pools import IndexKeyPool, KVPool

Pool = KVPool | IndexKeyPool
KINDS = ["fp8 rows", "rows", "fp8 keys", "keys"]


def make_pool(kind: str, pages: int = 4) -> Pool:
    if kind.endswith("keys"):
        pool: Pool = IndexKeyPool(pages, kind == "fp8 keys", "cpu")
    else:
        pool = KVPool(pages, 2, kind == "fp8 rows", torch.float32, "cpu")
    pool.poison(())
    return pool


def rows_for(pool: Pool, count: int, seed: int = 0) -> Tensor:
    width = 128 if isinstance(pool, IndexKeyPool) else 512
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def bytes_of(pool: Pool) -> Tensor:
    return pool.buffer.view(torch.uint8).clone()


# Kills: page 0 handed out, first-in-first-out reuse, a shared page freed by its first holder.
def test_allocator_counts_holders_and_reuses_what_was_freed_last() -> None:
    pages = PageAllocator(4)
    assert sorted(pages.take() for _ in range(3)) == [1, 2, 3]
    pages.share(2)
    pages.give_back(1)
    pages.give_back(2)
    assert pages.live() == {2, 3}
    pages.give_back(3)
    assert [pages.take(), pages.take()] == [3, 1]
    with pytest.raises(BadInput, match="all 3 pages are in use; release a sequence"):
        pages.take()
    pages.give_back(2)
    assert pages.live() == {1, 3}


@pytest.mark.parametrize("page", [0, 1, 2])
def test_allocator_refuses_pages_that_nobody_holds(page: int) -> None:
    pages = PageAllocator(3)
    pages.give_back(pages.take())
    for refused in (pages.share, pages.give_back):
        with pytest.raises(BadInput, match=f"page {page} is held by no sequence"):
            refused(page)
    with pytest.raises(BadInput, match="give at least 2"):
        PageAllocator(1)


# Kills: an own page stride, scales at another place, another quantisation.
@pytest.mark.parametrize("page_size", [2, 64, 256])
def test_quantised_rows_are_the_pages_that_pack_writes(page_size: int) -> None:
    pool = KVPool(3, page_size, True, torch.bfloat16, "cpu")
    rows = rows_for(pool, 3).bfloat16()
    slots = torch.tensor([page_size, 3 * page_size - 1, 2 * page_size])
    stride = -(-584 * page_size // 576) * 576
    assert pool.pages.shape == (3, page_size, 1, 584) and pool.pages.stride() == (stride, 584, 584, 1)
    expected = torch.zeros(3, stride, dtype=torch.uint8)
    pages = expected.as_strided((3, page_size, 1, 584), (stride, 584, 584, 1))
    kv_format.pack_pages(rows, slots, pages)
    pool.store(rows, slots)
    assert torch.equal(pool.buffer, expected)
    assert torch.equal(pool.load(slots), kv_format.unpack_slots(pages, slots))


def test_quantised_keys_are_the_pages_that_pack_writes() -> None:
    pool = IndexKeyPool(3, True, "cpu")
    keys, slots = rows_for(pool, 3), torch.tensor([64, 191, 100])
    expected = torch.zeros(3, 64 * 132, dtype=torch.uint8)
    kv_format.pack_index_keys(keys, slots, expected)
    pool.store(keys, slots)
    assert torch.equal(pool.pages, expected)
    assert torch.equal(pool.load(slots), kv_format.unpack_index_keys(expected, slots))


# Kills: keep ignored, a masked row written at its slot or at slot 0, slot -1 wrapping to the last row.
@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_not_kept_change_no_byte(kind: str) -> None:
    pool = make_pool(kind)
    before = bytes_of(pool)
    rows = rows_for(pool, 5)
    rows[1] = torch.nan
    pool.store(rows, torch.tensor([3, -1, 999999, 0, 3]), torch.zeros(5, dtype=torch.bool))
    pool.store(rows, torch.full((5,), -1))
    pool.store(rows[:0], torch.zeros(0, dtype=torch.int64))
    assert torch.equal(bytes_of(pool), before)
    pool.store(rows, torch.tensor([3, -1, 999999, 0, 3]), torch.tensor([True, True, False, False, False]))
    other = make_pool(kind)
    other.store(rows[:1], torch.tensor([3]))
    assert torch.equal(bytes_of(pool), bytes_of(other))
    assert not torch.equal(bytes_of(pool), before)


# Kills: -1 read as the last row or as slot 0, a NaN leaking into a hole, one-dimensional slots only.
@pytest.mark.parametrize("kind", KINDS)
def test_load_returns_what_was_stored_and_zeros_for_holes(kind: str) -> None:
    pool = make_pool(kind)
    rows = rows_for(pool, 2)
    pool.store(rows, torch.tensor([5, 2]))
    loaded = pool.load(torch.tensor([[2, -1, 5], [-1, 5, 2]], dtype=torch.int32))
    assert loaded.dtype == torch.float32 and loaded.shape == (2, 3, rows.shape[1])
    tolerance = 0.0 if kind in ("rows", "keys") else 2**-4
    back, zero = rows.flip(0), torch.zeros(rows.shape[1])
    torch.testing.assert_close(loaded[0, [0, 2]], back, rtol=tolerance, atol=tolerance / 50)
    assert torch.equal(loaded[1, [2, 1]], loaded[0, [0, 2]])
    assert torch.equal(loaded[0, 1], zero) and torch.equal(loaded[1, 0], zero)


# Kills: a live page overwritten, a dead one kept, pad bytes left alone.
@pytest.mark.parametrize("kind", KINDS)
def test_poison_is_nan_in_dead_pages_and_in_unread_bytes_of_live_ones(kind: str) -> None:
    pool = make_pool(kind)
    rows, per_page = rows_for(pool, 2), pool.page_size
    live, dead = torch.tensor([per_page, 2 * per_page + 1]), torch.tensor([0, 3 * per_page])
    pool.store(rows, live)
    pool.store(rows, torch.tensor([3 * per_page, 3 * per_page + 1]))
    pool.buffer[0] = 0
    before = pool.load(live)
    pool.poison({1, 2})
    assert torch.equal(pool.load(live), before)
    assert bool(pool.load(dead).isnan().all())
    if kind == "fp8 rows":
        page = pool.buffer[1]
        assert set(page[584 * 2 :].tolist()) == {255}
        assert [page[576 * 2 + 8 * i + 7].item() for i in (0, 1)] == [255, 255]


def test_pools_of_exact_rows_have_no_fp8_pages() -> None:
    for pool in (make_pool("rows"), make_pool("keys")):
        with pytest.raises(BadInput, match="no fp8 pages; read its buffer"):
            _ = pool.pages
    half = KVPool(2, 2, False, torch.bfloat16, "cpu")
    half.store(rows_for(half, 1), torch.tensor([2]))
    assert torch.equal(half.load(torch.tensor([2])), rows_for(half, 1).bfloat16())
