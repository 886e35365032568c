"""Cases of workspace, chunk cache and metadata hold what the requirements need, and their tensors are what they say."""

from itertools import islice

import pytest
import torch

from dsv4_conformance.cases.families import family
from dsv4_conformance.cases.profiles import Size, load_profiles
from dsv4_conformance.cases.state_case import ChunkCase, ExtentCase, MetadataCase, WorkspaceCase
from dsv4_conformance.cases.state_inputs import chunk_inputs, extent_chunk, step_batch

CPU = torch.device("cpu")
CHUNKS = "SparsePrefillChunkCache"
SIZES: tuple[Size, ...] = ("laptop", "gpu")


def chunks(name: str, count: int, size: Size = "laptop") -> list[ChunkCase]:
    cases = [c for c in islice(family(name, CHUNKS, size, 0), count) if isinstance(c, ChunkCase)]
    assert len(cases) == count
    return cases


# Kills: a length of the seeds' tests left out of the default profile, a table that is no wider than the batch needs.
@pytest.mark.parametrize(
    ("name", "lengths"), [("live_c4", {3, 4, 255, 256, 259, 260}), ("live_c128", {127, 128, 255, 256})]
)
def test_extents_are_those_of_the_seeds(name: str, lengths: set[int]) -> None:
    count = load_profiles()["default"].cases_for("INV-74", name)
    cases = [c for c in islice(family(name, CHUNKS, "laptop", 0), count) if isinstance(c, ExtentCase)]
    assert {c.seq_len for c in cases if c.pages == 4096 and c.requests == 2} >= lengths
    given = chunk_inputs(extent_chunk(cases[0]), CPU)
    assert given.page_table.shape == (2, 4096)
    assert given.c128_slots.shape == (2, 8192)
    assert given.batch.extend_lens == (1, 1)


# Kills: batches of one request, without a prefix, without padding or holes, or with more new tokens than there are.
@pytest.mark.parametrize("size", SIZES)
def test_chunks_mix_prefixes_padding_and_holes(size: Size) -> None:
    cases = chunks("chunks", 60, size)
    for case in cases:
        assert len(case.seq_lens) == len(case.extend_lens)
        assert all(1 <= e <= s for e, s in zip(case.extend_lens, case.seq_lens, strict=True))
    few = cases[:3]  # the smallest profile
    assert any(c.padded_rows for c in few) and any(c.holes for c in few)
    assert any(e < s for c in few for e, s in zip(c.extend_lens, c.seq_lens, strict=True))
    assert any(e == s > 3 for c in few for e, s in zip(c.extend_lens, c.seq_lens, strict=True))
    assert any(c.topk < max(c.seq_lens) // 4 for c in few)
    assert {len(c.seq_lens) for c in cases} >= {1, 2, 3, 4}
    assert {c.topk for c in cases} >= {8, 64, 512, 1024}
    assert {c.spare_pages for c in cases} == {0, 1, 3}
    assert max(max(c.seq_lens) for c in cases) > (400 if size == "laptop" else 4000)


# Kills: a fresh prefill with a prefix, or one without any C128 entry.
def test_fresh_chunks_are_fresh_and_have_entries() -> None:
    for case in chunks("fresh_chunks", 40):
        assert case.seq_lens == case.extend_lens and max(case.seq_lens) >= 128
    assert max(len(case.seq_lens) for case in chunks("fresh_chunks", 3)) > 2


# Kills: no growth, or no reuse, within the smallest profile.
def test_workspaces_grow_and_shrink() -> None:
    first = list(islice(family("workspaces", "SparsePrefillWorkspace", "laptop", 0), 3))
    assert isinstance(first[0], WorkspaceCase) and first[0].rows == (3, 2, 7)
    for case in first:
        assert isinstance(case, WorkspaceCase)
        pairs = list(zip(case.rows, case.rows[1:], strict=False))
        assert any(a > b for a, b in pairs) and any(a < b for a, b in pairs)


# Kills: steps that only grow, rows that never turn into padding or back, lengths beyond the table, all rows padded.
@pytest.mark.parametrize("size", SIZES)
def test_steps_grow_shrink_and_pad(size: Size) -> None:
    cases = [c for c in islice(family("steps", "GraphMetadata", size, 0), 40) if isinstance(c, MetadataCase)]
    for few in (cases[:3], cases):
        moves = [(a, b) for c in few for a, b in zip(c.before, c.after, strict=True)]
        assert any(0 < a < b for a, b in moves) and any(a > b > 0 for a, b in moves)
        assert any(a > 0 == b for a, b in moves) and any(a == 0 < b for a, b in moves)
    assert all(max(c.before + c.after) <= c.pages * 256 for c in cases)
    assert {c.pages for c in cases} >= {2, 3, 4, 33}


CASE = ChunkCase(CHUNKS, (300, 9), (3, 9), padded_rows=2, topk=5, holes=True, spare_pages=2)


# Kills: shared pages, evicted positions that look like slots, page 0 in use.
def test_slots_and_pages_belong_to_one_request() -> None:
    given = chunk_inputs(CASE, CPU)
    pages = [page for row in given.pages for page in row]
    assert len(pages) == len(set(pages)) == 2 * 4 and min(pages) >= 1
    slots = given.batch.window_slots
    assert slots.shape == (2, 300) and slots.dtype == torch.int32
    assert (slots[0, : 300 - 130] == -1).all() and (slots[0, 170:] >= 256).all()
    assert (slots[1, 9:] == -1).all() and (slots[1, :9] >= 256).all()
    named = slots[slots >= 0]
    assert len(torch.unique(named)) == len(named) == 130 + 9
    assert given.window_pages != given.pages


# Kills: entries that the query does not see, the same entry twice, selections in order, no hole.
def test_selections_are_distinct_visible_entries() -> None:
    given = chunk_inputs(CASE, CPU)
    assert given.selection.shape == (14, 5) and given.batch.query_rows == 14
    for row, (_, position) in zip(given.selection.tolist(), given.queries, strict=False):
        count = min((position + 1) // 4, 5)
        assert [entry == -1 for entry in row] == [j % 3 == 1 or j >= count for j in range(5)]
        named = [entry for entry in row if entry != -1]
        assert len(set(named)) == len(named) and all(entry < (position + 1) // 4 for entry in named)
    for row, visible in zip(
        chunk_inputs(CASE.with_(holes=False, topk=512), CPU).selection.tolist(), (74, 74, 75), strict=False
    ):
        assert row[:visible] != sorted(row[:visible]) == list(range(visible))
        assert row[visible:] == [-1] * (512 - visible)


# Kills: rows that see an entry too early, or slots of another request.
def test_c128_slots_follow_each_query() -> None:
    given = chunk_inputs(ChunkCase(CHUNKS, (130, 256), (130, 1)), CPU)
    first, second = given.pages
    assert (given.c128_slots[:127] == -1).all()
    assert given.c128_slots[127].tolist() == [2 * first[0]] + [-1] * 3
    assert given.c128_slots[130].tolist() == [2 * second[0], 2 * second[0] + 1, -1, -1]
    assert given.page_table[130].tolist() == second


# Kills: both steps on the same pages, rows that share pages, padding that has pages of its own.
def test_steps_have_pages_of_their_own() -> None:
    case = MetadataCase("GraphMetadata", (5, 6, 0), (5, 6, 0))
    before, after = step_batch(case, "before", CPU), step_batch(case, "after", CPU)
    assert before.seq_lens == after.seq_lens == (5, 6, 0)
    assert not torch.equal(before.page_table, after.page_table)
    for table in (before.page_table, after.page_table):
        assert table.shape == (3, 4) and len(torch.unique(table[:2])) == 8
        assert torch.equal(table[2], table[0])
