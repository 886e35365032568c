"""Gathers of sparse prefill are sized by what requests hold now, built once, from the right rows (INV-74 to INV-77)."""

from dataclasses import replace

import torch

from dsv4_conformance.cases.generator import words
from dsv4_conformance.cases.state_case import ChunkCase, ExtentCase
from dsv4_conformance.cases.state_inputs import chunk_inputs, extent_chunk
from dsv4_conformance.errors import ConformanceFailure, ContractViolation
from dsv4_conformance.oracle import sparse_prefill as definition
from dsv4_conformance.runner.gathered import declared, gathered, numbers, open_cache
from dsv4_conformance.runner.opened import Opened
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

CHUNKS = ("SparsePrefillChunkCache",)


def _extent(subject: Subject, cache: Opened, seq_lens: tuple[int, ...], ratio: int) -> None:
    """Rows gathered and where each request's start, by the declared kind of gather.

    A gather of the other kind is a false declaration; one of any other size is a waste.
    """
    convention = declared(subject)
    kind: str = convention.gather
    if ratio == 128 and convention.gather_c128 != "same":
        kind = convention.gather_c128
    rows = {
        "ragged": definition.gathered_entries(seq_lens, ratio, "ragged"),
        "rectangular": definition.gathered_entries(seq_lens, ratio, "rectangular"),
    }
    ids = numbers("token_ids", cache.token_ids(ratio))
    subject.note(**{f"gathered_rows_c{ratio}": len(ids), f"live_rows_c{ratio}": rows["ragged"]})
    if len(ids) != rows[kind] and len(ids) in rows.values():
        raise ContractViolation(f"the gather is declared {kind}, which is {rows[kind]} rows, and has {len(ids)}.")
    subject.expect(
        len(ids) == rows[kind],
        f"{len(ids)} compressed rows are gathered for requests of {seq_lens} tokens at ratio {ratio}; "
        f"their live extent is {rows[kind]}.",
    )
    held = [definition.entries(seq_len, ratio) for seq_len in seq_lens]
    width = max([*held, 1])
    bases = [r * width if kind == "rectangular" else sum(held[:r]) for r in range(len(held))]
    got = numbers("compressed_base", cache.compressed_base(ratio), len(held))
    if got != bases:
        raise ContractViolation(f"compressed_base is {got} where {bases} follows from a {kind} gather.")


def _refuses(cache: Opened, method: str, table: torch.Tensor) -> None:
    """A table that holds less than the extent must be refused: what is read beyond it belongs to others."""
    try:
        cache.refused(method, table)
    except ConformanceFailure as failure:
        raise ContractViolation(str(failure)) from failure


@requirement("INV-74", on=CHUNKS, cases="live_c4")
def test_sparse_prefill_c4_uses_live_extent(subject: Subject, case: ExtentCase) -> None:
    """INV-74 (SHOULD): under a page table captured for a million tokens, as many C4 rows are gathered as there are."""
    given = chunk_inputs(extent_chunk(case), subject.device)
    cache = subject.open("open_chunk_cache", given.batch)
    cache.ensure_c4(given.page_table)
    _extent(subject, cache, given.batch.seq_lens, 4)


@requirement("INV-74", on=CHUNKS, cases="live_c128")
def test_sparse_prefill_c128_uses_live_extent(subject: Subject, case: ExtentCase) -> None:
    """INV-74 (SHOULD): under index rows captured for a million tokens, as many C128 rows are gathered as there are."""
    given = chunk_inputs(extent_chunk(case), subject.device)
    cache = subject.open("open_chunk_cache", given.batch)
    cache.ensure_c128(given.c128_slots)
    _extent(subject, cache, given.batch.seq_lens, 128)


@requirement("INV-74", on=CHUNKS, cases="chunks")
def test_mixed_batches_gather_what_they_hold(subject: Subject, case: ChunkCase) -> None:
    """INV-74 (SHOULD): the same for requests of different lengths."""
    given = chunk_inputs(case, subject.device)
    cache = open_cache(subject, given)
    for ratio in (4, 128):
        _extent(subject, cache, case.seq_lens, ratio)


@requirement("INV-74", on=CHUNKS, cases="live_c4")
def test_tables_smaller_than_the_live_extent_are_refused(subject: Subject, case: ExtentCase) -> None:
    """INV-74: a page table one page short, and index rows one entry short, are an error, never a shorter gather."""
    longer = extent_chunk(case.with_(seq_len=case.seq_len + 1024))
    given = chunk_inputs(longer, subject.device)
    cache = subject.open("open_chunk_cache", given.batch)
    _refuses(cache, "ensure_c4", given.page_table[:, : (longer.seq_lens[0] // 4 - 1) // 64].contiguous())
    _refuses(cache, "ensure_c128", given.c128_slots[:, : longer.seq_lens[0] // 128 - 1].contiguous())
    cache.ensure_c4(given.page_table)
    cache.ensure_c128(given.c128_slots)
    for ratio in (4, 128):
        ids = numbers("token_ids", cache.token_ids(ratio))
        held = definition.entries(longer.seq_lens[0], ratio)
        right = [definition.slot(given.pages[0], entry, ratio) for entry in range(held)]
        subject.expect(ids[:held] == right, f"after a refused table, the gather of ratio {ratio} is wrong.")


@requirement("INV-75", on=CHUNKS, cases="chunks")
def test_spare_columns_of_a_table_do_not_matter(subject: Subject, case: ChunkCase) -> None:
    """INV-75: columns of garbage to the right of the page table and of the C128 index rows change nothing."""
    given = chunk_inputs(case, subject.device)
    rows = given.batch.query_rows
    garbage = words(case.digest(), "garbage", (rows, 67), subject.device)
    garbage[:, ::3], garbage[:, 1::3] = -1, 2**31 - 1
    used = {4: -(-max(case.seq_lens) // 256), 128: max(case.seq_lens) // 128}
    wide = replace(
        given,
        page_table=torch.cat((given.page_table[:, : used[4]], garbage), 1),
        c128_slots=torch.cat((given.c128_slots[:, : used[128]], garbage), 1),
    )
    cache, wider = open_cache(subject, given), open_cache(subject, wide)
    for ratio in (4, 128):
        one, other = gathered(subject, cache, given, ratio), gathered(subject, wider, wide, ratio)
        subject.expect(one.tags == other.tags, f"spare columns changed what is gathered at ratio {ratio}.")
        same = torch.equal(one.rows, other.rows) and torch.equal(one.lengths, other.lengths)
        subject.expect(same, f"spare columns changed the index rows of ratio {ratio}.")


@requirement("INV-76", on=CHUNKS, cases="chunks")
def test_a_gather_is_built_once(subject: Subject, case: ChunkCase) -> None:
    """INV-76: a second ensure_c4 or ensure_c128 keeps the first gather, even if it is given other tables."""
    given = chunk_inputs(case, subject.device)
    cache = open_cache(subject, given)
    first = {ratio: gathered(subject, cache, given, ratio) for ratio in (4, 128)}
    kept = {ratio: (layer.rows.clone(), layer.lengths.clone()) for ratio, layer in first.items()}
    cache.ensure_c4(given.page_table.flip(0) + 1)
    cache.ensure_c128(torch.where(given.c128_slots == -1, -1, given.c128_slots + 2))
    for ratio, layer in first.items():
        again = gathered(subject, cache, given, ratio)
        subject.expect(again.tags == layer.tags, f"a second call changed the gather of ratio {ratio}.")
        same = torch.equal(again.rows, kept[ratio][0]) and torch.equal(again.lengths, kept[ratio][1])
        subject.expect(same, f"a second call changed the index rows of ratio {ratio}.")


@requirement("INV-77", on=CHUNKS, cases="fresh_chunks")
def test_c128_gather_reads_the_last_query_row(subject: Subject, case: ChunkCase) -> None:
    """INV-77: in a fresh prefill, whose first rows see no entry, every entry of each request is gathered."""
    given = chunk_inputs(case, subject.device)
    cache = subject.open("open_chunk_cache", given.batch)
    cache.ensure_c128(given.c128_slots)
    ids = numbers("token_ids", cache.token_ids(128))
    bases = numbers("compressed_base", cache.compressed_base(128), len(case.seq_lens))
    for r, (base, seq_len) in enumerate(zip(bases, case.seq_lens, strict=True)):
        right = [definition.slot(given.pages[r], entry, 128) for entry in range(seq_len // 128)]
        got = ids[base : base + len(right)]
        subject.expect(got == right, f"slots {got} are gathered for request {r}, whose entries are in {right}.")
