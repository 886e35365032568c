"""A compressor written apart from the built-in one, token by token on a ring; wrong ones differ in one place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from dsv4_conformance.implementations.api import Convention, Identity, Implementation
from dsv4_conformance.implementations.state_api import Segment, StateConvention
from dsv4_conformance.spec.weights import CompressorSpec


class Ring:
    """A right Compressor session: every token's ``[u | g]`` goes to its sequence's ring, then its window is pooled."""

    windows = 2
    """Windows that the ring holds: one, and as many tokens again for drafts."""

    def __init__(self, spec: CompressorSpec, sequences: int) -> None:
        self.spec, self.r, self.d = spec, spec.ratio, spec.dim
        self.window = 8 if self.r == 4 else 128
        self.ring = self.window * self.windows
        self.storage = torch.zeros(sequences, self.ring, 2 * len(spec.weights.wkv))
        self.rows: dict[int, int] = {}
        self.lengths: dict[int, int] = {}

    def push(self, segments: Sequence[Segment]) -> list[Tensor]:
        return [self.take(place, segment) for place, segment in enumerate(segments)]

    def truncate(self, sequence: int, length: int) -> None:
        self.lengths[sequence] = length

    def release(self, sequence: int) -> None:
        del self.rows[sequence], self.lengths[sequence]

    def state(self) -> list[Tensor]:
        return [self.storage]

    def row(self, sequence: int, place: int) -> int:
        """The state row of a sequence."""
        if sequence not in self.rows:
            self.rows[sequence] = min(set(range(len(self.storage))) - set(self.rows.values()))
        return self.rows[sequence]

    def take(self, place: int, segment: Segment) -> Tensor:
        """The entries that a segment completes."""
        row, start = self.row(segment.sequence, place), self.lengths.get(segment.sequence, 0)
        weights = self.spec.weights
        ug = self.stored(torch.cat((segment.x @ weights.wkv.T, segment.x @ weights.wgate.T), 1))
        entries = []
        for place, position in enumerate(range(start, start + len(ug))):
            self.write(row, position, ug[place])
            if self.completes(position):
                entries.append(self.entry(row, position, start))
        self.lengths[segment.sequence] = start + len(ug)
        return torch.stack(entries) if entries else torch.empty(0, self.d)

    def stored(self, ug: Tensor) -> Tensor:
        """Projections as the state holds them."""
        return ug

    def write(self, row: int, position: int, ug: Tensor) -> None:
        """Put a token into the ring."""
        self.storage[row, position % self.ring] = ug

    def completes(self, position: int) -> bool:
        """Whether an entry is complete with this token."""
        return (position + 1) % self.r == 0

    def entry(self, row: int, last: int, start: int) -> Tensor:
        """The entry whose last token stands at ``last``; the call began at ``start``."""
        positions = torch.arange(last + 1 - self.window, last + 1)
        u, g = self.storage[row, positions % self.ring].chunk(2, 1)
        values, scores = self.halves(u), self.halves(g + self.bias(positions, start))
        present = self.present(positions, start)[:, None]
        values, scores = values.masked_fill(~present, 0), scores.masked_fill(~present, -math.inf)
        return self.finished(self.pooled(values, scores), last)

    def bias(self, positions: Tensor, start: int) -> Tensor:
        """What is added to each token's gate."""
        return self.spec.weights.ape[positions % self.r]

    def halves(self, rows: Tensor) -> Tensor:
        """The half of each slot's channels that takes part: A of the window before, B of the own one."""
        return torch.cat((rows[:4, : self.d], rows[4:, self.d :])) if self.r == 4 else rows

    def present(self, positions: Tensor, start: int) -> Tensor:
        """Which slots hold a token."""
        return positions >= 0

    def pooled(self, values: Tensor, scores: Tensor) -> Tensor:
        """Values weighted by the softmax of their scores, per channel."""
        return (scores.softmax(0) * values).sum(0)

    def finished(self, pooled: Tensor, last: int) -> Tensor:
        """Normed, then roped at the window's first token."""
        normed = pooled * torch.rsqrt(pooled.square().mean() + self.spec.eps) * self.spec.weights.norm
        return roped(normed, self.spec.table[self.position(last)])

    def position(self, last: int) -> int:
        """Position that an entry is roped at."""
        return last + 1 - self.r


def roped(x: Tensor, table: Tensor) -> Tensor:
    """The last 64 dims of ``(..., D)`` turned by cos and sin of ``table (64,)``, interleaved."""
    cos, sin = table[::2], table[1::2]
    a, b = x[..., -64::2], x[..., -63::2]
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((x[..., :-64], turned), -1)


class ApeTwice(Ring):
    """Adds the position's bias twice."""

    def bias(self, positions: Tensor, start: int) -> Tensor:
        return super().bias(positions, start) * 2


class ApeByPlaceInChunk(Ring):
    """Takes the bias by a token's place in its call."""

    def bias(self, positions: Tensor, start: int) -> Tensor:
        return super().bias(positions - start, start)


class OverlapReadInTheFirstWindow(Ring):
    """Pools the slots before a sequence's first token, whatever they hold."""

    def present(self, positions: Tensor, start: int) -> Tensor:
        return torch.ones_like(positions, dtype=torch.bool)


class OldStateRead(Ring):
    """The same on storage that is right when new: score minus infinity, value 0."""

    def __init__(self, spec: CompressorSpec, sequences: int) -> None:
        super().__init__(spec, sequences)
        self.storage[..., self.storage.shape[-1] // 2 :] = -math.inf

    def present(self, positions: Tensor, start: int) -> Tensor:
        return torch.ones_like(positions, dtype=torch.bool)


class HalvesSwapped(Ring):
    """Takes B of the window before and A of the own one."""

    def halves(self, rows: Tensor) -> Tensor:
        return torch.cat((rows[:4, self.d :], rows[4:, : self.d])) if self.r == 4 else rows


class EntryOneTokenLate(Ring):
    """Takes q // r for (q + 1) // r: an entry comes with the first token after its window."""

    def completes(self, position: int) -> bool:
        return position > 0 and position % self.r == 0

    def entry(self, row: int, last: int, start: int) -> Tensor:
        return super().entry(row, last - 1, start)


class EntryOneTokenEarly(Ring):
    """Emits an entry before its last token."""

    def completes(self, position: int) -> bool:
        return (position + 2) % self.r == 0

    def entry(self, row: int, last: int, start: int) -> Tensor:
        return super().entry(row, last + 1, start)


class UnfinishedWindowEmitted(Ring):
    """Rounds the number of entries of a call up."""

    def take(self, place: int, segment: Segment) -> Tensor:
        entries = super().take(place, segment)
        length = self.lengths[segment.sequence]
        return torch.cat((entries, torch.zeros(1, self.d))) if length % self.r and len(segment.x) > 1 else entries


class SoftmaxOverChannels(Ring):
    """Normalises scores over the channels of a slot."""

    def pooled(self, values: Tensor, scores: Tensor) -> Tensor:
        return (scores.softmax(1).nan_to_num() * values).sum(0)


class OneWeightPerSlot(Ring):
    """Pools all channels with the weights of the mean score."""

    def pooled(self, values: Tensor, scores: Tensor) -> Tensor:
        return (scores.mean(1, keepdim=True).softmax(0) * values).sum(0)


class SoftmaxWithoutMaximum(Ring):
    """Exponentiates scores as they are."""

    def pooled(self, values: Tensor, scores: Tensor) -> Tensor:
        return (scores.exp() * values).sum(0) / scores.exp().sum(0)


class MeanOfTheSlots(Ring):
    """Ignores scores."""

    def pooled(self, values: Tensor, scores: Tensor) -> Tensor:
        return values.sum(0) / scores.isfinite().sum(0)


class MeanDividesByAllSlots(Ring):
    """Lets missing slots count as value 0 of score 0."""

    def pooled(self, values: Tensor, scores: Tensor) -> Tensor:
        return super().pooled(values, scores.masked_fill(scores.isneginf(), 0))


class TruncateForgotten(Ring):
    """Keeps rejected drafts."""

    def truncate(self, sequence: int, length: int) -> None:
        """Nothing."""


class RingWithoutRoomForDrafts(Ring):
    """Rejected drafts have overwritten what later windows pool."""

    windows = 1


class DraftsWrittenBeforePooling(Ring):
    """Writes all tokens of a call to a ring of one window, then pools."""

    windows = 1

    def take(self, place: int, segment: Segment) -> Tensor:
        row, start = self.row(segment.sequence, place), self.lengths.get(segment.sequence, 0)
        weights = self.spec.weights
        ug = torch.cat((segment.x @ weights.wkv.T, segment.x @ weights.wgate.T), 1)
        for place, position in enumerate(range(start, start + len(ug))):
            self.write(row, position, ug[place])
        self.lengths[segment.sequence] = start + len(ug)
        last = [position for position in range(start, start + len(ug)) if self.completes(position)]
        return torch.stack([self.entry(row, p, start) for p in last]) if last else torch.empty(0, self.d)


class ChunkLosesTheOverlap(Ring):
    """Pools the window before only if it was given in the same call."""

    def present(self, positions: Tensor, start: int) -> Tensor:
        own = positions[-1] - self.r
        return (positions >= 0) & ((positions > own) | (own + 1 - self.r >= start))


class StateRowsByPlaceInCall(Ring):
    """Gives the first segment of a call the first state row, whoever it is."""

    def row(self, sequence: int, place: int) -> int:
        super().row(sequence, place)
        return place


class WindowsCutOnTheJoinedAxis(Ring):
    """Pools over the tokens of a call one after the other, as if they were one sequence."""

    def push(self, segments: Sequence[Segment]) -> list[Tensor]:
        out = []
        for place, segment in enumerate(segments):
            if place and segment.sequence not in self.rows:
                before, row = segments[place - 1].sequence, self.row(segment.sequence, place)
                self.storage[row] = self.storage[self.rows[before]].roll(-self.lengths[before], 0)
                self.joined = segment.sequence
            out.append(self.take(place, segment))
        self.joined = -1
        return out

    joined = -1

    def present(self, positions: Tensor, start: int) -> Tensor:
        return torch.ones_like(positions, dtype=torch.bool) if self.joined >= 0 else positions >= 0


class StateInBf16(Ring):
    """Keeps projections in bf16 and declares float32."""

    def stored(self, ug: Tensor) -> Tensor:
        return ug.bfloat16().float()


class RopeAtTheLastToken(Ring):
    """Ropes an entry at its last token."""

    def position(self, last: int) -> int:
        return last


class RopeAtTheEntryNumber(Ring):
    """Ropes entry i at position i."""

    def position(self, last: int) -> int:
        return last // self.r


class NotRoped(Ring):
    """Leaves entries as the norm made them."""

    def finished(self, pooled: Tensor, last: int) -> Tensor:
        return pooled * torch.rsqrt(pooled.square().mean() + self.spec.eps) * self.spec.weights.norm


class RopeBeforeTheNorm(Ring):
    """Turns the pooled vector, then norms it with weights that differ within a pair."""

    def finished(self, pooled: Tensor, last: int) -> Tensor:
        turned = roped(pooled, self.spec.table[self.position(last)])
        return turned * torch.rsqrt(turned.square().mean() + self.spec.eps) * self.spec.weights.norm


class NormBeforePooling(Ring):
    """Norms every value and not the pooled vector."""

    def pooled(self, values: Tensor, scores: Tensor) -> Tensor:
        normed = values * torch.rsqrt(values.square().mean(1, keepdim=True) + self.spec.eps)
        return super().pooled(normed, scores)

    def finished(self, pooled: Tensor, last: int) -> Tensor:
        return roped(pooled * self.spec.weights.norm, self.spec.table[self.position(last)])


class Compressing(Implementation):
    """Offers the compressor of this module, right; subclasses name another session."""

    identity: ClassVar[Identity] = Identity("Compressing", "1", "https://example.org/miniatures", kind="engine")
    surfaces: ClassVar[dict[str, Convention]] = {"Compressor": StateConvention()}
    session: ClassVar[type[Ring]] = Ring

    def open_compressor(self, spec: CompressorSpec, sequences: int) -> Ring:
        return self.session(spec, sequences)


def adapter(session: type[Ring]) -> type[Implementation]:
    """The adapter that opens such sessions."""
    return type(session.__name__, (Compressing,), {"session": session})
