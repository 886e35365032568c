"""Metadata of a step and what a replay does to it (spec §14), on rows small enough to write the answer down."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.metadata import CLASSES, RESET, Change, DSV4Metadata, Event, build_metadata, check_classes

# The answer of spec §14.3 and §14.4, by name, written out a second time.
IN_GRAPH = {
    "raw_out_loc", "positions", "seq_lens", "state_rows", "c4_out_loc", "c128_out_loc", "c4_boundary", "c128_boundary",
    "c4_topk_lengths_raw", "c4_topk_lengths_clamp1", "c4_sparse_topk_lengths",
}  # fmt: skip
AT_THE_BREAK = {
    "page_table", "swa_page_indices", "swa_topk_lengths", "c128_page_indices", "c128_topk_lengths_clamp1",
}  # fmt: skip
SELECTED = {"c4_sparse_page_indices", "c4_sparse_raw_indices"}
SCHEDULERS = {"c0_flashmla_metadata", "c4_flashmla_metadata", "c128_flashmla_metadata"}


def build(*positions: int, pages: int = 3, topk: int = 8, first_page: int = 10) -> DSV4Metadata:
    """Row n has pages first_page + 10 n, ..., and state row 5 + n; -1 is a row of nobody."""
    table = first_page + 10 * torch.arange(len(positions), dtype=torch.int32)[:, None] + torch.arange(pages)
    return build_metadata([5 + n for n in range(len(positions))], positions, table.to(torch.int32), topk)


# Kills: oldest first, positions below 0 that wrap around, the slot of a neighbouring page, lengths of positions.
def test_window_lists() -> None:
    made = build(2, 300, -1)
    window, lengths, none, no_lengths = made.lists(0)
    assert (window.dtype, lengths.dtype, none, no_lengths) == (torch.int32, torch.int32, None, None)
    assert lengths.tolist() == [3, 128, 0]
    assert window[0].tolist() == [2562, 2561, 2560] + [-1] * 125
    assert window[1].tolist() == [*range(21 * 256 + 44, 21 * 256 - 1, -1), *range(21 * 256 - 1, 21 * 256 - 84, -1)]
    assert window[2].tolist() == [-1] * 128
    assert made.seq_lens.tolist() == [3, 301, 0]
    assert made.positions.tolist() == [2, 300, 0]
    assert made.raw_out_loc.tolist() == [2562, 21 * 256 + 44, -1]
    assert made.state_rows.tolist() == [5, 6, 0]


# Kills: q // r for (q + 1) // r, a boundary at position 0 or before the last token, dummy slots of page 0.
def test_entries_that_a_token_completes() -> None:
    made = build(0, 2, 3, 126, 127, 256 + 127, -1)
    assert made.c4_boundary.tolist() == [False, False, True, False, True, True, False]
    assert made.c4_out_loc.tolist() == [-1, -1, 30 * 64, -1, 50 * 64 + 31, 61 * 64 + 31, -1]
    assert made.c128_boundary.tolist() == [False, False, False, False, True, True, False]
    assert made.c128_out_loc.tolist() == [-1, -1, -1, -1, 50 * 2, 61 * 2, -1]


# Kills: ceil for floor, no clamp to 1, a clamp that reaches rows of nobody, topk ignored.
def test_compressed_lists() -> None:
    made = build(0, 3, 127, 300, -1)
    assert made.c4_topk_lengths_raw.tolist() == [0, 1, 32, 75, 0]
    assert made.c4_topk_lengths_clamp1.tolist() == [1, 1, 32, 75, 0]
    assert made.lists(4)[2] is None
    lengths = made.lists(4)[3]
    assert lengths is not None and lengths.tolist() == [1, 1, 8, 8, 0]
    _, _, entries, lengths = made.lists(128)
    assert entries is not None and lengths is not None
    assert (entries.shape, entries.dtype, lengths.tolist()) == ((5, 64), torch.int32, [1, 1, 1, 2, 0])
    assert entries[1].tolist() == [-1] * 64
    assert entries[2].tolist() == [60] + [-1] * 63
    assert entries[3].tolist() == [80, 81] + [-1] * 62
    assert build(5, pages=33).c128_page_indices.shape == (1, 128)
    assert (made.c4_sparse_page_indices == -1).all() and (made.c4_sparse_raw_indices == -1).all()
    made.c4_sparse_page_indices.fill_(5)
    assert (made.c4_sparse_raw_indices == -1).all()
    with pytest.raises(BadInput, match="ratio 2"):
        made.lists(2)


# Kills: shapes that follow the batch: row r > 0 of a captured table would be read at another stride.
def test_shapes_follow_rows_and_table_width_alone() -> None:
    short, long = build(0, 1), build(700, -1)
    for name, tensor in short.fields().items():
        if isinstance(tensor, Tensor):
            assert tensor.shape == long.fields()[name].shape, name


# Kills: a table or list that is the caller's tensor and changes with it.
def test_it_owns_its_tensors() -> None:
    table = torch.ones(1, 2, dtype=torch.int32)
    made = build_metadata([0], [3], table, 4)
    table.zero_()
    assert (made.page_table == 1).all()


def test_bad_rows_are_refused() -> None:
    with pytest.raises(BadInput, match="position 768 lies beyond a page table of 3 pages"):
        build(768)
    with pytest.raises(BadInput, match="2 positions, 1 state rows and a page table of 2 rows"):
        build_metadata([0], [1, 1], torch.zeros(2, 1, dtype=torch.int32), 4)


def snapshot(made: DSV4Metadata) -> dict[str, Any]:
    return {name: x.clone() if isinstance(x, Tensor) else x for name, x in made.fields().items()}


# Kills: a field in another class than spec §14.3 and §14.4 say, references for copies and the reverse, a field that
# an event forgets, a chunk cache that survives.
@pytest.mark.parametrize(
    ("event", "copied", "referenced", "kept"),
    [
        ("copy", IN_GRAPH | AT_THE_BREAK | SELECTED, SCHEDULERS, {"index_topk", "page_size"}),
        ("refresh", IN_GRAPH, AT_THE_BREAK | SCHEDULERS, SELECTED | {"index_topk", "page_size"}),
    ],
)
def test_what_becomes_of_each_field(event: Event, copied: set[str], referenced: set[str], kept: set[str]) -> None:
    mine, other = build(2, 300, 383), build(700, 3, -1, first_page=40)
    for name in SCHEDULERS:
        setattr(mine, name, object())
        setattr(other, name, object())
    mine.c4_sparse_page_indices.fill_(7)
    mine.c4_sparse_raw_indices.fill_(8)
    mine.attach_chunk_cache("of the step before")
    assert mine.chunk_cache() == "of the step before"
    live, before, theirs = mine.fields(), snapshot(mine), snapshot(other)
    mine.copy_(other) if event == "copy" else mine.refresh_(other)
    after = mine.fields()
    assert copied | referenced | kept == set(after) == set(mine.classes(event))
    for name in copied:
        assert after[name] is live[name] and torch.equal(after[name], theirs[name]), name
    for name in referenced:
        assert after[name] is getattr(other, name), name
    for name in kept:
        same = torch.equal(after[name], before[name]) if isinstance(after[name], Tensor) else True
        assert after[name] is live[name] and same, name
    assert mine.chunk_cache() is None
    assert {n: c for c, ns in (("copied", copied), ("referenced", referenced), ("kept", kept)) for n in ns} == (
        mine.classes(event)
    )


# Kills: a partial copy before the refusal.
@pytest.mark.parametrize("event", ["copy_", "refresh_"])
@pytest.mark.parametrize(
    ("other", "said"),
    [
        (build(5, 6, 7), r"captured as \(2"),
        (build(5, 6, pages=4), r"page_table is \(2, 4\) and was captured as \(2, 3\)"),
        (build(5, 6, topk=16), "index_topk is 16 and was captured as 8"),
    ],
)
def test_another_shape_is_refused_whole(event: str, other: DSV4Metadata, said: str) -> None:
    mine = build(1, 2)
    before = snapshot(mine)
    with pytest.raises(BadInput, match=said):
        getattr(mine, event)(other)
    assert all(torch.equal(x, before[name]) for name, x in mine.fields().items() if isinstance(x, Tensor))


# Kills: a field without a class, in two classes, or a class that names no field.
def test_classes_must_partition_the_fields() -> None:
    check_classes(DSV4Metadata, CLASSES)
    grown = dataclasses.make_dataclass("Grown", [("new_field", int, 0)], bases=(DSV4Metadata,))
    with pytest.raises(TypeError, match="new_field: not in exactly one class of event 'copy' of Grown"):
        check_classes(grown, CLASSES)
    changed: dict[Change, frozenset[str]] = dict(CLASSES["refresh"])
    changed["kept"] = changed["kept"] | {"seq_lens"}
    with pytest.raises(TypeError, match="seq_lens: not in exactly one class of event 'refresh'"):
        check_classes(DSV4Metadata, {"refresh": changed})
    changed["kept"] = CLASSES["refresh"]["kept"] | {"gone"}
    with pytest.raises(TypeError, match="gone"):
        check_classes(DSV4Metadata, {"refresh": changed})
    assert RESET not in build(1).fields()
