"""Index scores and the keys behind them (spec §7)."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from dsv4_conformance.faults.fault import fault
from dsv4_conformance.faults.layers import Layered
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.sessions import IndexerSession
from dsv4_conformance.mla.indexer import Indexer
from dsv4_conformance.mla.kernels import kv_format
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.pools import IndexKeyPool
from dsv4_conformance.mla.topk import paged as right_paged
from dsv4_conformance.mla.topk import select as right_select
from dsv4_conformance.spec.weights import IndexerSpec

SLICE = 16
"""Query rows that are scored or selected at a time where a batch is sliced."""


class Scored(Indexer):
    """Scores made in the open: which keys, how heads are weighed, how products are joined."""

    def slots(self, page_table: Tensor, entry: Tensor, page_size: int) -> Tensor:
        """Slots of entries, -1 on a page < 0."""
        pages = page_table.long()[:, entry // page_size]
        return torch.where(pages < 0, -1, pages * page_size + entry % page_size)

    def joined(self, w: Tensor, products: Tensor) -> Tensor:
        """Scores ``(T, n)`` of products ``(T, heads, n)``."""
        return (w[..., None] * products.relu()).sum(1)

    def scores_paged(self, iq: Tensor, w: Tensor, pool: IndexKeyPool, page_table: Tensor, entries: int) -> Tensor:
        """As Indexer.scores_paged, with the methods above."""
        slots = self.slots(page_table, torch.arange(entries, device=iq.device), pool.page_size)
        keys = pool.load(slots).expand(len(iq), -1, -1)
        return self.joined(w, iq @ keys.transpose(1, 2))


class Indexed(Builtin):
    """The built-in indexer, right; subclasses name another class."""

    touches: ClassVar[tuple[str, ...]] = ("Indexer",)
    indexes: ClassVar[type[Indexer]] = Indexer

    def open_indexer(self, spec: IndexerSpec, sequences: int, max_tokens: int) -> IndexerSession:
        """Indexer of the other class."""
        session: Any = super().open_indexer(spec, sequences, max_tokens)
        session._indexer.__class__ = self.indexes
        return cast("IndexerSession", session)

    def select_topk(self, scores: Tensor, lengths: Tensor, topk: int, page_table: Tensor) -> tuple[Tensor, Tensor]:
        """Indexer: selection by the other class."""
        raw = self.indexes.select(scores, lengths, topk)
        return raw, self.indexes.paged(raw, page_table)


class _NoRelu(Scored):
    def joined(self, w: Tensor, products: Tensor) -> Tensor:
        """Negative products subtract."""
        return (w[..., None] * products).sum(1)


@fault("V43", breaks="INV-36")
class NegativeProductsSubtract(Indexed):
    """The ReLU between a head's product and its weight is left out."""

    indexes = _NoRelu


class _Sigmoid(Scored):
    def joined(self, w: Tensor, products: Tensor) -> Tensor:
        """Mean over heads, by weights between 0 and 1."""
        return ((w / self._weight_scale).sigmoid()[..., None] * products.relu()).mean(1)


@fault("O28", breaks="INV-34")
class MeanOfSigmoidWeights(Indexed):
    """Head weights go through a sigmoid, and heads are averaged: no weight counts against an entry any more."""

    indexes = _Sigmoid


class _Shuffled(Scored):
    def slots(self, page_table: Tensor, entry: Tensor, page_size: int) -> Tensor:
        """Slots of entries in tiles of 16 that a writer would have shuffled."""
        place = entry % 16
        return super().slots(page_table, entry - place + place % 4 * 4 + place // 4, page_size)


@fault("V12", breaks="INV-33")
class KeysReadThroughAShuffle(Indexed):
    """The reader takes keys to lie in shuffled tiles of 16, and the writer has put them in order."""

    indexes = _Shuffled


class _ColumnPerToken(Scored):
    def slots(self, page_table: Tensor, entry: Tensor, page_size: int) -> Tensor:
        """Slots whose page is looked up by the entry itself."""
        column = entry.clamp(max=page_table.shape[1] - 1)
        pages = page_table.long()[:, column]
        return torch.where(pages < 0, -1, pages * page_size + entry % page_size)


@fault("O05", breaks="INV-37")
class TableIndexedByEntry(Indexed):
    """The page table is indexed by entry, as if a page held one; columns beyond its end repeat the last."""

    indexes = _ColumnPerToken


class _TailRows(Scored):
    def scores_paged(self, *given: Any) -> Tensor:
        """Scores of whole tiles of four rows; the rest keep what stood there."""
        scores = super().scores_paged(*given)
        scores[len(scores) // 4 * 4 :] = 0
        return scores


@fault("O06", breaks="INV-37")
class TailRowsNotWritten(Indexed):
    """The number of rows is divided by a tile's and rounded down: the last rows of the logits are not written."""

    indexes = _TailRows


class _GatheredOnce(Scored):
    def scores_paged(self, *given: Any) -> Tensor:
        """Scores whose rows behind the first slice meet keys of an empty buffer."""
        scores = super().scores_paged(*given)
        scores[SLICE:] = 0
        return scores


@fault("V57", breaks="INV-33")
class LaterSlicesReadAnEmptyBuffer(Indexed):
    """Keys are gathered for the first slice of a long prompt; later ones, flagged to skip that, read a fresh buffer."""

    indexes = _GatheredOnce


class _OtherDialect(Indexer):
    def queries(self, x: Tensor, qr: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Queries whose codes are read as e4m3fnuz."""
        iq, w = super().queries(x, qr, positions)
        if self.quantised:
            codes, scale = kv_format.quantise_index_keys(iq)
            iq = codes.view(torch.float8_e4m3fnuz).float() * scale
        return iq, w


@fault("S41", breaks="INV-33")
class QueriesInAnotherDialect(Indexed):
    """Query codes are written as e4m3fn and read as e4m3fnuz: half the value, and -0 is not a number."""

    indexes = _OtherDialect


class _BatchScale(Indexer):
    def queries(self, x: Tensor, qr: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Queries quantised under the largest scale of the call."""
        wanted, self.quantised = self.quantised, False
        try:
            iq, w = super().queries(x, qr, positions)
        finally:
            self.quantised = wanted
        if wanted:
            scale = iq.abs().amax().clamp(min=1e-4) / 448
            iq = (iq / scale).to(torch.float8_e4m3fn).float() * scale
        return iq, w


@fault("T08", breaks="INV-37")
class ScaleOfTheWholeCall(Indexed):
    """Index queries are quantised under one scale for all rows of a call, so a row's selection changes with others."""

    indexes = _BatchScale


class _Tokens(Indexer):
    @staticmethod
    def select(scores: Tensor, lengths: Tensor, topk: int) -> Tensor:
        """Entries below a length that counts four times as many."""
        width = scores.shape[1]
        return right_select(torch.nn.functional.pad(scores, (0, 3 * width)), lengths * 4, topk)

    @staticmethod
    def paged(raw: Tensor, page_table: Tensor) -> Tensor:
        """Slots of entries, those beyond the table from its last page."""
        return right_paged(raw.clamp(max=page_table.shape[1] * 64 - 1), page_table)


@fault("T01", breaks="INV-31")
class LengthsInTokens(Indexed):
    """Lengths stay in tokens where the compressed axis is meant: entries are named that do not exist."""

    indexes = _Tokens


class _FirstSlice(Indexer):
    @staticmethod
    def select(scores: Tensor, lengths: Tensor, topk: int) -> Tensor:
        """Selections by the lengths of the first slice's rows."""
        return right_select(scores, lengths[torch.arange(len(lengths)) % SLICE], topk)


@fault("S38", breaks="INV-37")
class LengthsOfTheFirstSlice(Indexed):
    """A long chunk is scored in slices of rows, and all of them go by the lengths of the first."""

    indexes = _FirstSlice


@fault("V56", breaks="INV-42")
class SelectionOfAnEarlierStep(Layered):
    """A layer that reuses a predecessor's selection has none in its stage and reads that of the step before."""

    def change(self, layer: AttentionLayer) -> None:
        """Select in every second step; in between take the rows that are there."""
        index = layer.caches.indexer
        if index is None:
            return
        kept: list[Tensor] = []

        def select(scores: Tensor, lengths: Tensor, topk: int) -> Tensor:
            fresh = right_select(scores, lengths, topk)
            if kept and len(kept[0]) >= len(fresh):
                old = kept.pop()[: len(fresh)]
                return torch.where(old < lengths[:, None], old, -1).int()
            kept[:] = [fresh]
            return fresh

        vars(index)["select"] = select


@fault("V46", breaks="INV-30")
class PrefixWithoutIndexKeys(Layered):
    """A restored prefix brings its rows and no index keys, since a key is written only where its token is prefilled."""

    def change(self, layer: AttentionLayer) -> None:
        """Zero keys on pages that came with a prefix."""
        pool = layer.caches.index_keys
        if pool is None:
            return
        load, restored, fork = pool.load, set[int](), layer.sequences.fork

        def forked(source: int, target: int, length: int) -> Any:
            made = fork(source, target, length)
            restored.update(made.pages)
            return made

        def loaded(slots: Tensor) -> Tensor:
            missing = torch.isin(slots // pool.page_size, torch.tensor(sorted(restored), dtype=slots.dtype))
            return load(slots).masked_fill(missing[..., None], 0)

        vars(layer.sequences)["fork"], vars(pool)["load"] = forked, loaded
