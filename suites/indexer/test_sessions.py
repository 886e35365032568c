"""Selections of the indexer, led through token streams (INV-31, 34, 35, 37)."""

from dataclasses import replace

import torch

from dsv4_conformance.cases.compressor_case import IndexerCase
from dsv4_conformance.cases.compressor_inputs import indexer_spec
from dsv4_conformance.errors import ContractViolation
from dsv4_conformance.oracle.compressor import visible
from dsv4_conformance.oracle.kv_format import compressed_slot
from dsv4_conformance.runner.indexing import (
    crowded,
    exact,
    fitted,
    judge_keys,
    judge_scores,
    judge_selections,
    led,
    need_pages,
)
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

INDEXER = ("Indexer",)


@requirement("INV-31", on=INDEXER, cases="index_early")
def test_tokens_that_see_few_entries_select_them_all(subject: Subject, case: IndexerCase) -> None:
    """INV-31: while n(t) <= index_topk every token selects entries 0 to n(t) - 1."""
    case = fitted(subject, case)
    session = led(subject, case)
    for stretch in session.finish():
        raw, seen = torch.cat([s.raw for s in stretch.returned]), visible(stretch.positions, 4)
        few = seen <= session.spec.geometry.index_topk
        place = torch.arange(raw.shape[1], device=raw.device)
        wanted = torch.where(place < seen[:, None], place, -1).sort(1).values
        wrong = few & (raw.sort(1).values != wanted).any(1)
        subject.expect(
            not wrong.any(),
            f"token {int(stretch.positions[wrong][0]) if wrong.any() else 0} sees "
            f"{int(seen[wrong][0]) if wrong.any() else 0} entries and does not select just those.",
        )


@requirement("INV-34", on=INDEXER, cases="index_streams")
def test_the_sign_of_the_head_weights_turns_the_selection(subject: Subject, case: IndexerCase) -> None:
    """INV-34: weights times 4 select the same entries, times -4 those of the lowest scores."""
    case = fitted(subject, case)
    spec = indexer_spec(case, subject.device)
    for factor in (4.0, -4.0):
        weights = replace(spec.weights, weights_proj=spec.weights.weights_proj * factor)
        session = led(subject, case, replace(spec, weights=weights))
        judge_selections(subject, session, factor, spec)


@requirement("INV-35", on=INDEXER, cases="index_streams")
def test_paged_selections_name_the_pages_of_their_sequence(subject: Subject, case: IndexerCase) -> None:
    """INV-35: paged indices are the raw ones through the sequence's own page table; sequences share no slot."""
    case = fitted(subject, case)
    need_pages(subject)
    session, owners = led(subject, case), dict[int, set[int]]()
    for stretch in session.finish():
        raw = torch.cat([s.raw for s in stretch.returned])
        if any(s.paged is None for s in stretch.returned):
            continue
        if stretch.table is None:
            raise ContractViolation("push returned paged indices, and page_table is None.")
        paged, table = torch.cat([s.paged for s in stretch.returned]), stretch.table[None].expand(len(raw), -1)
        subject.expect(
            ((raw >= -1) & (raw < 64 * table.shape[1])).all(), "a raw index lies beyond the sequence's pages."
        )
        subject.expect(
            torch.equal(paged.long(), compressed_slot(table, raw.long(), 4)),
            f"paged selections of sequence {stretch.sequence} are not its slots of the raw ones.",
        )
        owners[stretch.sequence] = set(stretch.table.tolist())
    living = [owners[sequence] for sequence in owners if len(session.streams.held(sequence))]
    shared = sum(map(len, living)) - len(set().union(*living))
    subject.expect(shared == 0, f"{shared} pages belong to two sequences.")


@requirement("INV-37", on=INDEXER, cases="index_streams")
def test_selections_do_not_depend_on_the_schedule(subject: Subject, case: IndexerCase) -> None:
    """INV-37: whatever the calls, beside other sequences and after rejected drafts, a token selects its own top-k."""
    case = fitted(subject, case)
    session = led(subject, case)
    for stretch in session.finish():
        judge_keys(subject, session, stretch)
        rows = crowded(session, stretch)
        if rows.any():
            right = exact(subject, session.spec, stretch, rows)
            judge_scores(subject, stretch, rows, right.scores, right.noise)
    judge_selections(subject, session)
