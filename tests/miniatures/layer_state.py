"""Whole layers whose lists, caches, compressor state or captured steps are wrong in one place each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor

from dsv4_conformance.faults import graphs, kv_pages
from dsv4_conformance.faults.layers import Stepping
from dsv4_conformance.mla.attend import Attention
from dsv4_conformance.mla.compressor import Compressor
from dsv4_conformance.mla.cuda_graph import PrefillGraph
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.metadata import CLASSES, Change, DSV4Metadata, Event
from dsv4_conformance.mla.step import Run
from tests.miniatures.layer import Layered
from tests.miniatures.state_metadata import _Reclassed


class EntriesSeenOneTokenLate(Layered):
    """Counts t // r entries where (t + 1) // r are complete."""

    class made(Stepping):
        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            meta.c4_topk_lengths_raw -= meta.c4_boundary.int()
            late = meta.c128_boundary
            meta.c128_page_indices[late, (meta.seq_lens // 128 - 1).long()[late]] = -1


class EntriesSeenOneTokenEarly(Layered):
    """Counts (t + 2) // r entries: one whose last token is the next one."""

    class made(Stepping):
        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            seen = meta.seq_lens
            meta.c4_topk_lengths_raw += ((seen + 1) % 4 == 0).int()
            early = (seen + 1) % 128 == 0
            entry = (seen // 128).long()[early]
            meta.c128_page_indices[early, entry] = meta.page_table[early, entry // 2] * 2 + (entry % 2).int()
            meta.c128_topk_lengths_clamp1[early] = (entry + 1).int()


class TopkOneTooFew(Layered):
    """Selects one entry fewer than index_topk."""

    def change(self, layer: AttentionLayer) -> None:
        if layer.caches.indexer is not None:
            right = layer.caches.indexer.select

            def fewer(scores: Tensor, lengths: Tensor, topk: int) -> Tensor:
                return torch.nn.functional.pad(right(scores, lengths, topk - 1), (0, 1), value=-1)

            vars(layer.caches.indexer)["select"] = fewer


class EntriesUpToCapacity(Layered):
    """Attends to every entry that the page table could name."""

    class made(Stepping):
        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            entries = torch.arange(2 * meta.page_table.shape[1])
            meta.c128_page_indices[:, entries] = meta.page_table[:, entries // 2] * 2 + (entries % 2).int()
            meta.c128_topk_lengths_clamp1[:] = len(entries)


class OtherTokensOverSlot0(Layered, kv_pages.OtherTokensOverSlot0):
    """Tokens that complete no entry are written to slot 0, in a pool whose page 0 belongs to a sequence."""


class OtherTokensOverTheDummySlot(Layered):
    """Right: page 0 belongs to nobody, and what has nothing to write may address it (spec §9.1)."""

    def change(self, layer: AttentionLayer) -> None:
        pool = layer.caches.compressed
        if pool is not None:
            store = pool.store
            vars(pool)["store"] = lambda rows, slots: store(rows, slots.clamp(min=0))


class PaddingStoredOverSlot0(Layered):
    """Rows of nobody store their key at slot 0, in a pool whose page 0 belongs to a sequence."""

    class made(Stepping):
        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            meta.raw_out_loc.clamp_(min=0)

    def change(self, layer: AttentionLayer) -> None:
        layer.sequences.pages._free.append(0)


class PaddingStoredOverTheLastToken(Layered):
    """Rows of nobody repeat the slot of the row before them."""

    class made(Stepping):
        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            if (meta.seq_lens > 0).any():
                meta.raw_out_loc[meta.seq_lens == 0] = meta.raw_out_loc[meta.seq_lens > 0][-1]


class PaddingHasNegativeLengths(Layered):
    """Rows of nobody have lengths that a kernel takes for addresses."""

    class made(Stepping):
        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            meta.swa_topk_lengths[meta.seq_lens == 0] = -1

    class attends(Attention):
        def attend(self, q: Tensor, meta: DSV4Metadata, path: str, runs: Sequence[Any]) -> Tensor:
            if (meta.swa_topk_lengths < 0).any():
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return super().attend(q, meta, path, runs)


class PageTableOfTheFirstSequence(Layered):
    """Entries of every row are looked up in the first row's page table."""

    class made(Stepping):
        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            meta.page_table = meta.page_table[:1].expand_as(meta.page_table).contiguous()


class PageEdgeOneTokenLate(Layered):
    """The first token of a page is stored in the page before it."""

    class made(Stepping):
        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            edge = (meta.positions % 256 == 0) & (meta.positions > 0)
            before = meta.page_table[edge].gather(1, meta.positions[edge, None] // 256 - 1)
            meta.raw_out_loc[edge] = before[:, 0].long() * 256


class IndexKeysOfAnotherPage(Layered):
    """Scores are made from the keys of the page before."""

    def change(self, layer: AttentionLayer) -> None:
        pool = layer.caches.index_keys
        if pool is not None:
            load = pool.load
            vars(pool)["load"] = lambda slots: load((slots - 64).clamp(min=0))


class ApeTwice(Layered):
    """Adds the compressor's position bias twice."""

    def change(self, layer: AttentionLayer) -> None:
        if layer.caches.compressor is not None:
            layer.caches.compressor._ape = 2 * layer.caches.compressor._ape


class StateNotRolledBack(Layered):
    """Appends behind rejected drafts: each state row is then read one place too far on for every draft."""

    class made(AttentionLayer):
        def truncate(self, sequence: int, length: int) -> None:
            gone = self.sequences[sequence].length - length
            super().truncate(sequence, length)
            row = self.sequences[sequence].state_row
            for compressor in self.caches._compressors():
                ring = compressor.state.view(compressor.rows, compressor.ring, -1)
                ring[row] = ring[row].roll(-gone, 0)


class ForkWithoutTheTail(Layered):
    """A shared prefix is continued without the tokens that its last window ends in."""

    def change(self, layer: AttentionLayer) -> None:
        vars(layer.caches)["resume"] = lambda source, target, length: None


class ForkDoesNotHoldItsPages(Layered):
    """Pages of a shared prefix are free as soon as the source is released."""

    class made(AttentionLayer):
        def fork(self, source: int, target: int, length: int) -> None:
            super().fork(source, target, length)
            for page in self.sequences[target].pages:
                self.sequences.pages._holders[page] -= 1

        def release(self, sequence: int) -> None:
            for page in self.sequences[sequence].pages:
                self.sequences.pages._holders.setdefault(page, 1)
            super().release(sequence)


class PageGivenBackWhileInUse(Layered):
    """A rejection frees the page that it ends in, so two sequences write to it."""

    class made(AttentionLayer):
        def truncate(self, sequence: int, length: int) -> None:
            super().truncate(sequence, length)
            self.sequences.pages._free.append(self.sequences[sequence].pages[-1])


class StateOfAReleasedSequence(Layered):
    """The first window of a sequence reads its state row before anything of its own stands there."""

    class reading(Compressor):
        def _tokens(self, state_row: int, start: int, chunk: Tensor) -> Tensor:
            tokens = super()._tokens(state_row, start, chunk)
            missing = self.window - self.ratio if start < self.ratio else 0
            last = self.state[(state_row + 1) * self.ring - missing : (state_row + 1) * self.ring]
            return torch.cat((last, tokens[missing:]))

    def change(self, layer: AttentionLayer) -> None:
        for compressor in layer.caches._compressors():
            compressor.__class__ = self.reading


class ListOfTheCapture(Layered):
    """A replay takes new window slots by reference; the captured kernel reads the old ones."""

    class made(Stepping):
        class kind(_Reclassed):
            moved: ClassVar[Mapping[Event, Mapping[str, Change]]] = {"copy": {"swa_page_indices": "referenced"}}


class LengthsOfTheCapture(Layered):
    """A replay goes on with the lengths of the capture."""

    class made(Stepping):
        class kind(_Reclassed):
            moved: ClassVar[Mapping[Event, Mapping[str, Change]]] = {"copy": {"swa_topk_lengths": "kept"}}


class PlanOfTheCapture(Layered, graphs.PlanOfTheCapture):
    """Plans once per number of rows, for the lengths of the first call."""


class RowsBeyondTheBatchKept(Layered):
    """A replay of fewer rows leaves the others as the step before had them."""

    class made(Stepping):
        class kind(DSV4Metadata):
            def _take(self, other: DSV4Metadata, event: Event) -> None:
                rows = slice(0, int((other.seq_lens > 0).sum()))
                for name in CLASSES[event]["copied"]:
                    getattr(self, name)[rows].copy_(getattr(other, name)[rows])
                for name in CLASSES[event]["referenced"]:
                    setattr(self, name, getattr(other, name))


class SinkCopiedAtCapture(Layered):
    """A captured step has a sink of its own."""

    class made(AttentionLayer):
        def capture(self, rows: int, mode: str = "decode") -> Any:
            own = self.sink().clone()
            vars(self.attention)["_sink"] = SimpleNamespace(get=lambda: own)
            return super().capture(rows, mode)


class CacheMovedAfterCapture(Layered):
    """The window pool is allocated anew when a sequence takes a page."""

    class made(AttentionLayer):
        def take(self, segments: Sequence[Any], mode: str) -> list[Run]:
            before = self.sequences.pages.live()
            runs = super().take(segments, mode)
            pool = self.caches.window
            if self.sequences.pages.live() != before:
                pool.buffer = pool.buffer.clone()
            if pool.quantised:
                pool._pages = pool.buffer.as_strided(pool._pages.shape, pool._pages.stride())
            return runs


class BoundsOfTheCapture(Layered):
    """A broken graph goes on with the chunk bounds of the capture, in which no row is part of a chunk."""

    class graph(PrefillGraph):
        def _before(self) -> tuple[Tensor, ...]:
            with mock.patch.object(self, "_bounds", torch.zeros_like(self._bounds)):
                return super()._before()

    class made(AttentionLayer):
        def capture(self, rows: int, mode: str = "decode") -> Any:
            return BoundsOfTheCapture.graph(self, rows) if mode == "prefill" else super().capture(rows, mode)


class TableOfTheCapture(Layered):
    """The captured indexer of a broken graph goes on with the page table of the capture."""

    class graph(PrefillGraph):
        def _before(self) -> tuple[Tensor, ...]:
            with mock.patch.object(self._captured, "page_table", torch.zeros_like(self._captured.page_table)):
                return super()._before()

    class made(AttentionLayer):
        def capture(self, rows: int, mode: str = "decode") -> Any:
            return TableOfTheCapture.graph(self, rows) if mode == "prefill" else super().capture(rows, mode)
