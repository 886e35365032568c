"""Lists and lengths: holes, tails, lonely rows, unreferenced memory (INV-06, 11, 14, 15)."""

import math
from dataclasses import replace

import torch

from dsv4_conformance.cases.case import AttentionCase
from dsv4_conformance.cases.rearrange import compact, holes_beyond, insert_holes, rewrite_lists, with_lengths
from dsv4_conformance.cases.repack import resurround
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import ATTENTION, requirement

WIDTH = 200
ENDS = (65, 1, 129, 64, 63, 193, 2, 128, 127, 192, 191)
"""Lengths on either side of the edges of blocks of 64."""


@requirement("INV-06", on=ATTENTION, cases="lonely")
def test_row_without_keys_gives_zero_and_infinite_lse(subject: Subject, case: AttentionCase) -> None:
    """INV-06: out is exactly 0, lse +inf, max_logits -inf, with no sink and with every kind of sink; never NaN."""
    call = subject.build(case)
    subject.judge(call)
    heads = torch.arange(call.q.shape[-2], device=call.q.device)
    kinds = torch.tensor([-math.inf, math.inf, 0.0, -5.0, 5.0], device=call.q.device)[heads % 5]
    for sink in (None, kinds, call.sink):
        outputs = subject.run(replace(call, sink=sink))
        subject.expect((outputs.out[-1] == 0).all(), "out of a row without keys is not exactly 0.")
        if outputs.lse is not None:
            subject.expect(outputs.lse[-1].isposinf().all(), "lse of a row without keys is not +inf.")
        if outputs.max_logits is not None:
            subject.expect(outputs.max_logits[-1].isneginf().all(), "max_logits of a row without keys is not -inf.")
        subject.expect(~outputs.out.isnan().any(), "NaN in out although no referenced value is NaN.")


@requirement("INV-11", on=ATTENTION, cases="rows")
def test_inserted_holes_change_nothing(subject: Subject, case: AttentionCase) -> None:
    """INV-11: a -1 after every entry, lengths doubled, gives the answer of the list without them."""
    call = subject.build(case)
    subject.judge(insert_holes(call), subject.truth(call))
    subject.judge(call)


@requirement("INV-11", on=ATTENTION, cases="rows")
def test_hole_equals_a_shorter_list(subject: Subject, case: AttentionCase) -> None:
    """INV-11: an entry replaced by -1 equals its removal: the list with holes, and the same list compacted, agree."""
    call = subject.build(case)
    truth = subject.truth(call)
    subject.judge(compact(call), truth)
    subject.judge(call)


@requirement("INV-14", on=ATTENTION, cases="lengths")
def test_entries_beyond_the_length_have_no_effect(subject: Subject, case: AttentionCase) -> None:
    """INV-14: garbage beyond topk_length (INT_MIN, INT_MAX, live slots; prefill: any hole) equals -1, bit for bit."""
    call = subject.build(case)
    garbage = subject.judge(call)
    plain = subject.run(holes_beyond(call))
    subject.same_bits(garbage, plain, "between garbage and -1 beyond the length")


@requirement("INV-14", on=ATTENTION, cases="clean_lists")
def test_lengths_around_a_block_s_edge_are_kept(subject: Subject, case: AttentionCase) -> None:
    """INV-14: lists of live keys, wider than three blocks of 64, that end on either side of each block's edge, in both
    scopes, with other ends in the two."""
    plain = compact(subject.build(case))
    wide = rewrite_lists(plain, lambda lists: lists.indices.repeat(1, -(-WIDTH // lists.indices.shape[1]))[:, :WIDTH])
    groups = wide.q.shape[0]
    for turn in range(0, len(ENDS), groups):

        def ends(scope: str, count: int, turn: int = turn) -> list[int]:
            first = turn if scope == "window" else turn + 3
            return [ENDS[(first + place) % len(ENDS)] for place in range(count)]

        subject.judge(with_lengths(wide, ends))


@requirement("INV-15", on=ATTENTION, cases="poisoned")
def test_unreferenced_memory_has_no_effect(subject: Subject, case: AttentionCase) -> None:
    """INV-15: NaN or Inf patterns in unreferenced slots, scale pads and page tails equal zeros there, bit for bit."""
    call = subject.build(case)
    poisoned = subject.judge(call)
    clean = subject.run(resurround(call, "none"))
    subject.same_bits(poisoned, clean, f"between {case.poison} and 0 in unreferenced memory")


@requirement("INV-15", on=ATTENTION, cases="poisoned")
def test_masked_entries_are_skipped_not_multiplied_by_zero(subject: Subject, case: AttentionCase) -> None:
    """INV-15: slot 0, where holes may be read, and in decode the slots named beyond the length, hold NaN or Inf too."""
    call = subject.build(case)
    subject.judge(resurround(call, case.poison), subject.truth(call))
    subject.judge(call)
