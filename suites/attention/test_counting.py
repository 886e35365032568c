"""Equal logits over equal values: what comes out counts the keys (INV-152)."""

import math
from dataclasses import replace

import torch

from dsv4_conformance.cases.case import AttentionCase
from dsv4_conformance.cases.problem import problem_of
from dsv4_conformance.implementations.api import DecodeCall
from dsv4_conformance.numerics.algebra import apply_sink
from dsv4_conformance.numerics.truth import Truth
from dsv4_conformance.oracle.kv_format import pack
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import ATTENTION, requirement

VALUE = 1.75
"""Exact in e4m3 and in bf16."""


@requirement("INV-152", on=ATTENTION, cases="rows")
def test_equal_keys_are_counted(subject: Subject, case: AttentionCase) -> None:
    """INV-152: every slot, referenced or not, holds the constant 1.75 and q is 0: out = 1.75 N / (N + e^sink) and
    lse = ln N, with sinks at ln N of some row, where one key more or less moves out most."""
    subject.judge(subject.build(case))
    call = subject.build(case)
    call.q.zero_()
    if isinstance(call, DecodeCall):
        for scope in (call.window, call.extra):
            if scope is not None:
                slots = torch.arange(scope.pages.shape[0] * scope.page_size, device=call.q.device)
                row = torch.full((len(slots), 512), VALUE, dtype=torch.bfloat16, device=call.q.device)
                pack(row, slots, scope.pages)
    else:
        call.kv.fill_(VALUE)
    valid = problem_of(call).gather()[1]
    count = valid.sum(1).to(torch.float64)
    rows, heads = len(count), call.q.shape[-2]
    sink = count.clamp(min=1).log()[torch.arange(heads, device=count.device) % rows].float()
    call = replace(call, sink=sink)
    truth = subject.truth(call)
    empty = (count == 0)[:, None].expand(rows, heads)
    plain = replace(
        truth.answer,
        out=torch.full((rows, heads, 512), VALUE, dtype=torch.float64, device=count.device).masked_fill(
            empty[..., None], 0.0
        ),
        lse=count.log()[:, None].expand(rows, heads).masked_fill(empty, math.inf),
        max_logits=torch.zeros(rows, heads, dtype=torch.float64, device=count.device).masked_fill(empty, -math.inf),
    )
    subject.judge(call, Truth(apply_sink(plain, sink), truth.budgets))
    subject.judge(replace(call, sink=None), Truth(plain, subject.truth(replace(call, sink=None)).budgets))
