"""Top-k of index scores, raw and as slots (spec §7, §9.4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.faults.fault import fault
from dsv4_conformance.faults.indexer import Indexed
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.sessions import IndexerSession
from dsv4_conformance.mla.indexer import Indexer
from dsv4_conformance.mla.sessions import IndexerSession as Session
from dsv4_conformance.mla.topk import paged as right_paged
from dsv4_conformance.mla.topk import select as right_select
from dsv4_conformance.spec.weights import IndexerSpec

CANDIDATES = 4096
"""Scores of one coarse bin that a kernel keeps."""


@fault("S08", breaks="INV-35", on="Indexer")
class PagesOfAnotherSelection(Indexed):
    """Asked for raw indices, too, the kernel selects once more for them, and equal scores fall out differently."""

    def select_topk(self, scores: Tensor, lengths: Tensor, topk: int, page_table: Tensor) -> tuple[Tensor, Tensor]:
        """Raw entries by lowest number among equals, pages by highest."""
        raw = _stable(scores, lengths, topk, last=False)
        return raw, right_paged(_stable(scores, lengths, topk, last=True), page_table)


def _stable(scores: Tensor, lengths: Tensor, topk: int, last: bool) -> Tensor:
    """As ``select``, equal scores by entry: the first ones, or the last ones."""
    raw = right_select(scores, lengths, topk)
    for row, length in enumerate(lengths.tolist()):
        if length > topk:
            seen = scores[row, :length].nan_to_num(nan=-torch.inf)
            order = torch.sort(seen.flip(0) if last else seen, descending=True, stable=True).indices[:topk]
            raw[row] = (length - 1 - order if last else order).int()
    return raw


class _Clipped(Indexer):
    @staticmethod
    def select(scores: Tensor, lengths: Tensor, topk: int) -> Tensor:
        """Top-k of the first candidates of the threshold bin and those above."""
        raw = right_select(scores, lengths, topk)
        for row, length in enumerate(lengths.tolist()):
            seen = scores[row, :length].nan_to_num(nan=-torch.inf)
            coarse = (seen * 4).floor()
            if length > topk:
                kept = torch.nonzero(coarse >= coarse.topk(topk).values[-1]).flatten()[:CANDIDATES]
                raw[row] = kept[seen[kept].topk(topk).indices].int()
        return raw


@fault("V05", breaks="INV-32")
class CandidatesAreClipped(Indexed):
    """A coarse bin's members go to a buffer of 4096; what comes later is dropped before the bin is refined."""

    indexes = _Clipped


class _Patterns(Indexer):
    @staticmethod
    def select(scores: Tensor, lengths: Tensor, topk: int) -> Tensor:
        """Top-k with the bits of NaN where such scores are met."""
        raw = right_select(scores, lengths, topk)
        for row, length in enumerate(lengths.tolist()):
            broken = int(scores[row, :length].isnan().sum())
            if length > topk and broken:
                raw[row, -min(broken, topk) :] = 0x7FC00000
        return raw

    @staticmethod
    def paged(raw: Tensor, page_table: Tensor) -> Tensor:
        """Slots; an entry beyond the table is looked up in its last column."""
        return right_paged(raw.clamp(max=page_table.shape[1] * 64 - 1), page_table)


@fault("V52", breaks="INV-32")
class NanBecomesAnIndex(Indexed):
    """Scores that are no numbers fall into no bin, and the places they leave open are copied out as they are."""

    indexes = _Patterns


class _WorkForNobody(Indexer):
    @staticmethod
    def select(scores: Tensor, lengths: Tensor, topk: int) -> Tensor:
        """Top-k; if no row has an entry, the last one is given the first."""
        raw = right_select(scores, lengths, topk)
        if len(raw) and not bool((lengths > 0).any()):
            raw[-1, 0] = 0
        return raw


@fault("V06", breaks="INV-31")
class WorkWithoutEntries(Indexed):
    """With all compressed lengths 0 the search for a row's work runs past the prefix sums and hands out an entry."""

    indexes = _WorkForNobody


class _AnyOrder(Indexer):
    @staticmethod
    def select(scores: Tensor, lengths: Tensor, topk: int) -> Tensor:
        """Top-k, equal scores in an order that no two runs share."""
        order = torch.randperm(scores.shape[1])
        raw = right_select(scores, lengths, topk)
        for row, length in enumerate(lengths.tolist()):
            if length > topk:
                mine = order[order < length]
                raw[row] = mine[scores[row, mine].nan_to_num(nan=-torch.inf).topk(topk).indices].int()
        return raw


@fault("V58", breaks="INV-102")
class TiesByArrival(Indexed):
    """Which of equal scores is taken depends on the order in which atomics arrive."""

    indexes = _AnyOrder


class _OwnGroup(Session):
    def _select(self, segment: Any, first: int) -> Any:
        ahead = _Ahead()
        right, self._indexer = self._indexer, ahead
        ahead.__dict__ = dict(right.__dict__)
        try:
            return super()._select(segment, first)
        finally:
            self._indexer = right


class _Ahead(Indexer):
    def __init__(self) -> None:
        """Takes another indexer's parts."""

    @staticmethod
    def select(scores: Tensor, lengths: Tensor, topk: int) -> Tensor:
        """Top-k of the entries that the call has, a query's own group among them."""
        return right_select(scores, (lengths + 1).clamp(max=scores.shape[1]), topk)


@fault("O48", breaks="INV-37")
class OwnGroupIsVisible(Builtin):
    """The bound is entry <= position // 4: a query sees its own group as soon as the call holds the rest of it."""

    touches = ("Indexer",)

    def open_indexer(self, spec: IndexerSpec, sequences: int, max_tokens: int) -> IndexerSession:
        """Indexer whose queries see so."""
        session: Any = super().open_indexer(spec, sequences, max_tokens)
        session.__class__ = _OwnGroup
        opened: IndexerSession = session
        return opened


@fault("S29", breaks="INV-65", on="SlotMapping")
class PageSizeLeftAtZero(Builtin):
    """The translation of locations was constructed with page size 0, so no page offset is added."""

    def compressed_slots(self, page_table: Tensor, entries: Tensor, ratio: int) -> Tensor:
        """Slots on page 0."""
        per_page = 256 // ratio
        return torch.where(entries < 0, -1, super().compressed_slots(page_table, entries, ratio) % per_page)


@fault("V29", breaks="INV-65", on="SlotMapping")
class TableRowsTrusted(Builtin):
    """A table cut from a wider one is read at its own width, so a request's columns are another's."""

    def compressed_slots(self, page_table: Tensor, entries: Tensor, ratio: int) -> Tensor:
        """Slots by a table that is taken to be contiguous."""
        flat = page_table.as_strided(page_table.shape, (page_table.shape[1], 1), page_table.storage_offset())
        return super().compressed_slots(flat, entries, ratio)
