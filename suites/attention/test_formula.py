"""The attention formula and its consequences: hull, single key, multiplicity, order (INV-01, 08-10, 12, 16)."""

import math
from dataclasses import replace

import torch

from dsv4_conformance.cases.case import AttentionCase
from dsv4_conformance.cases.problem import problem_of
from dsv4_conformance.cases.rearrange import first_key, keep_entries, permute_lists, repeat_entries
from dsv4_conformance.cases.shift import level_channel, step_query
from dsv4_conformance.implementations.api import DecodeCall
from dsv4_conformance.numerics.algebra import apply_sink, joined, repeated
from dsv4_conformance.numerics.truth import Truth
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import ATTENTION, requirement

WIDEST_TRIPLED = 640
"""Lists up to this width are tripled: what stands at a block's edge shows in them, and wider ones cost more."""


@requirement("INV-01", on=ATTENTION, cases="core")
def test_output_lse_and_max_logits_follow_the_formula(subject: Subject, case: AttentionCase) -> None:
    """INV-01: every output agrees with the float64 formula on the dequantised cache within its budget."""
    subject.judge(subject.build(case))


@requirement("INV-08", on=ATTENTION, cases="rows")
def test_output_lies_in_the_hull_of_its_values(subject: Subject, case: AttentionCase) -> None:
    """INV-08: per dim, out lies between the smallest and the largest referenced value (and 0, with a finite sink)."""
    call = subject.build(case)
    outputs, truth = subject.judge(call), subject.truth(call)
    keys, valid = problem_of(call).gather()
    some = valid.any(1)[:, None]
    low = keys.masked_fill(~valid[..., None], torch.inf).amin(1).masked_fill(~some, 0).to(torch.float64)
    high = keys.masked_fill(~valid[..., None], -torch.inf).amax(1).masked_fill(~some, 0).to(torch.float64)
    if case.sink not in ("none", "minus_inf"):
        low, high = low.clamp(max=0), high.clamp(min=0)
    out, room = outputs.out.to(torch.float64), truth.budgets.out[..., None]
    outside = (out < low[:, None] - room) | (out > high[:, None] + room)
    subject.expect(~outside.any(), f"out leaves the hull of its values in {int(outside.sum())} elements.")


@requirement("INV-09", on=ATTENTION, cases="rows")
def test_single_key_is_returned_times_its_share(subject: Subject, case: AttentionCase) -> None:
    """INV-09: with one key k of logit s, out = k sigmoid(s - sink), lse = s."""
    call = keep_entries(subject.build(case), first_key)
    if isinstance(call, DecodeCall):
        call = replace(call, extra=None)
    subject.judge(call)
    problem = problem_of(call)
    keys, valid = problem.gather()
    key = keys.to(torch.float64).sum(1)  # the only one: invalid rows are gathered as zeros
    logit = (problem.q.to(torch.float64) * key[:, None]).sum(-1) * problem.scale
    plain = subject.truth(replace(call, sink=None))
    alone = replace(plain.answer, out=key[:, None].expand(problem.q.shape).clone(), lse=logit, max_logits=logit)
    if call.sink is not None:
        alone = apply_sink(alone, call.sink)
    rows = valid.any(1)
    expected = Truth(alone, subject.truth(call).budgets).rows(rows)
    subject.compare(call, subject.run(call).rows(rows), expected)


@requirement("INV-09", on=ATTENTION, cases="rows")
def test_single_key_of_a_very_low_or_high_logit_is_returned(subject: Subject, case: AttentionCase) -> None:
    """INV-09: with one key and no sink, out = k and lse = s, be s -100,000 or 60,000: no logit stands for "masked"."""
    call = replace(level_channel(keep_entries(subject.build(case), first_key)), sink=None)
    if isinstance(call, DecodeCall):
        call = replace(call, extra=None)
    moved, step = step_query(call, (-1e5, -6e4, 6e4)[case.digest() % 3])
    base, truth = subject.truth(call).answer, subject.truth(moved)
    expected = replace(base, lse=base.lse + step, max_logits=base.max_logits + step)
    subject.judge(moved, Truth(expected, truth.budgets))
    subject.judge(call)


@requirement("INV-10", on=ATTENTION, cases="clean_lists")
def test_repeating_every_index_shifts_lse_by_ln_2(subject: Subject, case: AttentionCase) -> None:
    """INV-10: every index twice leaves the sink-free output unchanged and adds ln 2 to lse; three times, so that some
    stand on both sides of each 64th place, ln 3."""
    call = replace(subject.build(case), sink=None)
    truth = subject.truth(call)
    subject.judge(repeat_entries(call), Truth(repeated(truth.answer, 2), truth.budgets))
    if max(shape.topk for shape in (case.window, case.extra) if shape is not None) <= WIDEST_TRIPLED:
        subject.judge(repeat_entries(call, 3), Truth(repeated(truth.answer, 3), truth.budgets))
    subject.judge(subject.build(case))


@requirement("INV-10", on=ATTENTION, cases="clean_lists")
def test_repeated_index_counts_once_per_occurrence(subject: Subject, case: AttentionCase) -> None:
    """INV-10: the first key listed twice weighs twice: the answer over the list joined with that over the key alone."""
    plain = replace(subject.build(case), sink=None)
    alone = keep_entries(plain, first_key)
    twice = repeat_entries(plain)
    # Of each doubled list keep every original (even places) and the first key's copy.
    heavier = keep_entries(
        twice,
        lambda lists: (
            (torch.arange(lists.indices.shape[1], device=lists.indices.device) % 2 == 0)
            | (lists.valid.cumsum(1) == 2) & lists.valid
        ),
    )
    budgets = subject.truth(heavier).budgets
    expected = joined(subject.truth(plain).answer, subject.truth(alone).answer)
    subject.judge(heavier, Truth(expected, budgets))
    subject.judge(subject.build(case))


@requirement("INV-12", on=ATTENTION, cases="rows")
def test_order_of_the_list_does_not_matter(subject: Subject, case: AttentionCase) -> None:
    """INV-12: the entries inside each length in another order give the same answer."""
    call = subject.build(case)
    truth = subject.truth(call)
    subject.judge(permute_lists(call, case.digest()), truth)
    subject.judge(call)


@requirement("INV-16", on=ATTENTION, cases="rows")
def test_zero_query_averages_its_keys(subject: Subject, case: AttentionCase) -> None:
    """INV-16: with q = 0 every logit is 0: out = mean(k) N / (N + e^sink), lse = ln N, max_logits = 0."""
    call = subject.build(case)
    subject.judge(call)
    flat = replace(call, q=torch.zeros_like(call.q))
    budgets = subject.truth(flat).budgets
    keys, valid = problem_of(flat).gather()
    count = valid.sum(1).to(torch.float64)
    mean = keys.to(torch.float64).sum(1) / count.clamp(min=1)[:, None]
    rows, heads = problem_of(flat).q.shape[:2]
    plain = replace(
        subject.truth(flat).answer,
        out=mean[:, None].expand(rows, heads, 512).clone(),
        lse=count.log()[:, None].expand(rows, heads).masked_fill(count[:, None] == 0, math.inf),
        max_logits=torch.zeros(rows, heads, dtype=torch.float64, device=mean.device).masked_fill(
            count[:, None] == 0, -math.inf
        ),
    )
    expected = plain if flat.sink is None else apply_sink(plain, flat.sink)
    subject.judge(flat, Truth(expected, budgets))


@requirement("INV-16", on=ATTENTION, cases="rows")
def test_shifting_every_logit_and_the_sink_changes_nothing(subject: Subject, case: AttentionCase) -> None:
    """INV-16: with one channel equal in all keys, a query step there shifts every logit by c: out stays if the sink
    shifts too, lse and max_logits shift by c; c is 25, -25 or -300."""
    call = level_channel(subject.build(case))
    moved, step = step_query(call, (25.0, -25.0, -300.0)[case.digest() % 3])
    if call.sink is not None:
        moved = replace(moved, sink=call.sink + step)
    base = subject.truth(call).answer
    expected = replace(base, lse=base.lse + step, max_logits=base.max_logits + step)
    subject.judge(moved, Truth(expected, subject.truth(moved).budgets))
    subject.judge(call)
