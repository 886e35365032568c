"""What an engine reserves: enough for what is stored, and no more than live lengths need (INV-119 to 121)."""

from dsv4_conformance.cases.config_case import ConfigCase, geometry_of
from dsv4_conformance.oracle import config as oracle
from dsv4_conformance.runner.deployment import Told, resolved
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.engine_settings import POOLS
from dsv4_conformance.spec.geometry import Geometry
from dsv4_conformance.suite import requirement

CONFIG = ("EngineConfig",)
ROW = 1024
"""Bytes of a workspace row: 512 bf16 values."""


def _context(case: ConfigCase, geometry: Geometry) -> int:
    return case.context or geometry.max_position_embeddings


@requirement("INV-119", on=CONFIG, cases="config_models")
def test_pages_of_every_pool_cover_the_same_tokens(subject: Subject, case: ConfigCase) -> None:
    """INV-119: 256, 64, 2 and 64 entries per page, at the page bytes of the format."""
    told = resolved(subject, case)
    subject.expect(told["page_size"] == oracle.PAGE_TOKENS, f"page_size is {told['page_size']}, not 256.")
    for pool in POOLS:
        entries, wanted = told.pool("pool_page_sizes", pool), oracle.entries_per_page(pool)
        subject.expect(entries == wanted, f"a page of pool {pool} holds {entries} entries, not {wanted}.")
        size, needed = told.pool("page_bytes", pool), oracle.page_bytes(pool)
        subject.expect(size == needed, f"a page of pool {pool} takes {size} bytes, not {needed}.")


@requirement("INV-120", on=CONFIG, cases="config_sizes")
def test_reserved_bytes_cover_what_a_request_stores(subject: Subject, case: ConfigCase) -> None:
    """INV-120: per pool, state and workspace, no less than the pages, groups and rows that the request has."""
    told, geometry = resolved(subject, case), geometry_of(case)
    context = _context(case, geometry)
    subject.expect(told["context"] == context, f"context is {told['context']}, not {context}.")
    for pool in POOLS:
        size, needed = told.pool("cache_bytes_per_request", pool), oracle.request_bytes(geometry, pool, context)
        subject.expect(size >= needed, f"pool {pool} reserves {size} bytes for a request that stores {needed}.")
    _state_covers(subject, told, geometry)
    rows = oracle.gathered_rows(geometry, [context] * case.requests) if told["sparse_prefill"] else 0
    size = told["workspace_bytes"]
    subject.expect(size >= rows * ROW, f"the workspace has {size} bytes for {rows} compressed rows of {ROW}.")


def _state_covers(subject: Subject, told: Told, geometry: Geometry) -> None:
    size, needed = told["state_bytes_per_request"], oracle.state_bytes(geometry)
    subject.expect(size >= needed, f"compressor state has {size} bytes, and {needed} are needed in 16-bit values.")


@requirement("INV-120", on=CONFIG, cases="config_sizes")
def test_window_pool_has_room_for_the_chunk_in_flight(subject: Subject, case: ConfigCase) -> None:
    """INV-120: while a chunk is prefilled its tokens and the 127 before them are there, in every layer."""
    told, geometry = resolved(subject, case), geometry_of(case)
    positions = min(_context(case, geometry), told["prefill_chunk"] + 127)
    pages = -(-positions // oracle.PAGE_TOKENS)
    needed = oracle.layers_of(geometry, "window") * oracle.page_bytes("window") * pages
    size = told["window_bytes_in_prefill"]
    subject.expect(size >= needed, f"the window pool has {size} bytes while a chunk of {needed} is in flight.")


@requirement("INV-120", on=CONFIG, cases="config_models")
def test_every_draft_layer_has_its_cache(subject: Subject, case: ConfigCase) -> None:
    """INV-120: all draft layers that the config lists are counted, not one."""
    if case.spelling == "transformers":  # that spelling lists main layers only
        case = case.with_(spelling="release")
    geometry = geometry_of(case)
    got, wanted = resolved(subject, case)["draft_layers"], len(geometry.compress_ratios) - geometry.num_hidden_layers
    subject.expect(got == wanted, f"{got} draft layers have a cache, not {wanted}.")


@requirement("INV-121", on=CONFIG, cases="config_sizes")
def test_reserved_bytes_follow_live_lengths(subject: Subject, case: ConfigCase) -> None:
    """INV-121 (SHOULD): one page more per layer at most than is stored; window and state do not grow with context."""
    told, geometry = resolved(subject, case), geometry_of(case)
    context = _context(case, geometry)
    for pool in POOLS:
        size = told.pool("cache_bytes_per_request", pool)
        page_more = oracle.layers_of(geometry, pool) * oracle.page_bytes(pool)
        room = oracle.request_bytes(geometry, pool, context) + page_more
        subject.expect(size <= room, f"pool {pool} reserves {size} bytes where {room} would be generous.")
    longer = resolved(subject, case.with_(context=geometry.max_position_embeddings))
    subject.expect(
        longer["state_bytes_per_request"] == told["state_bytes_per_request"], "compressor state grows with context."
    )


@requirement("INV-121", on=CONFIG, cases="config_sizes")
def test_compressor_state_is_as_large_as_its_rings(subject: Subject, case: ConfigCase) -> None:
    """INV-121 (SHOULD): whole windows of float32 values, once more with drafts, and nothing beyond."""
    told, geometry = resolved(subject, case), geometry_of(case)
    size, room = told["state_bytes_per_request"], oracle.ring_bytes(geometry, case.drafts > 0)
    subject.expect(size <= room, f"compressor state takes {size} bytes where its rings hold {room}.")


@requirement("INV-121", on=CONFIG, cases="config_sizes")
def test_index_scores_are_kept_once_for_all_heads(subject: Subject, case: ConfigCase) -> None:
    """INV-121 (SHOULD): one float32 score per entry and query row, however many index heads there are."""
    told, context = resolved(subject, case), _context(case, geometry_of(case))
    size, room = told["index_score_bytes_per_row"], 4 * -(-context // 4)
    subject.expect(size <= room, f"scores of a row take {size} bytes for {context // 4} entries.")


@requirement("INV-121", on=CONFIG, cases="config_sizes")
def test_workspace_is_sized_by_live_lengths_not_by_capacity(subject: Subject, case: ConfigCase) -> None:
    """INV-121 (SHOULD): no more rows than S // r compressed ones and S window ones of each request."""
    told, geometry = resolved(subject, case), geometry_of(case)
    lengths = [_context(case, geometry)] * case.requests
    rows = max(oracle.gathered_rows(geometry, lengths), len(lengths)) + sum(lengths)
    size = told["workspace_bytes"]
    subject.expect(size <= rows * ROW, f"the workspace has {size} bytes; live lengths need at most {rows * ROW}.")
