"""An indexer written apart from the built-in one, token by token, and wrong ones that differ in one place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from dsv4_conformance.implementations.api import Convention, Identity, Implementation
from dsv4_conformance.implementations.state_api import IndexSegment, Segment, Selection, StateConvention
from dsv4_conformance.spec.weights import CompressorSpec, IndexerSpec
from tests.miniatures.compressor import Ring, roped


def rotation() -> Tensor:
    """The Hadamard matrix of 128 by doubling, over sqrt(128)."""
    matrix = torch.ones(1, 1)
    for _ in range(7):
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / math.sqrt(128)


def through_fp8(x: Tensor) -> Tensor:
    """Rows of 128 as e4m3 with one float32 scale each."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
    codes: Tensor = (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.float() * scale


class Small:
    """A right Indexer session. Keys lie in pages of 64 entries, which are handed out from the end of the pool."""

    def __init__(self, spec: IndexerSpec, sequences: int, max_tokens: int) -> None:
        g = spec.geometry
        self.spec, self.heads, self.topk = spec, g.index_n_heads, g.index_topk
        own = CompressorSpec(4, 128, spec.weights.compressor, spec.table, g.rms_norm_eps)
        self.compressor, self.h = Ring(own, sequences), rotation()
        count = sequences * (max_tokens // 256 + 1)
        self.free = list(range(1, count + 1))
        self.pool = torch.full(((count + 1) * 64, 128), torch.nan)
        self.pages: dict[int, list[int]] = {}

    def push(self, segments: Sequence[IndexSegment]) -> list[Selection]:
        return [self.take(segment) for segment in segments]

    def take(self, segment: IndexSegment) -> Selection:
        """Keys of the segment are stored first, then each of its tokens selects."""
        sequence, start = segment.sequence, self.compressor.lengths.get(segment.sequence, 0)
        entries = self.compressor.push([Segment(sequence, segment.x)])[0]
        first, stop = start // 4, (start + len(segment.x)) // 4
        pages = self.pages.setdefault(sequence, [])
        while len(pages) * 64 < stop + 1:
            pages.append(self.free.pop())
        keys = self.rotated_keys(entries)
        self.pool[self.slots(sequence, first, stop)] = through_fp8(keys) if self.spec.quantised else keys
        positions = torch.arange(start, start + len(segment.x))
        scores = self.scores(segment, positions, self.seen_keys(sequence, stop))
        lengths = self.visible(positions)
        raw = self.select(scores, lengths, self.topk)
        return Selection(raw, self.paged(raw, self.table_of(sequence).expand(len(raw), -1)), scores)

    def slots(self, sequence: int, first: int, stop: int) -> Tensor:
        """Where entries of a sequence lie."""
        entry = torch.arange(first, stop)
        return torch.tensor(self.pages[sequence], dtype=torch.int64)[entry // 64] * 64 + entry % 64

    def table_of(self, sequence: int) -> Tensor:
        """The page table that paged indices are made with."""
        return torch.tensor(self.pages[sequence], dtype=torch.int32)

    def seen_keys(self, sequence: int, stop: int) -> Tensor:
        """The keys that scores are made of."""
        return self.pool[self.slots(sequence, 0, stop)]

    def rotated_keys(self, entries: Tensor) -> Tensor:
        """Index keys of entries."""
        return entries @ self.h

    def rotated_queries(self, iq: Tensor) -> Tensor:
        """Index queries after rope."""
        return iq @ self.h

    def queries(self, qr: Tensor, positions: Tensor) -> Tensor:
        """Index queries ``(T, heads, 128)``."""
        iq = (qr @ self.spec.weights.wq_b.T).view(len(qr), self.heads, 128)
        turned = [roped(one, self.spec.table[position]) for one, position in zip(iq, positions.tolist(), strict=True)]
        iq = self.rotated_queries(torch.stack(turned))
        return through_fp8(iq) if self.spec.quantised else iq

    def head_weights(self, x: Tensor) -> Tensor:
        """Weights of the heads, scaled."""
        return x @ self.spec.weights.weights_proj.T * self.spec.geometry.index_weight_scale

    def scores(self, segment: IndexSegment, positions: Tensor, keys: Tensor) -> Tensor:
        """Scores ``(T, entries)``."""
        products = self.queries(segment.qr, positions) @ keys.T
        return self.combined(self.head_weights(segment.x), products)

    def combined(self, w: Tensor, products: Tensor) -> Tensor:
        """ReLU, then the weighted sum over heads."""
        return (w[..., None] * products.relu()).sum(1)

    def visible(self, positions: Tensor) -> Tensor:
        """Entries each token sees."""
        return (positions + 1) // 4

    @classmethod
    def select(cls, scores: Tensor, lengths: Tensor, topk: int) -> Tensor:
        """Raw int32 ``(T, topk)``."""
        raw = torch.full((len(scores), topk), -1, dtype=torch.int32)
        for row, length in enumerate(lengths.tolist()):
            raw[row, : min(length, topk)] = cls.chosen(scores[row], length, topk).to(torch.int32)
        return raw

    @classmethod
    def chosen(cls, scores: Tensor, length: int, topk: int) -> Tensor:
        """The min(length, topk) entries of one row."""
        return torch.arange(length) if length <= topk else scores[:length].topk(topk).indices

    @classmethod
    def paged(cls, raw: Tensor, table: Tensor) -> Tensor:
        """Slots of raw indices."""
        entry = raw.clamp(min=0).long()
        slots = table.long().gather(1, entry // 64) * 64 + entry % 64
        return torch.where(raw < 0, -1, slots).to(torch.int32)

    def truncate(self, sequence: int, length: int) -> None:
        self.compressor.truncate(sequence, length)

    def release(self, sequence: int) -> None:
        self.compressor.release(sequence)
        self.free += self.pages.pop(sequence)

    def keys(self, sequence: int) -> Tensor:
        return self.pool[self.slots(sequence, 0, self.compressor.lengths[sequence] // 4)]

    def page_table(self, sequence: int) -> Tensor:
        return torch.tensor(self.pages[sequence], dtype=torch.int32)


class Indexing(Implementation):
    """Offers the indexer of this module, right; subclasses name another session."""

    identity: ClassVar[Identity] = Identity("Indexing", "1", "https://example.org/miniatures", kind="engine")
    surfaces: ClassVar[dict[str, Convention]] = {"Indexer": StateConvention()}
    session: ClassVar[type[Small]] = Small

    def open_indexer(self, spec: IndexerSpec, sequences: int, max_tokens: int) -> Small:
        return self.session(spec, sequences, max_tokens)

    def select_topk(self, scores: Tensor, lengths: Tensor, topk: int, page_table: Tensor) -> tuple[Tensor, Tensor]:
        raw = self.session.select(scores, lengths, topk)
        return raw, self.session.paged(raw, page_table)


def adapter(session: type[Small]) -> type[Implementation]:
    """The adapter that opens such sessions."""
    return type(session.__name__, (Indexing,), {"session": session})


class EntriesOneTokenLate(Small):
    """n(t) = q // 4."""

    def visible(self, positions: Tensor) -> Tensor:
        return positions // 4


class UnfinishedGroupSeen(Small):
    """Bound k <= q // 4: a query sees its own group once the call holds all of it."""

    def visible(self, positions: Tensor) -> Tensor:
        return (positions // 4 + 1).clamp(max=int(positions[-1] + 1) // 4)


class CountOfTheLastToken(Small):
    """All tokens of a call see what the last one sees."""

    def visible(self, positions: Tensor) -> Tensor:
        return super().visible(positions[-1:]).expand(len(positions))


class ReluAfterTheWeight(Small):
    """relu(w q k)."""

    def combined(self, w: Tensor, products: Tensor) -> Tensor:
        return (w[..., None] * products).relu().sum(1)


class ReluAfterTheSum(Small):
    """ReLU of the finished score."""

    def combined(self, w: Tensor, products: Tensor) -> Tensor:
        return (w[..., None] * products).sum(1).relu()


class NoRelu(Small):
    """Negative products subtract."""

    def combined(self, w: Tensor, products: Tensor) -> Tensor:
        return (w[..., None] * products).sum(1)


class SigmoidOfTheWeights(Small):
    """Weights between 0 and 1."""

    def head_weights(self, x: Tensor) -> Tensor:
        return (x @ self.spec.weights.weights_proj.T).sigmoid() * self.spec.geometry.index_weight_scale


class SignOfTheWeightsLost(Small):
    """|w|."""

    def head_weights(self, x: Tensor) -> Tensor:
        return super().head_weights(x).abs()


class WeightScaleForgotten(Small):
    """Head weights without 128^-0.5 heads^-0.5."""

    def head_weights(self, x: Tensor) -> Tensor:
        return x @ self.spec.weights.weights_proj.T


class WeightsOfTheNextHead(Small):
    """Head h gets the weight of head h + 1."""

    def head_weights(self, x: Tensor) -> Tensor:
        return super().head_weights(x).roll(-1, 1)


class HadamardOnKeysAlone(Small):
    """Queries are not rotated."""

    def rotated_queries(self, iq: Tensor) -> Tensor:
        return iq


class HadamardOnQueriesAlone(Small):
    """Keys are not rotated."""

    def rotated_keys(self, entries: Tensor) -> Tensor:
        return entries


class HadamardNowhere(Small):
    """Neither side is rotated: scores are right, what is stored is not."""

    def rotated_keys(self, entries: Tensor) -> Tensor:
        return entries

    def rotated_queries(self, iq: Tensor) -> Tensor:
        return iq


class QueriesNotRoped(Small):
    """Index queries without their position."""

    def queries(self, qr: Tensor, positions: Tensor) -> Tensor:
        return super().queries(qr, torch.zeros_like(positions))


class QueriesRopedAtTheCallsStart(Small):
    """One position for all tokens of a call."""

    def queries(self, qr: Tensor, positions: Tensor) -> Tensor:
        return super().queries(qr, positions[:1].expand(len(positions)))


class KeyScalesForgotten(Small):
    """Scores read the codes of quantised keys."""

    def seen_keys(self, sequence: int, stop: int) -> Tensor:
        keys = super().seen_keys(sequence, stop)
        return keys / keys.abs().amax(1, keepdim=True) * 448 if self.spec.quantised and stop else keys


class KeysOfAnotherSequence(Small):
    """Scores read the pages of the first sequence."""

    def seen_keys(self, sequence: int, stop: int) -> Tensor:
        first = min(self.pages)
        return super().seen_keys(first if len(self.pages[first]) >= len(self.pages[sequence]) else sequence, stop)


class StaleKeysAfterARejection(Small):
    """Entries whose drafts were rejected keep their keys."""

    def __init__(self, spec: IndexerSpec, sequences: int, max_tokens: int) -> None:
        super().__init__(spec, sequences, max_tokens)
        self.reached: dict[int, Tensor] = {}

    def take(self, segment: IndexSegment) -> Selection:
        before = self.reached.get(segment.sequence, torch.empty(0, 128))
        done = super().take(segment)
        held = self.compressor.lengths[segment.sequence] // 4
        first = held - self.new_entries(segment)
        kept = before[first:held]
        self.pool[self.slots(segment.sequence, first, first + len(kept))] = kept
        self.reached[segment.sequence] = self.keys(segment.sequence).clone() if held >= len(before) else before
        return done

    def new_entries(self, segment: IndexSegment) -> int:
        length = self.compressor.lengths[segment.sequence]
        return length // 4 - (length - len(segment.x)) // 4

    def release(self, sequence: int) -> None:
        super().release(sequence)
        self.reached.pop(sequence, None)
