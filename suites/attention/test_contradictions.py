"""What a call must not be answered by chance: undeclared and contradictory arguments (INV-153, INV-154), and every
combination that is declared (INV-101)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.cases.case import AttentionCase
from dsv4_conformance.errors import ConformanceFailure, NotApplicable
from dsv4_conformance.implementations.api import KVScope, PrefillCall
from dsv4_conformance.numerics.truth import Truth
from dsv4_conformance.runner.execute import Call, fit
from dsv4_conformance.runner.refusals import answer_or_refusal
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import ATTENTION, requirement

HEADS = (80, 24, 8, 96, 48, 127, 1, 64, 128)
PAGES = (1, 2, 16, 53, 64, 128, 256)


@requirement("INV-101", on=ATTENTION, cases="combinations")
def test_every_declared_combination_is_answered(subject: Subject, case: AttentionCase) -> None:
    """INV-101: head counts, list widths and numbers of query tokens in every combination, as declared, right."""
    convention = subject.convention(case.surface)
    if convention.h_q is not None and case.h_q not in convention.h_q:
        case = case.with_(h_q=convention.h_q[case.digest() % len(convention.h_q)])
    if convention.page_sizes is not None:
        sizes = convention.page_sizes
        scopes = [s and replace(s, page_size=sizes[case.digest() % len(sizes)]) for s in (case.window, case.extra)]
        window, extra = scopes
        case = case.with_(window=window, extra=extra)
    try:
        subject.judge(subject.build(case))
    except NotApplicable as outside:
        raise ConformanceFailure(f"A declared combination is refused: {outside}") from outside


def _undeclared(call: Call) -> Iterator[tuple[str, Call]]:
    """The call with arguments of other types, every value the same."""
    if call.sink is not None:
        sink = call.sink.to(torch.bfloat16)
        yield "bf16 sinks", replace(call, sink=sink)
        yield "float64 sinks", replace(call, sink=call.sink.double())
    if isinstance(call, PrefillCall):
        yield "int64 lists", replace(call, indices=call.indices.long())
        yield "float32 keys", replace(call, kv=call.kv.float())
    else:
        yield "int64 lists", replace(call, window=replace(call.window, indices=call.window.indices.long()))
        if call.window.topk_length is not None:
            length = call.window.topk_length.long()
            yield "int64 lengths", replace(call, window=replace(call.window, topk_length=length))


@requirement("INV-153", on=ATTENTION, cases="rows")
def test_other_types_are_refused_or_read_as_what_they_are(subject: Subject, case: AttentionCase) -> None:
    """INV-153: sinks in bf16 and float64, lists and lengths in int64, keys in float32."""
    call = subject.build(case)
    subject.judge(call)
    for what, other in _undeclared(call):
        right = replace(other, sink=None if other.sink is None else other.sink.float())
        _refused_or(subject, fit(other, subject.convention(case.surface)), subject.truth(right), what)


@requirement("INV-153", on=ATTENTION, cases="rows")
def test_other_shapes_are_refused_or_answered_right(subject: Subject, case: AttentionCase) -> None:
    """INV-153: head counts, page sizes and list widths outside the declaration."""
    convention = subject.convention(case.surface)
    subject.judge(subject.build(case))
    others = []
    if convention.h_q is not None:
        h_q = next(heads for heads in HEADS if heads not in convention.h_q)
        others.append((f"h_q {h_q}", case.with_(h_q=h_q)))
    if convention.page_sizes is not None and case.surface == "SparseDecode":
        size = next(size for size in PAGES if size not in convention.page_sizes)
        others.append((f"page size {size}", case.with_(window=replace(case.window, page_size=size), extra=None)))
    if convention.topk_multiple > 1:
        width = convention.topk_multiple + 1
        window = replace(case.window, topk=width, slots=max(width, case.window.slots))
        others.append((f"lists of {width}", case.with_(window=window, extra=None)))
    if not others:
        raise NotApplicable("the adapter declares that it takes every head count, page size and list width.")
    for what, other in others:
        call = subject.build(other)
        _refused_or(subject, call, subject.truth(call), what)


@requirement("INV-154", on=ATTENTION, cases="rows")
def test_contradictory_arguments_are_refused_or_harmless(subject: Subject, case: AttentionCase) -> None:
    """INV-154: lists, lengths and sinks with fewer rows or heads than q; with more, the answer of the call proper."""
    convention = subject.convention(case.surface)
    call = fit(subject.build(case.with_(h_q=max(case.h_q, 8)).with_(sink="finite")), convention)
    subject.judge(call)
    for what, other, harmless in _contradictions(call):
        _refused_or(subject, other, subject.truth(call) if harmless else None, what)


def _contradictions(call: Call) -> Iterator[tuple[str, Call, bool]]:
    """What is wrong, the call, and whether the proper answer would do."""
    assert call.sink is not None
    heads = len(call.sink)
    yield "a sink too few", replace(call, sink=call.sink[:-1].clone()), False
    yield "one sink for all heads", replace(call, sink=call.sink[:1].clone()), False
    yield "a sink too many", replace(call, sink=torch.cat((call.sink, call.sink[:1]))), True
    assert heads > 1
    if isinstance(call, PrefillCall):
        rows = len(call.q)
        lists = call.indices.contiguous()
        length = call.topk_length
        yield "a list too few", replace(call, indices=lists[: rows - 1], topk_length=_cut(length, rows - 1)), False
        yield "a list too many", replace(call, indices=_more(lists), topk_length=length), True
        if length is not None:
            yield "a length too few", replace(call, topk_length=length[: rows - 1].clone()), False
            yield "one length for all rows", replace(call, topk_length=length[:1].clone()), False
        return
    b, window = len(call.q), call.window
    lists = window.indices.contiguous()

    def of(**changes: Any) -> Call:
        return replace(call, window=replace(window, **changes))

    yield "a row of lists too few", of(indices=lists[: b - 1], topk_length=_cut(window.topk_length, b - 1)), False
    yield "a query more per sequence than lists", replace(call, q=torch.cat((call.q, call.q[:, :1]), 1)), False
    yield "a row of lists too many", of(indices=_more(lists)), True
    if window.topk_length is not None:
        yield "a length too few", of(topk_length=window.topk_length[: b - 1].clone()), False
        yield "one length for all rows", of(topk_length=window.topk_length[:1].clone()), False
        yield "a length too many", of(topk_length=_more(window.topk_length)), True
    if call.extra is not None:
        extra = call.extra
        short = KVScope(extra.pages, extra.indices[: b - 1].contiguous(), _cut(extra.topk_length, b - 1))
        yield "a row of extra lists too few", replace(call, extra=short), False


def _cut(length: Tensor | None, rows: int) -> Tensor | None:
    return None if length is None else length[:rows].clone()


def _more(rows: Tensor) -> Tensor:
    return torch.cat((rows, rows[-1:]))


def _refused_or(subject: Subject, call: Call, truth: Truth | None, what: str) -> None:
    """Fail unless ``call`` is refused, or answered by ``truth`` where there is one."""
    found = answer_or_refusal(subject, call)
    if isinstance(found, str):
        subject.expect(bool(found.strip()), f"{what}: refused without a word.")
        return
    if truth is None:
        subject.expect(False, f"{what}: the call was answered; nothing can be its answer.")
        return
    try:
        subject.compare(call, found, truth)
    except ConformanceFailure as failure:
        raise ConformanceFailure(f"{what}: {failure}") from failure
