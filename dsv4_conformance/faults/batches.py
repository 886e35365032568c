"""Rows of one batch that are given what belongs to another row (spec §9.4, §13, §14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.faults.fault import fault
from dsv4_conformance.faults.layers import Layered, Stepping, patch
from dsv4_conformance.faults.visibility import parts
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.metadata import DSV4Metadata
from dsv4_conformance.mla.step import Run


@fault("S23", breaks="INV-42")
class TotalOfEqualWidths(Layered):
    """Rows are dealt out to sequences as if all had as many: ragged batches get page tables of others."""

    class made(Stepping):
        """Steps whose tables are spread evenly."""

        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            """Row t belongs to sequence t // (T / R)."""
            total = sum(run.count for run in runs)
            if total:
                firsts = torch.tensor([rows.start for rows in parts(runs)])
                owner = torch.arange(total) * len(runs) // total
                meta.page_table[:total] = meta.page_table[:total][firsts[owner]]


@fault("S75", breaks="INV-48")
class OneRowWithTheFirstTable(Layered):
    """The last row of a batch is looked up in the page table of the first."""

    class made(Stepping):
        """Steps with such a row."""

        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            """Copy one table."""
            total = sum(run.count for run in runs)
            if total:
                meta.page_table[total - 1] = meta.page_table[0]
                slots, first = meta.c128_page_indices[total - 1], meta.page_table[0]
                entries = torch.arange(len(slots))
                column = (entries // 2).clamp(max=len(first) - 1)
                meta.c128_page_indices[total - 1] = torch.where(
                    slots < 0, slots, first[column] * 2 + (entries % 2).int()
                )


@fault("V37", breaks="INV-70")
class DecodeTokensFirstInOneTensor(Layered):
    """One tensor of the step lists sequences of a single token first, the others are in request order."""

    class made(Stepping):
        """Steps whose entry lists are reordered."""

        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            """Reorder the compressed lengths and lists."""
            rows = sorted(zip(runs, parts(runs), strict=True), key=lambda pair: pair[0].count > 1)
            order = torch.cat([torch.arange(r.start, r.stop) for _, r in rows] or [torch.arange(0)])
            for name in ("c4_topk_lengths_raw", "c4_sparse_topk_lengths", "c128_page_indices"):
                getattr(meta, name)[: len(order)] = getattr(meta, name)[order].clone()


def after_selection(layer: AttentionLayer, change: Any) -> None:
    """Let ``change(meta, runs)`` alter what the indexer has written, raw entries and slots alike."""
    caches: Any = layer.caches
    right, index = caches.select, layer.caches.indexer

    def select(x: Tensor, qr: Tensor, meta: DSV4Metadata, entries: int, runs: Any) -> None:
        right(x, qr, meta, entries, runs)
        if runs:
            change(meta, runs)
            meta.c4_sparse_page_indices.copy_(index.paged(meta.c4_sparse_raw_indices, meta.page_table))  # type: ignore[union-attr]

    if index is not None:
        patch(caches, select=select)


@fault("V51", breaks="INV-42")
class SelectionAtTheWrongRows(Layered):
    """A fallback writes each sequence's selections from a row that counts sequences and not their tokens."""

    def change(self, layer: AttentionLayer) -> None:
        """Move the selections of later sequences."""

        def moved(meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            raw = meta.c4_sparse_raw_indices.clone()
            for number, rows in enumerate(parts(runs)):
                meta.c4_sparse_raw_indices[number : number + rows.stop - rows.start] = raw[rows]

        after_selection(layer, moved)


@fault("V38", breaks="INV-42")
class PaddingOverPrefillRows(Layered):
    """Decode rows are padded to a multiple of four, and the padding's empty selections land on the prefill rows."""

    def change(self, layer: AttentionLayer) -> None:
        """Empty the rows behind the single tokens that begin a batch."""

        def emptied(meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            first = next((n for n, run in enumerate(runs) if run.count > 1), len(runs))
            if 0 < first < len(runs):
                meta.c4_sparse_raw_indices[first : -(-first // 4) * 4] = -1

        after_selection(layer, emptied)
