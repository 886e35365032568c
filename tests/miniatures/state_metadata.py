"""Graph metadata that are wrong in one place each, as those of public engines were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from dsv4_conformance.faults import graphs, steps
from dsv4_conformance.implementations.state_api import StepBatch
from dsv4_conformance.mla.metadata import RESET, Change, DSV4Metadata, Event
from tests.miniatures.base import Miniature


class Stepped(Miniature, steps.Stepped):
    """The built-in metadata, right; subclasses change what is built, or name a class whose events differ."""


class _Reclassed(DSV4Metadata):
    """Events by other classes, declared or not."""

    told: ClassVar[bool] = True
    moved: ClassVar[Mapping[Event, Mapping[str, Change]]] = {}

    def classes(self, event: Event) -> dict[str, Change]:
        right = super().classes(event)
        return right | dict(self.moved.get(event, {})) if self.told else right

    def _take(self, other: DSV4Metadata, event: Event) -> None:
        before = dict(vars(self))
        contents = {name: x.clone() for name, x in before.items() if isinstance(x, Tensor)}
        super()._take(other, event)
        for name, change in self.moved.get(event, {}).items():
            if name == RESET:
                self.sparse_prefill_cache = before[name]
                continue
            # What the right event did to the tensor that was there is undone.
            before[name].copy_(contents[name])
            setattr(self, name, before[name])
            if change == "referenced":
                setattr(self, name, getattr(other, name))
            elif change == "copied":
                getattr(self, name).copy_(getattr(other, name))


class ChunkCacheKeptAfterCopy(Stepped):
    """A full-graph replay leaves the chunk cache of the step before."""

    class made(_Reclassed):
        told = False
        moved: ClassVar[Mapping[Event, Mapping[str, Change]]] = {"copy": {RESET: "kept"}}


class ChunkCacheKeptAfterRefresh(Stepped):
    """A broken-graph replay leaves the chunk cache of the step before."""

    class made(_Reclassed):
        told = False
        moved: ClassVar[Mapping[Event, Mapping[str, Change]]] = {"refresh": {RESET: "kept"}}


class WindowListsReferencedByFullGraphs(Stepped):
    """Declares it, too: the captured kernel goes on reading the old list."""

    class made(_Reclassed):
        moved: ClassVar[Mapping[Event, Mapping[str, Change]]] = {"copy": {"swa_page_indices": "referenced"}}


class LengthsReferencedByBrokenGraphs(Stepped):
    """Declares it, too: captured kernels before the break go on reading the old lengths."""

    class made(_Reclassed):
        moved: ClassVar[Mapping[Event, Mapping[str, Change]]] = {"refresh": {"seq_lens": "referenced"}}


class SaysCopiedAndReferences(Stepped):
    """Rebinds a field that it declares copied."""

    class made(_Reclassed):
        told = False
        moved: ClassVar[Mapping[Event, Mapping[str, Change]]] = {
            "copy": {"c4_topk_lengths_raw": "referenced"},
            "refresh": {"c4_topk_lengths_raw": "referenced"},
        }


class SelectionOverwrittenByRefresh(Stepped):
    """Copies what the captured indexer has just written."""

    class made(_Reclassed):
        told = False
        moved: ClassVar[Mapping[Event, Mapping[str, Change]]] = {"refresh": {"c4_sparse_raw_indices": "copied"}}


class SelectionReplacedByRefresh(Stepped):
    """Takes the other step's empty selection."""

    class made(_Reclassed):
        told = False
        moved: ClassVar[Mapping[Event, Mapping[str, Change]]] = {"refresh": {"c4_sparse_page_indices": "referenced"}}


class SelectionDeclaredReferenced(Stepped):
    """Takes the other step's empty selection, and says so."""

    class made(_Reclassed):
        moved: ClassVar[Mapping[Event, Mapping[str, Change]]] = {"refresh": {"c4_sparse_page_indices": "referenced"}}


class EntryListForgotten(Stepped):
    """Leaves the C128 list of the step before, and declares it kept."""

    class made(_Reclassed):
        moved: ClassVar[Mapping[Event, Mapping[str, Change]]] = {
            "copy": {"c128_page_indices": "kept"},
            "refresh": {"c128_page_indices": "kept"},
        }


class FieldWithoutAClass(Stepped):
    """Declares nothing about one field."""

    class made(DSV4Metadata):
        def classes(self, event: Event) -> dict[str, Change]:
            return {name: change for name, change in super().classes(event).items() if name != "state_rows"}


class EntriesPackedAtTheLiveWidth(Stepped, graphs.EntriesPackedAtTheLiveWidth):
    """Writes the rows of the C128 list side by side at the width that this step needs."""


class EntryListAsWideAsTheStep(Stepped):
    """Makes the C128 list as wide as the longest row of the step needs."""

    def built(self, metadata: DSV4Metadata, batch: StepBatch) -> None:
        width = max(max(batch.seq_lens) // 128, 1)
        metadata.c128_page_indices = metadata.c128_page_indices[:, :width].contiguous()


class PaddingHasNegativeLengths(Stepped):
    """Expands padded rows to lengths below 0."""

    def built(self, metadata: DSV4Metadata, batch: StepBatch) -> None:
        for lengths in (metadata.swa_topk_lengths, metadata.c4_sparse_topk_lengths, metadata.c128_topk_lengths_clamp1):
            lengths[metadata.seq_lens == 0] = -2


class PaddingNamesSlot0(Stepped):
    """Gives padded rows length 1 and slot 0, which is a key of whoever owns page 0."""

    def built(self, metadata: DSV4Metadata, batch: StepBatch) -> None:
        padded = metadata.seq_lens == 0
        metadata.swa_topk_lengths[padded] = 1
        metadata.swa_page_indices[padded, 0] = 0


class WindowOf127(Stepped):
    """Loses the oldest window position."""

    def built(self, metadata: DSV4Metadata, batch: StepBatch) -> None:
        metadata.swa_page_indices[:, 127] = -1
        metadata.swa_topk_lengths.clamp_(max=127)


class EntriesOneTokenLate(Stepped):
    """Counts t // 128 entries for (t + 1) // 128."""

    def build_metadata(self, batch: StepBatch) -> DSV4Metadata:
        right = super().build_metadata(batch)
        late = super().build_metadata(replace(batch, seq_lens=tuple(max(n - 1, 0) for n in batch.seq_lens)))
        right.c128_page_indices = late.c128_page_indices
        right.c128_topk_lengths_clamp1 = late.c128_topk_lengths_clamp1
        return right
