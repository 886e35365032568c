"""What a row or head must not depend on: scopes, neighbours, pages, head order, repetition (INV-13, 17-19, 100-102)."""

from dataclasses import replace

import torch

from dsv4_conformance.cases.case import AttentionCase
from dsv4_conformance.cases.generator import below, words
from dsv4_conformance.cases.overwrite import overwrite
from dsv4_conformance.cases.rearrange import keep_rows, permute_heads
from dsv4_conformance.cases.repack import merge_scopes, repack, split_scope, spread_pages
from dsv4_conformance.errors import ConformanceFailure, NotApplicable
from dsv4_conformance.implementations.api import DecodeCall, PrefillCall
from dsv4_conformance.runner.guards import Fingerprint
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import ATTENTION, DECODE, requirement


@requirement("INV-13", on=DECODE, cases="two_scopes")
def test_two_scopes_equal_their_union(subject: Subject, case: AttentionCase) -> None:
    """INV-13: the extra scope's keys moved into the window scope, bytes unchanged, give the same answer."""
    call = subject.build(case)
    assert isinstance(call, DecodeCall)
    subject.judge(merge_scopes(call), subject.truth(call))
    subject.judge(call)


@requirement("INV-13", on=DECODE, cases="rows")
def test_one_scope_equals_its_two_halves(subject: Subject, case: AttentionCase) -> None:
    """INV-13: one scope of N + M keys equals two scopes of N and M over the same cache."""
    call = subject.build(case)
    assert isinstance(call, DecodeCall)
    single = replace(call, extra=None)
    subject.judge(split_scope(single), subject.truth(single))
    subject.judge(call)


@requirement("INV-17", on=ATTENTION, cases="rows")
def test_row_ignores_the_content_of_other_rows(subject: Subject, case: AttentionCase) -> None:
    """INV-17: other rows' queries and list orders changed at equal shapes and lengths: the row keeps every bit."""
    call = subject.build(case)
    base = subject.judge(call)
    groups = call.q.shape[0]
    row = case.digest() % groups
    per_group = base.out.shape[0] // groups
    mine = torch.arange(base.out.shape[0], device=base.out.device) // per_group == row
    other = subject.run(keep_rows(call, row, subject.build(case.with_(seed=case.seed + 1))))
    subject.same_bits(base.rows(mine), other.rows(mine), f"in row {row} when only other rows change")


@requirement("INV-17", on=ATTENTION, cases="rows")
def test_row_alone_equals_the_row_in_its_batch(subject: Subject, case: AttentionCase) -> None:
    """INV-17: a row computed alone agrees with its answer in the batch (other lengths: within the budget)."""
    call = subject.build(case)
    truth = subject.truth(call)
    row = case.digest() % call.q.shape[0]
    part = slice(row, row + 1)
    alone: DecodeCall | PrefillCall
    if isinstance(call, PrefillCall):
        length = None if call.topk_length is None else call.topk_length[part]
        alone, rows = replace(call, q=call.q[part], indices=call.indices[part], topk_length=length), part
    else:
        window, extra = (
            None
            if s is None
            else replace(s, indices=s.indices[part], topk_length=None if s.topk_length is None else s.topk_length[part])
            for s in (call.window, call.extra)
        )
        assert window is not None
        alone = replace(call, q=call.q[part], window=window, extra=extra)
        rows = slice(row * call.q.shape[1], (row + 1) * call.q.shape[1])
    subject.judge(alone, truth.rows(rows))
    subject.judge(call)


@requirement("INV-18", on=DECODE, cases="rows")
def test_page_size_and_physical_order_do_not_matter(subject: Subject, case: AttentionCase) -> None:
    """INV-18: the same bytes in pages of other sizes, at other places, lists renumbered, give the same answer."""
    call = subject.build(case)
    assert isinstance(call, DecodeCall)
    truth = subject.truth(call)
    sizes = subject.convention("SparseDecode").page_sizes or (2, 53, 61, 64, 69, 256, 1, 16, 32, 128)
    draw = case.digest()
    subject.judge(repack(call, sizes[draw % len(sizes)], sizes[draw // 7 % len(sizes)], draw), truth)
    subject.judge(call)


@requirement("INV-18", on=DECODE, cases="rows")
def test_pages_may_be_cut_from_a_larger_pool(subject: Subject, case: AttentionCase) -> None:
    """INV-18: pages of the same bytes that lie two or three times as far apart, NaN between them, give the answer."""
    call = subject.build(case)
    assert isinstance(call, DecodeCall)
    subject.judge(spread_pages(call, 2 + case.digest() % 2), subject.truth(call))
    subject.judge(call)


@requirement("INV-19", on=ATTENTION, cases="sinks")
def test_permuting_heads_permutes_the_answer(subject: Subject, case: AttentionCase) -> None:
    """INV-19: query heads and sinks permuted together permute the outputs (bitwise where the adapter declares so)."""
    call = subject.build(case)
    base, truth = subject.judge(call), subject.truth(call)
    order = torch.argsort(words(case.digest(), "heads", (call.q.shape[-2],), call.q.device), stable=True)
    moved = subject.judge(permute_heads(call, order), truth.heads(order))
    if subject.convention(case.surface).head_permutation == "bitwise":
        subject.same_bits(base.heads(order), moved, "between permuted heads and permuted outputs")


@requirement("INV-100", on=ATTENTION, cases="rows")
def test_call_leaves_its_inputs_alone(subject: Subject, case: AttentionCase) -> None:
    """INV-100: no input tensor and no cache byte changes, red zones included (checked on every call; here by name)."""
    call = subject.build(case)
    shared = [call.q] + ([call.kv] if isinstance(call, PrefillCall) else [call.window.pages])
    prints = [Fingerprint.of(name, tensor) for name, tensor in zip(("q", "keys"), shared, strict=True)]
    subject.judge(call)
    for fingerprint in prints:
        fingerprint.check(subject.implementation.identity.name)


@requirement("INV-101", on=ATTENTION, cases="head_counts")
def test_declared_head_counts_and_widths_are_answered(subject: Subject, case: AttentionCase) -> None:
    """INV-101: head counts, page sizes and list widths inside the declaration are answered as declared."""
    convention = subject.convention(case.surface)
    if convention.h_q is not None and case.h_q not in convention.h_q:
        case = case.with_(h_q=convention.h_q[case.digest() % len(convention.h_q)])
    width = convention.topk_multiple * (1 + int(below(case.digest(), "width", (1,), 3, "cpu")))
    window = replace(case.window, topk=width, slots=max(case.window.slots, width))
    extra = case.extra
    if convention.page_sizes is not None:
        first, second = (convention.page_sizes[case.digest() // n % len(convention.page_sizes)] for n in (3, 11))
        window = replace(window, page_size=first)
        extra = None if extra is None else replace(extra, page_size=second)
    try:
        subject.judge(subject.build(case.with_(window=window, extra=extra)))
    except NotApplicable as outside:
        raise ConformanceFailure(f"A declared convention is refused: {outside}") from outside


@requirement("INV-102", on=ATTENTION, cases="rows")
def test_same_call_twice_gives_the_same_bits(subject: Subject, case: AttentionCase) -> None:
    """INV-102 (SHOULD): two runs of one call agree bit for bit."""
    call = subject.build(case)
    first = subject.judge(call)
    subject.same_bits(first, subject.run(call), "between two runs of the same call")


@requirement("INV-103", on=ATTENTION, cases="rows")
def test_call_reads_what_its_inputs_hold_now(subject: Subject, case: AttentionCase) -> None:
    """INV-103: queries, cache bytes, lists, lengths and sinks written in place are what the next call answers for."""
    call = subject.build(case)
    subject.judge(call)
    overwrite(call, subject.build(case.with_(seed=case.seed + 1)))
    subject.judge(call)
