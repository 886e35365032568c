"""What a replay reads: metadata, lists, plans, addresses, rows beyond the batch (spec §14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor

from dsv4_conformance.faults.fault import fault
from dsv4_conformance.faults.layers import Kernels, Layered, Stepping, patch
from dsv4_conformance.faults.steps import Stepped
from dsv4_conformance.implementations.state_api import StepBatch
from dsv4_conformance.mla.attend import Attention
from dsv4_conformance.mla.chunk_cache import SparsePrefillChunkCache
from dsv4_conformance.mla.cuda_graph import DecodeGraph, PrefillGraph
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.metadata import CLASSES, DSV4Metadata, Event
from dsv4_conformance.mla.step import LayerOutput, NewTokens, Run


class Stale(DSV4Metadata):
    """Metadata of which a replay renews some fields in the rows of the batch only."""

    left: ClassVar[tuple[str, ...]] = ()

    def _take(self, other: DSV4Metadata, event: Event) -> None:
        beyond = slice(int((other.seq_lens > 0).sum()), None)
        kept = {name: getattr(self, name)[beyond].clone() for name in self.left if name in CLASSES[event]["copied"]}
        super()._take(other, event)
        for name, rows in kept.items():
            getattr(self, name)[beyond] = rows


class Captured(Layered):
    """A layer whose captured steps are of other classes."""

    decodes: ClassVar[type[DecodeGraph]] = DecodeGraph
    prefills: ClassVar[type[PrefillGraph]] = PrefillGraph

    def change(self, layer: AttentionLayer) -> None:
        """Capture with the classes named."""
        patch(layer, capture=lambda rows, mode="decode": self._capture(layer, rows, mode))

    def _capture(self, layer: AttentionLayer, rows: int, mode: str) -> Any:
        if mode not in ("decode", "prefill"):
            return AttentionLayer.capture(layer, rows, mode)
        return self.decodes(layer, rows) if mode == "decode" else self.prefills(layer, rows)


class Planned(Kernels):
    """Paged kernels that go by the lengths of a plan."""

    def __init__(self, right: Any) -> None:
        super().__init__(right)
        self.plans: dict[int, Tensor] = {}

    def planned(self, rows: int, lengths: Tensor) -> Tensor:
        """The lengths that a call of ``rows`` rows goes by; the first call of as many plans."""
        return self.plans.setdefault(rows, lengths.clone())

    def paged(self, q: Tensor, window: Any, *rest: Any) -> Tensor:
        """Over the slots that the plan knows of."""
        return super().paged(q, window._replace(lengths=self.planned(len(q), window.lengths)), *rest)

    def rows(self, q: Tensor, rows: Tensor, indices: Tensor, lengths: Any, *rest: Any) -> Tensor:
        """Over the rows that the plan knows of; of a joined list, the width that was in use."""
        held = (indices >= 0).sum(1)
        known = self.planned(len(q), held)
        place = (indices >= 0).cumsum(1)
        return super().rows(q, rows, indices.masked_fill(place > known[:, None], -1), lengths, *rest)


@fault("V01", breaks="INV-92")
class PlanOfTheCapture(Layered):
    """The schedule is made once per number of rows, for the lengths of the call that came first."""

    def change(self, layer: AttentionLayer) -> None:
        """Exchange the kernels."""
        patch(layer.attention, _kernels=Planned(layer.attention._kernels))


class _OneScratch(Planned):
    def planned(self, rows: int, lengths: Tensor) -> Tensor:
        before = self.plans.get(0, lengths)
        self.plans[0] = lengths.clone()
        if len(before) == rows:
            return lengths
        return torch.cat((before, before[-1:].expand(max(rows - len(before), 0))))[:rows]


@fault("S21", breaks="INV-92")
class PlanOfAnotherGraph(Layered):
    """Graphs of several sizes share one scratch plan, which is not filled again when another graph takes over."""

    def change(self, layer: AttentionLayer) -> None:
        """Exchange the kernels."""
        patch(layer.attention, _kernels=_OneScratch(layer.attention._kernels))


@fault("V02", breaks="INV-78")
class EntriesPackedAtTheLiveWidth(Stepped):
    """Rows of the C128 list are written side by side, as wide as this step needs, and read at the captured stride."""

    def built(self, metadata: DSV4Metadata, batch: StepBatch) -> None:
        """Pack the list."""
        width = max(max(batch.seq_lens) // 128, 1)
        live = metadata.c128_page_indices[:, :width].flatten()
        metadata.c128_page_indices.fill_(-1).view(-1)[: len(live)] = live


@fault("S11", breaks="INV-92")
class LocationsOfTheRealBatch(Layered):
    """A replay pads the batch and not its cache locations: rows beyond it write where they wrote the time before."""

    class made(Stepping):
        """Steps with such metadata."""

        class kind(Stale):
            """Locations stay."""

            left: ClassVar[tuple[str, ...]] = ("raw_out_loc",)


@fault("O17", breaks="INV-92")
class CompressorRowsNotCleared(Layered):
    """A replay of fewer rows leaves the compressor's rows of the step before, which then compress once more."""

    class made(Stepping):
        """Steps with such metadata."""

        class kind(Stale):
            """What the compressor goes by stays."""

            left: ClassVar[tuple[str, ...]] = ("state_rows", "positions", "c4_out_loc", "c128_out_loc")


@fault("F11", breaks="INV-78")
class ListsOfRowsThatAreGone(Stepped):
    """Rows beyond the batch keep the lists and lengths of the step before: nobody owns what they attend to."""

    class made(Stale):
        """Lists and lengths stay."""

        left: ClassVar[tuple[str, ...]] = (
            "swa_page_indices",
            "swa_topk_lengths",
            "c128_page_indices",
            "c128_topk_lengths_clamp1",
        )


class _Rebound(DSV4Metadata):
    def _take(self, other: DSV4Metadata, event: Event) -> None:
        super()._take(other, event)
        for name in CLASSES[event]["copied"]:
            setattr(self, name, getattr(other, name))


@fault("S14", breaks="INV-79")
class FieldsAreRebound(Stepped):
    """A replay binds its fields to the tensors of a new object, and captured kernels read the old ones."""

    made = _Rebound


class _NeverFilled(PrefillGraph):
    def _before(self) -> tuple[Tensor, ...]:
        with mock.patch.object(self._captured, "page_table", torch.zeros_like(self._captured.page_table)):
            return super()._before()


@fault("T06", breaks="INV-92")
class TablesOfTheCapture(Captured):
    """The page table that a captured piece reads is never filled, so it stays what it was at capture."""

    prefills = _NeverFilled


class _UnifiedMissed(DecodeGraph):
    def _forward(self) -> tuple[Tensor, ...]:
        pool = self._static.layer.caches.window
        if pool.quantised:
            return super()._forward()
        before, unified = self._static.layer.before, pool.buffer

        def elsewhere(*given: Any) -> Tensor:
            with mock.patch.object(pool, "buffer", unified.clone()):
                return before(*given)

        with mock.patch.object(self._static.layer, "before", elsewhere):
            return super()._forward()


@fault("S68", breaks="INV-92")
class CapturedStepWritesToALegacyPool(Captured):
    """The captured step, which overlaps streams, writes window rows to a pool that the unified layout does not read."""

    decodes = _UnifiedMissed


class _NothingBelowAWindow(PrefillGraph):
    def _before(self) -> tuple[Tensor, ...]:
        short = self._captured.seq_lens < 128
        self._captured.c4_out_loc.masked_fill_(short, -1)
        return super()._before()


@fault("H06", breaks="INV-92")
class NoEntryBelowAWindow(Captured):
    """With static shapes a token's place is taken from the mask's width, so below 128 tokens all count as unused."""

    prefills = _NothingBelowAWindow


class _OnePageWide(DecodeGraph):
    def _forward(self) -> tuple[Tensor, ...]:
        meta = self._captured
        on_page = meta.positions[:, None] % 256 + 1
        older = torch.arange(128, device=meta.positions.device) >= on_page
        meta.swa_page_indices.masked_fill_(older, -1)
        return super()._forward()


@fault("O33", breaks="INV-92")
class WindowTableOnePageWide(Captured):
    """The captured table has room for a window less one: keys on the page before are lost behind a page edge."""

    decodes = _OnePageWide


class _WholeBucket(PrefillGraph):
    def _before(self) -> tuple[Tensor, ...]:
        meta = self._captured
        owned = meta.seq_lens > 0
        lengths = (self._bounds[1] - self._bounds[0])[owned]
        if len(lengths) and bool((lengths == lengths[0]).all()) and int(lengths[0]) <= 32:
            last, count = int(owned.sum()) - 1, int((~owned).sum())
            meta.state_rows[~owned] = meta.state_rows[last]
            meta.positions[~owned] = meta.positions[last] + 1 + torch.arange(count)
        return super()._before()


@fault("S17", breaks="INV-92")
class PlanOfTheWholeBucket(Captured):
    """When all extends are equal and short, the compressor's plan runs on to the end of the captured bucket."""

    prefills = _WholeBucket


@fault("S20", breaks="INV-81")
class StoreTargetsLeftUnset(Layered):
    """Rows beyond the real total keep the entry slots that the step before had written there."""

    class made(Stepping):
        """Steps whose padding has old targets."""

        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            """Fill the padding with what stood there, then remember this step's."""
            kept = vars(self).setdefault("targets", {})
            owned = meta.seq_lens > 0
            for name in ("c4_out_loc", "c128_out_loc"):
                now = getattr(meta, name)
                old = kept.get(name, now)
                width = min(len(old), len(now))
                rows = torch.arange(len(now)) < width
                stale = torch.nn.functional.pad(old[:width], (0, len(now) - width), value=-1)
                now.copy_(torch.where(rows & ~owned, stale, now))
                kept[name] = now.clone() if bool(owned.any()) else old


class _ChunksOfPadding(Attention):
    padding = 0

    def _chunk_cache(
        self, meta: DSV4Metadata, runs: Sequence[Any], rows: int, first: int = 0
    ) -> SparsePrefillChunkCache:
        empty = [Run(-1, 0, 0, 0)] * self.padding
        return super()._chunk_cache(meta, [*runs, *empty], rows, first)


class _PaddedRequests(PrefillGraph):
    def replay(self, segments: Sequence[NewTokens], path: str = "auto") -> LayerOutput:
        """Replay with as many requests as were captured."""
        attention: Any = self._static.layer.attention
        missing = self._static.rows - sum(len(segment.x) for segment in segments)
        with mock.patch.object(attention, "padding", 1 if missing else 0):
            return super().replay(segments, path)


@fault("V17", breaks="INV-92", symptom="raises")
class RequestsOfPaddingAreAChunk(Captured):
    """Requests that only pad a replay count as prefills of no tokens, of which the kernel makes no descriptor."""

    attends = _ChunksOfPadding
    prefills = _PaddedRequests
