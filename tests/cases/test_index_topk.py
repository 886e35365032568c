"""Indexer cases of another index_topk: what happens around the first choice stays around it."""

from dsv4_conformance.cases.compressor_case import IndexerCase, TopkCase
from dsv4_conformance.cases.compressor_inputs import indexer_spec, topk_lengths
from dsv4_conformance.cases.index_topk import geometry_of, rows_with_topk, with_topk


# Kills: kept lengths that stay, sequences that start late or anew without their tokens.
def test_every_sequence_first_takes_as_many_tokens_more() -> None:
    case = IndexerCase("Indexer", "p0:9+1:3 v0:4 k0:11 d1 r1 p1:2 d0+1")
    moved = with_topk(case, 512)
    assert moved.schedule == "p0:1792 p1:1792 p0:9+1:3 v0:4 k0:1803 d1 r1 p1:1792 p1:2 d0+1"
    assert geometry_of(moved).index_topk == 512 and geometry_of(case).index_topk == 64
    assert moved.label() != case.label()


def test_fewer_entries_need_no_more_tokens() -> None:
    case = IndexerCase("Indexer", "p0:300 d0", "flash")
    assert with_topk(case, 64).schedule == case.schedule and geometry_of(with_topk(case, 64)).index_topk == 64


def test_the_case_opens_an_indexer_that_selects_so_many() -> None:
    assert indexer_spec(with_topk(IndexerCase("Indexer", "p0:5"), 512), "cpu").geometry.index_topk == 512
    assert indexer_spec(IndexerCase("Indexer", "p0:5"), "cpu").geometry.index_topk == 64


# Kills: rows so narrow that nobody has to choose.
def test_rows_grow_by_what_is_selected_more() -> None:
    case = rows_with_topk(TopkCase("Indexer", 12, 300, 64), 512)
    assert (case.width, case.topk) == (748, 512)
    assert 513 in topk_lengths(case, "cpu").tolist()
