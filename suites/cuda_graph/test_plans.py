"""Scheduler plans: what a plan of one decode call may be used for again (INV-90)."""

from dataclasses import replace

from torch import Tensor

from dsv4_conformance.cases.case import AttentionCase
from dsv4_conformance.implementations.api import DecodeCall
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

PLAN = ("DecodePlan",)


def _calls(subject: Subject, case: AttentionCase) -> tuple[DecodeCall, DecodeCall]:
    """Two calls of the same shapes and lengths. q and sinks differ; so do caches and lists, where the second call's
    lists reach as far as the first one's lengths: what stands beyond a list's own end is no list and names anything."""
    first, second = (subject.build(c) for c in (case, case.with_(seed=case.seed + 1)))
    assert isinstance(first, DecodeCall) and isinstance(second, DecodeCall)
    pairs = zip((first.window, first.extra), (second.window, second.extra), strict=True)
    if all(_reaches(a.topk_length, b.topk_length) for a, b in pairs if a is not None and b is not None):
        window = replace(second.window, topk_length=first.window.topk_length)
        extra = second.extra
        if extra is not None and first.extra is not None:
            extra = replace(extra, topk_length=first.extra.topk_length)
        return first, replace(second, window=window, extra=extra)
    return first, replace(first, q=second.q, sink=second.sink)


def _reaches(lengths: Tensor | None, own: Tensor | None) -> bool:
    """Whether lists of ``own`` lengths (None: whole) have an entry wherever ``lengths`` look."""
    return own is None or (lengths is not None and bool((lengths <= own).all()))


@requirement("INV-90", on=PLAN, cases="plans")
def test_a_plan_serves_other_contents_of_the_same_lengths(subject: Subject, case: AttentionCase) -> None:
    """INV-90: a plan made for one call gives right results for other q, caches and lists of its shapes and lengths."""
    first, second = _calls(subject, case)
    plan = subject.ask("new_plan")
    for call in (first, second, first):
        outputs = subject.run(call, plan)
        subject.compare(call, outputs, subject.truth(call))
        fresh = subject.run(call, subject.ask("new_plan"))
        subject.same_bits(fresh, outputs, "between a plan used again and a new one")
    subject.mutants_of(first, subject.truth(first))


@requirement("INV-90", on=PLAN, cases="plans")
def test_a_plan_of_other_shapes_is_refused(subject: Subject, case: AttentionCase) -> None:
    """INV-90: other rows, heads, queries per row or list width raise instead of running under a stale plan."""
    first, _ = _calls(subject, case)
    plan = subject.ask("new_plan")
    subject.run(first, plan)
    others = [
        case.with_(b=case.b + 1),
        case.with_(s_q=case.s_q + 1),
        case.with_(h_q=192 - case.h_q),
        case.with_(window=replace(case.window, topk=case.window.topk + 64)),
    ]
    for other in others:
        subject.refused("decode_planned", subject.build(other), plan)
