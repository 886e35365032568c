"""Indexers whose selection or paged indices are wrong in one place each."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.miniatures.indexer import Small


class TopkMinusOne(Small):
    """Selects one entry too few where there are more than index_topk."""

    @classmethod
    def select(cls, scores: Tensor, lengths: Tensor, topk: int) -> Tensor:
        raw = super().select(scores, lengths, topk)
        raw[lengths > topk, -1] = -1
        return raw


class TopkOfAnotherModel(Small):
    """Takes 512 entries, whatever the model's index_topk."""

    @classmethod
    def select(cls, scores: Tensor, lengths: Tensor, topk: int) -> Tensor:
        raw = super().select(scores, lengths, topk)
        raw[:, 512:] = -1
        return raw


class ScoresReadWhereAllAreSelected(Small):
    """Rows of few entries go through the scores, and what is not a number is left out."""

    @classmethod
    def chosen(cls, scores: Tensor, length: int, topk: int) -> Tensor:
        if length > topk:
            return super().chosen(scores, length, topk)
        entries = torch.arange(length)
        return torch.where(scores[:length].isnan(), -1, entries)


class SelectsTwice(Small):
    """Fills the last place with the first entry again."""

    @classmethod
    def chosen(cls, scores: Tensor, length: int, topk: int) -> Tensor:
        found = super().chosen(scores, length, topk).clone()
        found[-1:] = found[:1]
        return found


class EntriesBeyondTheLength(Small):
    """Looks at all scores of a row."""

    @classmethod
    def chosen(cls, scores: Tensor, length: int, topk: int) -> Tensor:
        return scores.topk(topk).indices if length > topk else super().chosen(scores, length, topk)


class HolesInFront(Small):
    """Puts -1 before the entries."""

    @classmethod
    def select(cls, scores: Tensor, lengths: Tensor, topk: int) -> Tensor:
        return super().select(scores, lengths, topk).flip(1)


class TailNotFilled(Small):
    """Leaves the caller's buffer as it is behind the entries."""

    @classmethod
    def select(cls, scores: Tensor, lengths: Tensor, topk: int) -> Tensor:
        raw = super().select(scores, lengths, topk)
        return torch.where(raw == -1, 0, raw)


class CandidatesClipped(Small):
    """Keeps the first 4096 candidates of the topmost coarse bin that has enough of them."""

    @classmethod
    def chosen(cls, scores: Tensor, length: int, topk: int) -> Tensor:
        if length <= topk:
            return torch.arange(length)
        coarse = (scores[:length] * 4).floor()
        candidates = torch.nonzero(coarse >= coarse.topk(topk).values[-1]).flatten()[:4096]
        return candidates[scores[candidates].topk(min(topk, len(candidates))).indices]


class ScoresInBf16(Small):
    """Selects by scores that were rounded to bf16."""

    @classmethod
    def chosen(cls, scores: Tensor, length: int, topk: int) -> Tensor:
        return super().chosen(scores.bfloat16().float(), length, topk)


class LowestScores(Small):
    """Sorts the wrong way."""

    @classmethod
    def chosen(cls, scores: Tensor, length: int, topk: int) -> Tensor:
        return super().chosen(-scores, length, topk)


class NanBecomesAnIndex(Small):
    """Returns bit patterns of NaN where scores are NaN."""

    @classmethod
    def chosen(cls, scores: Tensor, length: int, topk: int) -> Tensor:
        found = super().chosen(scores, length, topk)
        return torch.where(scores[found].isnan(), 0x7FC00000, found) if length > topk else found


class HoleOfThePageBefore(Small):
    """Maps -1 like an entry: to the last slot before a page."""

    @classmethod
    def paged(cls, raw: Tensor, table: Tensor) -> Tensor:
        entry = raw.long()
        return (table.long().gather(1, entry.clamp(min=0) // 64) * 64 + entry % 64 - 64 * (entry < 0)).to(torch.int32)


class HolesAsSlotZero(Small):
    """Maps -1 to slot 0."""

    @classmethod
    def paged(cls, raw: Tensor, table: Tensor) -> Tensor:
        return super().paged(raw, table).clamp(min=0)


class SlotsThroughFloat32(Small):
    """Computes slots in float32."""

    @classmethod
    def paged(cls, raw: Tensor, table: Tensor) -> Tensor:
        entry = raw.clamp(min=0).long()
        slots = table.float().gather(1, entry // 64) * 64 + (entry % 64).float()
        return torch.where(raw < 0, -1, slots.clamp(max=2.0**31 - 128)).to(torch.int32)


class SlotsOfTheFirstRow(Small):
    """Maps every row through the first row's pages."""

    @classmethod
    def paged(cls, raw: Tensor, table: Tensor) -> Tensor:
        return super().paged(raw, table[:1].expand(len(raw), -1))


class SlotsOfTheFirstSequence(Small):
    """Maps every sequence through the pages of the first."""

    def table_of(self, sequence: int) -> Tensor:
        first, own = super().table_of(min(self.pages)), super().table_of(sequence)
        return first if len(first) >= len(own) else own
