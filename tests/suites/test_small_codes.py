"""A kernel that is right but for small fp8 codes is rejected; no other suite of attention needs them."""

from dataclasses import replace

import pytest
import torch

from dsv4_conformance.cases.repack import live_slots
from dsv4_conformance.errors import ConformanceFailure
from dsv4_conformance.implementations.api import DecodeCall, DecodeResult, KVScope
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.numerics.format_mutants import copy_pages
from dsv4_conformance.oracle.kv_format import page_views
from dsv4_conformance.runner.subject import Subject
from tests.suites.runs import functions, planned


class FlushesSubnormals(Builtin):
    """Reads every code without an exponent as 0, as converters do that look at normal codes only."""

    def decode(self, call: DecodeCall) -> DecodeResult:
        extra = None if call.extra is None else flushed(call.extra)
        return super().decode(replace(call, window=flushed(call.window), extra=extra))


def flushed(scope: KVScope) -> KVScope:
    pages, slots = copy_pages(scope.pages), live_slots(scope)
    data, _ = page_views(pages)
    page, row = slots // scope.page_size, slots % scope.page_size
    rows = data[page, row]
    codes = rows[:, :448]
    rows[:, :448] = codes.masked_fill(codes & 0x78 == 0, 0)
    data[page, row] = rows
    return replace(scope, pages=pages)


@pytest.mark.parametrize("adapter", [FlushesSubnormals, Builtin])
def test_small_codes_are_read(adapter: type[Builtin]) -> None:
    (function,) = (f for f in functions() if f.name == "test_keys_of_subnormal_codes_follow_the_formula")
    case = planned(function, "default")[0]
    subject = Subject(adapter("cpu"), torch.device("cpu"), "INV-01")
    if adapter is Builtin:
        function.function(subject, case.case)
        return
    with pytest.raises(ConformanceFailure, match="out: error"):
        function.function(subject, case.case)
