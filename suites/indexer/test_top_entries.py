"""Selection from score rows: which entries, how often, in which order, and their slots (INV-31, 32, 35)."""

from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.cases.compressor_case import TopkCase
from dsv4_conformance.cases.compressor_inputs import topk_lengths, topk_pages, topk_scores
from dsv4_conformance.numerics.selection import trailing_fill
from dsv4_conformance.oracle.indexer import selection_faults
from dsv4_conformance.oracle.kv_format import compressed_slot
from dsv4_conformance.runner.driving import declared
from dsv4_conformance.runner.indexing import fitted_rows, need_pages
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

INDEXER = ("Indexer",)


def select(subject: Subject, case: TopkCase, layout: int = 0) -> tuple[Tensor, Any, Tensor, Tensor]:
    """Raw and paged int32 ``(rows, topk)`` for the case's scores, and the scores and lengths; paged is None if the
    adapter declares no pages."""
    scores, lengths = topk_scores(case, subject.device), topk_lengths(case, subject.device)
    returned = subject.ask("select_topk", scores, lengths, case.topk, topk_pages(case, subject.device, layout))
    subject.expect(isinstance(returned, tuple) and len(returned) == 2, "select_topk returned no (raw, paged).")
    raw, paged = returned
    for given in returned if declared(subject, "Indexer").paged else (raw,):
        subject.promised("select_topk", given, (case.rows, case.topk), torch.int32)
    return raw, paged, scores, lengths.long()


@requirement("INV-31", on=INDEXER, cases="selection_few")
def test_rows_of_few_entries_select_all_of_them_unscored(subject: Subject, case: TopkCase) -> None:
    """INV-31: a row of at most topk entries selects each of them, be their scores NaN."""
    case = fitted_rows(subject, case)
    raw, _, _, lengths = select(subject, case)
    for row, length in enumerate(lengths.tolist()):
        named = sorted(entry for entry in raw[row].tolist() if entry != -1)
        subject.expect(
            named == list(range(length)),
            f"row {row} sees {length} entries and selects {len(named)}, "
            f"{len(set(named) & set(range(length)))} of them right.",
        )


@requirement("INV-32", on=INDEXER, cases="selection")
def test_the_largest_scores_are_selected_each_once(subject: Subject, case: TopkCase) -> None:
    """INV-32: min(n, topk) different entries below n, none of which scores less than one left out; then -1."""
    case = fitted_rows(subject, case)
    raw, _, scores, lengths = select(subject, case)
    faults = selection_faults(scores, raw, lengths, case.topk)
    subject.expect(not faults, f"{faults[0]} ({len(faults)} of {case.rows} rows are wrong)." if faults else "")
    subject.expect(trailing_fill(raw, lengths, case.topk).all(), "-1 stands before or between selected entries.")


@requirement("INV-32", on=INDEXER, cases="selection_not_numbers")
def test_scores_that_are_no_numbers_select_visible_entries_or_none(subject: Subject, case: TopkCase) -> None:
    """INV-32: where scores are NaN, whatever is selected is -1 or a visible entry, each once."""
    case = fitted_rows(subject, case)
    raw, _, _, lengths = select(subject, case)
    inside = (raw == -1) | ((raw >= 0) & (raw < lengths[:, None]))
    subject.expect(inside.all(), f"row {int((~inside).any(1).to(torch.uint8).argmax())} names an entry it cannot see.")
    for row in range(case.rows):
        named = [entry for entry in raw[row].tolist() if entry >= 0]
        subject.expect(len(set(named)) == len(named), f"row {row} names an entry twice.")


@requirement("INV-35", on=INDEXER, cases="selection_distinct")
def test_paged_indices_are_the_slots_of_the_raw_ones(subject: Subject, case: TopkCase) -> None:
    """INV-35: paged = page_table[raw // 64] * 64 + raw % 64 entry by entry, up to int32's last page; -1 stays -1."""
    case = fitted_rows(subject, case)
    need_pages(subject)
    tables = topk_pages(case, subject.device)
    raw, paged, _, lengths = select(subject, case)
    seen = (raw < lengths[:, None]).all() and (raw >= -1).all()
    subject.expect(seen, "a raw index is neither -1 nor an entry of its row.")
    wanted = compressed_slot(tables, raw.long(), 4)
    wrong = paged.long() != wanted
    subject.expect(
        not wrong.any(),
        f"{int(wrong.sum())} paged indices are not the slots of their entries, the first in row "
        f"{int(wrong.any(1).to(torch.uint8).argmax())}.",
    )


@requirement("INV-35", on=INDEXER, cases="selection")
def test_paged_indices_follow_the_raw_ones_among_equal_scores(subject: Subject, case: TopkCase) -> None:
    """INV-35: whichever of equal scores were selected, the slots are those of the raw entries, place by place."""
    case = fitted_rows(subject, case)
    need_pages(subject)
    raw, paged, _, lengths = select(subject, case)
    named = torch.where(raw < lengths[:, None], raw, -1).long()
    wanted = compressed_slot(topk_pages(case, subject.device), named, 4)
    wrong = (paged.long() != wanted).any(1)
    subject.expect(
        not wrong.any(), f"{int(wrong.sum())} of {case.rows} rows have slots of other entries than those they name."
    )


@requirement("INV-102", on=INDEXER, cases="selection")
def test_equal_scores_are_chosen_alike_every_time(subject: Subject, case: TopkCase) -> None:
    """INV-102 (SHOULD): the same scores selected from three times give the same entries, ties at the edge included."""
    case = fitted_rows(subject, case)
    first, _, _, _ = select(subject, case)
    for _ in range(2):
        again, _, _, _ = select(subject, case)
        same = (first.sort(1).values == again.sort(1).values).all()
        subject.expect(same, "the same scores were selected from again, and other entries came out.")


@requirement("INV-35", on=INDEXER, cases="selection_distinct")
def test_other_pages_change_no_selection(subject: Subject, case: TopkCase) -> None:
    """INV-35: with another page table the same entries are selected."""
    case = fitted_rows(subject, case)
    need_pages(subject)
    raw, _, scores, lengths = select(subject, case)
    other, _, _, _ = select(subject, case, layout=1)
    same = (raw.sort(1).values == other.sort(1).values).all(1)
    for row in torch.nonzero(~same).flatten().tolist():
        pair = (raw[row], other[row])
        chosen = [scores[row][entries[entries >= 0].long()].sort().values for entries in pair]
        tie = chosen[0].shape == chosen[1].shape and torch.equal(*chosen)
        subject.expect(tie, f"row {row} of {int(lengths[row])} entries selects others from other pages.")
    subject.expect(True, "")
