"""Calls that are sent to a kernel which does not fit, or are taken although they contradict themselves (spec §10)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.faults.calls import Called
from dsv4_conformance.faults.fault import fault
from dsv4_conformance.implementations.api import DecodeCall, PrefillCall


@fault("V20", breaks="INV-101", on="SparseDecode", symptom="raises")
class PageGeometryWithoutAKernel(Called):
    """Pages of 2 entries, or any but 32, 64 and larger ones, reach a kernel that is built for 32 and 64."""

    def before(self, call: Any) -> Any:
        """Refuse small pages."""
        if isinstance(call, DecodeCall) and min(s.page_size for s in (call.window, call.extra) if s is not None) < 32:
            raise AssertionError("block_kv == 32 || block_kv == 64")
        return call


@fault("F15b", breaks="INV-154")
class ListsAreBroadcast(Called):
    """Without a check for one row per query, a row that is missing is read from what stands behind: here, again the
    last row."""

    def before(self, call: Any) -> Any:
        """Give every query rows of lists and lengths, and every head a sink."""
        sink = None if call.sink is None else _as_many(call.sink, call.q.shape[-2])
        if isinstance(call, PrefillCall):
            rows = len(call.q)
            length = None if call.topk_length is None else _as_many(call.topk_length, rows)
            return replace(call, indices=_as_many(call.indices, rows), topk_length=length, sink=sink)
        rows = len(call.q)
        window = call.window
        length = None if window.topk_length is None else _as_many(window.topk_length, rows)
        return replace(
            call, window=replace(window, indices=_as_many(window.indices, rows), topk_length=length), sink=sink
        )


def _as_many(given: Tensor, rows: int) -> Tensor:
    return torch.cat((given, given[-1:].expand(max(rows - len(given), 0), *given.shape[1:])))[:rows]
