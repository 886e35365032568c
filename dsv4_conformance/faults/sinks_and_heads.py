"""Sinks per head, shares of heads, padded heads (spec §8, §15)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from dsv4_conformance.faults.calls import Called, with_lists
from dsv4_conformance.faults.fault import fault
from dsv4_conformance.faults.layers import Kernels, Layered, patch
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.mla.attend import Attention
from dsv4_conformance.mla.heads import LocalSink
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.metadata import DSV4Metadata


@fault("S01", breaks="INV-53")
class UnifiedPathWithAllSinks(Layered):
    """The second attention path is given the checkpoint's whole vector, which begins with the sinks of rank 0."""

    class attends(Attention):
        """Attention that slices on one of its paths."""

        def unified(self, q: Tensor, meta: DSV4Metadata) -> Tensor:
            """Over exact rows, with the unsliced sinks."""
            whole = LocalSink(self._sink._parameter, 0, 1, q.shape[1])
            with mock.patch.object(self, "_sink", whole):
                return super().unified(q, meta)


@fault("S02", breaks="INV-54")
class SinkNeverReadAgain(Layered):
    """A rank's slice is built by the first forward and stays so, whatever is loaded later."""

    class read_once(LocalSink):
        """Refreshes once."""

        def refresh(self) -> None:
            """Read the parameter, unless it was read before."""
            if self._copied is None:
                super().refresh()

    def change(self, layer: AttentionLayer) -> None:
        """Exchange the sink's class."""
        layer.local_sink.__class__ = self.read_once


@fault("S02b", breaks="INV-54")
class SinkMovedByAnUpdate(Layered):
    """A refresh builds a new tensor: the values are right, and captured graphs hold the old address."""

    class moving(LocalSink):
        """Refreshes into new memory."""

        def refresh(self) -> None:
            """Read the parameter into another storage."""
            if self._copied is not None:
                self._local = self._local.clone()
            super().refresh()

    def change(self, layer: AttentionLayer) -> None:
        """Exchange the sink's class."""
        layer.local_sink.__class__ = self.moving


@fault("S03", breaks="INV-55")
class SplitsCountedFromAllHeads(Called):
    """Keys are split by what fits beside all heads, padded ones included; a call of 128 loses its unfinished split."""

    def before(self, call: Any) -> Any:
        """Drop the keys behind the last full 64, if there are any before."""
        if call.q.shape[-2] < 128:
            return call

        def change(number: int, lists: Tensor, valid: Tensor) -> Tensor:
            full = valid.sum(1, keepdim=True) // 64 * 64
            return torch.where((valid.cumsum(1) > full) & (full > 0), -1, lists)

        return with_lists(call, change)


@fault("S04", breaks="INV-51")
class PaddedHeadsTimesZero(Layered):
    """Padded heads are masked by a product with 0 in a reduction over heads, which NaN survives."""

    class kernels(Kernels):
        """Sums over all heads."""

        def after(self, out: Tensor) -> Tensor:
            """Add 0 times the sum."""
            return out + 0 * out.sum(1, keepdim=True)

    def change(self, layer: AttentionLayer) -> None:
        """Exchange the kernels."""
        patch(layer.attention, _kernels=self.kernels(layer.attention._kernels))


@fault("V27", breaks="INV-50")
class PaddedHeadsReachTheOutput(Layered):
    """The output projection takes its heads evenly from all padded ones, as if padding lay between them."""

    class made(AttentionLayer):
        """Reads padded heads downstream."""

        def after(self, o: Tensor, meta: DSV4Metadata) -> tuple[Tensor, Tensor]:
            """Output of every (padded / local)-th head."""
            heads = self.projections.heads
            return super().after(o[:, :: max(o.shape[1] // heads, 1)].contiguous(), meta)


@fault("O32", breaks="INV-53", on="HeadLayout")
class FirstSinksOnEveryRank(Builtin):
    """Every rank takes the first of the checkpoint's sinks, as many as it has heads."""

    def local_sink(self, sink: Tensor, rank: int, tp: int) -> Tensor:
        """The slice of rank 0."""
        return super().local_sink(sink, 0, tp)


@fault("O37", breaks="INV-05")
class SinksReadAsBf16(Called):
    """The float32 buffer of sinks is indexed by a bf16 pointer: even heads read the low half of a float."""

    def before(self, call: Any) -> Any:
        """Reinterpret the sinks."""
        if call.sink is None:
            return call
        halves = call.sink.contiguous().view(torch.bfloat16)[: len(call.sink)]
        return replace(call, sink=halves.float())
