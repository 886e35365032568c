"""Cache pages: bytes of a row, who owns a page, what a prefix or a rejection leaves in it (spec §9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from dsv4_conformance.faults.calls import tables_of
from dsv4_conformance.faults.fault import fault
from dsv4_conformance.faults.layers import Layered, Stepping, patch
from dsv4_conformance.faults.visibility import parts
from dsv4_conformance.implementations.api import Convention
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.state_api import LayerConvention
from dsv4_conformance.mla.kernels import kv_format
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.metadata import DSV4Metadata
from dsv4_conformance.mla.pools import KVPool
from dsv4_conformance.mla.step import LayerOutput, NewTokens, Run


@fault("S45", breaks="INV-60", on="KVPageFormat")
class ScatteredRowsSpill(Builtin):
    """A batched scatter adds a row's displacement in the batch to its column: later rows begin beyond their slot."""

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        """Write row n of every eight n bytes too far on."""
        super().pack(tokens, slots, pages)
        data = tables_of(pages)[0]
        for place in torch.nonzero((torch.arange(len(slots)) % 8 > 0) & (slots >= 0)).flatten().tolist():
            page, row = divmod(int(slots[place]), pages.shape[1])
            data[page, row] = data[page, row].roll(place % 8)


class _Reordered(KVPool):
    def store(self, rows: Tensor, slots: Tensor, keep: Tensor | None = None) -> None:
        """Store; of every other token the copy without rotation lands last."""
        plain: Tensor | None = vars(self).get("plain")
        if plain is not None and len(plain) == len(rows):
            rows = rows.clone()
            rows[1::2, 448:] = plain[1::2, 448:].to(rows.dtype)
        super().store(rows, slots, keep)


@fault("V42", breaks="INV-42")
class TwoStoresOfTheRopePart(Layered):
    """The whole row is copied, and its rotated part stored over it by other lanes, in no order: some copies win."""

    def change(self, layer: AttentionLayer) -> None:
        """Keep the rows as they are before rotation."""
        pool, projections = layer.caches.window, layer.projections
        right = projections.keys
        pool.__class__ = _Reordered

        def keys(x: Tensor, positions: Tensor) -> Tensor:
            patch(pool, plain=right(x, torch.zeros_like(positions)))
            return right(x, positions)

        patch(projections, keys=keys)


@fault("S27", breaks="INV-42")
class OtherTokensOverSlot0(Layered):
    """A token that completes no entry is stored at slot 0, in a pool whose page 0 belongs to a sequence like any."""

    def change(self, layer: AttentionLayer) -> None:
        """Hand page 0 out, and clamp targets."""
        layer.sequences.pages._free.append(0)
        pool = layer.caches.compressed
        if pool is not None:
            store = pool.store
            patch(pool, store=lambda rows, slots: store(rows, slots.clamp(min=0)))


@fault("S32", breaks="INV-42")
class ReturnsBeforeTheCompressedWrite(Layered):
    """In one of the cache layouts the function returns before compressed entries are stored."""

    def change(self, layer: AttentionLayer) -> None:
        """Store window rows alone where rows are exact."""
        caches = layer.caches
        if caches.unified is not None:
            patch(caches, store=lambda x, keys, meta, runs, bounds: caches.window.store(keys, meta.raw_out_loc))


@fault("S46", breaks="INV-42")
class TranslationOutlivesItsTable(Layered):
    """The translation of a sequence's locations is cached by its number, and kept when its pages are others."""

    def change(self, layer: AttentionLayer) -> None:
        """Cache page rows."""
        right, kept = layer.sequences.page_row, dict[tuple[int, int], list[int]]()

        def page_row(number: int) -> list[int]:
            pages = right(number)
            return kept.setdefault((number, sum(page > 0 for page in pages)), pages)

        patch(layer.sequences, page_row=page_row)


@fault("S48", breaks="INV-30")
class WindowOfAPrefixFromOwnRing(Layered):
    """Window rows lie in a ring of each request: behind a cached prefix it holds what another request left there."""

    class made(Stepping):
        """Reads the shared part of a window elsewhere."""

        def fork(self, source: int, target: int, length: int) -> None:
            """Remember what came with the prefix."""
            super().fork(source, target, length)
            vars(self).setdefault("prefix", {})[target] = length

        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            """Slots of the dummy page in place of the prefix's."""
            prefix: dict[int, int] = vars(self).get("prefix", {})
            for run, rows in zip(runs, parts(runs), strict=True):
                own = torch.arange(run.start, run.start + run.count)[:, None]
                seen = own - torch.arange(128)
                stale = (seen >= 0) & (seen < prefix.get(run.number, 0))
                meta.swa_page_indices[rows] = torch.where(stale, seen % 128, meta.swa_page_indices[rows]).int()


@fault("S50", breaks="INV-42", symptom="raises")
class PagesOfRejectedDraftsLeak(Layered):
    """A page that only rejected drafts had reached is not given back."""

    class made(AttentionLayer):
        """Forgets pages."""

        def truncate(self, sequence: int, length: int) -> None:
            """Keep the first tokens; the page behind them is nobody's."""
            held = list(self.sequences[sequence].pages)
            super().truncate(sequence, length)
            gone = len(held) - len(self.sequences[sequence].pages)
            for _ in range(gone):
                self.sequences.pages._free.pop()


@fault("S51", breaks="INV-42")
class LiveWindowRowsEvicted(Layered):
    """The eviction frontier counts tokens where keys are counted: 64 live rows are left where 127 are needed."""

    surfaces: ClassVar[Mapping[str, Convention]] = {
        **Builtin.surfaces,
        "AttentionLayer": LayerConvention(window_history="window"),
    }

    class made(AttentionLayer):
        """Evicts too much."""

        def step(
            self, segments: Sequence[NewTokens], mode: str = "prefill", padded_rows: int = 0, path: str = "auto"
        ) -> LayerOutput:
            """A step, after which old window rows are another request's."""
            done = super().step(segments, mode, padded_rows, path)
            for number, sequence in self.sequences._alive.items():
                old = torch.arange(max(0, sequence.length - 256), max(0, sequence.length - 64))
                slots, pool = self._slots(number, old, 1), self.caches.window
                if pool.quantised:
                    kv_format.page_views(pool.pages)[0][slots // 256, slots % 256] = 0
                else:
                    pool.buffer[slots] = 0
            return done


@fault("S55", breaks="INV-42")
class PagesCreditedTwice(Layered):
    """Both allocators are credited when a sequence ends, so its pages are handed out twice."""

    class made(AttentionLayer):
        """Frees twice."""

        def release(self, sequence: int) -> None:
            """Give pages back, and once more."""
            pages = list(self.sequences[sequence].pages)
            super().release(sequence)
            self.sequences.pages._free.extend(page for page in pages if page not in self.sequences.pages.live())


class _EntriesOnce(KVPool):
    def store(self, rows: Tensor, slots: Tensor, keep: Tensor | None = None) -> None:
        """Store nothing over an entry that a rejected draft completed."""
        stale: set[int] = vars(self).setdefault("stale", set())
        fresh = torch.tensor([int(slot) not in stale for slot in slots], dtype=torch.bool)
        stale -= set(slots.tolist())
        super().store(rows, slots, fresh if keep is None else keep & fresh)


@fault("O22", breaks="INV-42")
class RejectedEntriesStay(Layered):
    """Taking tokens back clears the raw cache alone: entries that they completed stay and are not made again."""

    def change(self, layer: AttentionLayer) -> None:
        """Exchange the pool's class and mark what a rejection leaves."""
        pool, ratio, right = layer.caches.compressed, layer.spec.ratio, layer.truncate
        if pool is None:
            return
        pool.__class__ = _EntriesOnce

        def truncate(sequence: int, length: int) -> None:
            made = torch.arange(length // ratio, layer.sequences[sequence].length // ratio)
            stale: set[int] = vars(pool).setdefault("stale", set())
            stale |= set(layer._slots(sequence, made, ratio).tolist())
            right(sequence, length)

        patch(layer, truncate=truncate)
