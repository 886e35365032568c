"""Compressor state across chunks, decode steps, drafts and sequences, and what becomes of an entry (spec §5, §6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor

from dsv4_conformance.faults.fault import fault
from dsv4_conformance.faults.layers import Layered, patch
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.mla import compressor
from dsv4_conformance.mla.compressor import Compressor
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.rope import apply_rope
from dsv4_conformance.mla.sessions import CompressorSession
from dsv4_conformance.spec.weights import CompressorSpec

DRAFTS = 8
"""A call of at most this many tokens may be a verify step."""


class Pooling(Builtin):
    """The built-in compressor, right; subclasses name another class, in sessions of it and in layers."""

    touches: ClassVar[tuple[str, ...]] = ("Compressor",)
    pools: ClassVar[type[Compressor]] = Compressor

    def open_compressor(self, spec: CompressorSpec, sequences: int) -> CompressorSession:
        """Compressor of the other class."""
        session = super().open_compressor(spec, sequences)
        session._compressor.__class__ = self.pools
        return session


class _RingOfFourDrafts(Compressor):
    def can_resume(self, length: int, reached: int) -> bool:
        """Whatever was asked, as planned for the tokens that will be accepted."""
        return True


@fault("S26", breaks="INV-20")
class FourDraftsStayResident(Pooling):
    """The ring has room for four draft tokens beside its window; of eight that are rejected it has lost four."""

    pools = _RingOfFourDrafts

    def open_compressor(self, spec: CompressorSpec, sequences: int) -> CompressorSession:
        """A session on smaller rings."""
        with mock.patch.dict(compressor.RINGS, {4: 8 + 4, 128: 128 + 4}):
            return super().open_compressor(spec, sequences)


class _LastWindowStored(Compressor):
    def _write(self, state_row: int, start: int, chunk: Tensor) -> None:
        if len(chunk) <= DRAFTS:
            skipped = min(max(self._first_needed(start + len(chunk)) - start, 0), len(chunk))
            start, chunk = start + skipped, chunk[skipped:]
        super()._write(state_row, start, chunk)


@fault("O12", breaks="INV-20")
class VerifyStoresItsLastWindow(Pooling):
    """A step of several tokens stores what the token after it needs; a step after fewer accepted ones needs more."""

    pools = _LastWindowStored


class _NewestMissing(Compressor):
    def _write(self, state_row: int, start: int, chunk: Tensor) -> None:
        if len(chunk) != 1 or (start + 1) % self.ratio:
            super()._write(state_row, start, chunk)


@fault("O29", breaks="INV-20")
class NewestTokenOfTheOverlapLost(Pooling):
    """A decoded token that completes an entry is not appended to the overlap that the next entry pools."""

    pools = _NewestMissing


class _OneWindow(Compressor):
    def _tokens(self, state_row: int, start: int, chunk: Tensor) -> Tensor:
        tokens = super()._tokens(state_row, start, chunk)
        before = (start % self.ratio) + self.window - self.ratio if self.overlapping else 0
        if before and start >= self.ratio:
            tokens = torch.cat((self.nothing.expand(self.window - self.ratio, -1), tokens[self.window - self.ratio :]))
        return tokens


@fault("O30", breaks="INV-20")
class WindowBeforeIsEmpty(Pooling):
    """The window before is found by a shift inside the call; where the call begins it has no part in the entry."""

    pools = _OneWindow


class _WrittenFirst(Compressor):
    def _tokens(self, state_row: int, start: int, chunk: Tensor) -> Tensor:
        tokens = super()._tokens(state_row, start, chunk)
        over = len(tokens) - self.window
        if len(chunk) <= DRAFTS and over > 0:
            tokens = torch.cat((tokens[self.window :], tokens[over:]))
        return tokens


@fault("O54", breaks="INV-20")
class LaterTokensReplaceEarlierOnes(Pooling):
    """All tokens of a step are written to a ring of one window before any entry is pooled from it."""

    pools = _WrittenFirst


class _ByPlace(CompressorSession):
    def _grow(self, segments: Sequence[Any]) -> list[tuple[int, int, int]]:
        return [(place + 1, first, n) for place, (_, first, n) in enumerate(super()._grow(segments))]


@fault("O21", breaks="INV-21")
class StateByPlaceInTheBatch(Pooling):
    """State is saved and restored by a sequence's place in the batch."""

    def open_compressor(self, spec: CompressorSpec, sequences: int) -> CompressorSession:
        """A session that numbers rows so."""
        session = super().open_compressor(spec, sequences)
        session.__class__ = _ByPlace
        return session


class _Packed(Compressor):
    def extend(self, ug: Tensor, rows: Sequence[tuple[int, int, int]]) -> tuple[Tensor, Tensor]:
        """Chunks of a packed axis: a first window reaches back over the border."""
        with mock.patch.object(self, "packed", ug, create=True):
            return super().extend(ug, rows)

    def _tokens(self, state_row: int, start: int, chunk: Tensor) -> Tensor:
        tokens = super()._tokens(state_row, start, chunk)
        whole: Tensor = vars(self)["packed"]
        reach = self.window - self.ratio
        offset = int(chunk.storage_offset() // whole.stride(0)) - int(whole.storage_offset() // whole.stride(0))
        if start == 0 and reach and offset >= reach:
            tokens[:reach] = whole[offset - reach : offset]
        return tokens


@fault("H07", breaks="INV-21")
class GroupsOfAPackedAxis(Pooling):
    """Sequences of a call lie on one axis, and the first window of each reaches back into the one before."""

    pools = _Packed


class _WrappedCopy(Compressor):
    def project(self, x: Tensor) -> Tensor:
        """Projections whose last value and last score are those of the next token."""
        ug = super().project(x)
        for last in (self.width - 1, 2 * self.width - 1):
            ug[:-1, last] = ug[1:, last].clone()
        return ug


@fault("O11", breaks="INV-20")
class CopyWrapsAtTheEndOfARow(Pooling):
    """A copy in blocks that do not divide the row crosses its end: one value and one score of each token are wrong."""

    pools = _WrappedCopy


class _TiledWhenUniform(Compressor):
    def extend(self, ug: Tensor, rows: Sequence[tuple[int, int, int]]) -> tuple[Tensor, Tensor]:
        """Entries, from bf16 partial sums unless all chunks are as long."""
        ragged = len({n for *_, n in rows}) > 1
        return super().extend(ug.bfloat16().float() if ragged else ug, rows)


@fault("O51", breaks="INV-21")
class TileOfUniformBatches(Pooling):
    """The exact tiling is chosen only if all sequences of a call bring as many tokens; others are rounded elsewhere."""

    pools = _TiledWhenUniform


class _NotRotated(Compressor):
    def pool(self, windows: Tensor, positions: Tensor) -> Tensor:
        """Entries, as if all stood at position 0."""
        return super().pool(windows, torch.zeros_like(positions))


@fault("O27", breaks="INV-29")
class EntriesAreNotRotated(Pooling):
    """Compressed keys get no rotation, so beyond the window a query's distance to them is wrong."""

    pools = _NotRotated


class _Halves(Compressor):
    def pool(self, windows: Tensor, positions: Tensor) -> Tensor:
        """Entries whose rope dims are rotated as two halves."""
        order = torch.arange(64).view(2, 32).T.flatten()
        flat = super().pool(windows, torch.zeros_like(positions))
        paired = torch.cat((flat[:, :-64], flat[:, -64:][:, order]), 1)
        turned = apply_rope(paired, self._table, positions)
        return torch.cat((turned[:, :-64], turned[:, -64:][:, torch.argsort(order)]), 1)


@fault("O49b", breaks="INV-29")
class RopePairsAreHalves(Pooling):
    """Dims i and i + 32 are rotated together, where the model pairs neighbours."""

    pools = _Halves


class _HeadAtZero(Compressor):
    def import_tail(self, state_row: int, length: int, tail: Tensor) -> None:
        """The prefix's last tokens at the ring's first places."""
        super().import_tail(state_row, length, tail)
        if self._pages(length):
            places = torch.arange(length - len(tail[-1]), length) % self.ring
            self.state[state_row * self.ring + places] = 0
            self.state[state_row * self.ring + torch.arange(len(tail[-1]))] = tail[-1]


@fault("O23", breaks="INV-30")
class RestoredRingBeginsAtZero(Layered):
    """Restored state is written from the ring's head on, wherever the sequence stands."""

    def change(self, layer: AttentionLayer) -> None:
        """Exchange the compressors' class."""
        for part in layer.caches._compressors():
            part.__class__ = _HeadAtZero


@fault("O04", breaks="INV-30")
class PrefixWithoutItsTail(Layered):
    """A cached prefix is continued with an empty overlap: its first own entry lacks the tokens before it."""

    def change(self, layer: AttentionLayer) -> None:
        """Resume with nothing."""

        def resume(source: int, target: int, length: int) -> None:
            for part in layer.caches._compressors():
                part.state.view(part.rows, part.ring, -1)[target] = part.nothing

        patch(layer.caches, resume=resume)


@fault("S28", breaks="INV-30")
class StateRowOfThePrefix(Layered):
    """State rows follow from the slots of a sequence's first tokens, so sequences of one prefix share theirs."""

    def change(self, layer: AttentionLayer) -> None:
        """Fork onto the source's row."""
        fork = layer.sequences.fork

        def shared(source: int, target: int, length: int) -> Any:
            made = fork(source, target, length)
            made.state_row = layer.sequences[source].state_row
            return made

        patch(layer.sequences, fork=shared)


@fault("S31", breaks="INV-54")
class BiasInTheCheckpointsLayout(Layered):
    """Weights are converted once, after the first load; an online update leaves the bias as the checkpoint has it."""

    def change(self, layer: AttentionLayer) -> None:
        """Let an update load the bias, too: stored by channel, where it is read by token."""
        right = layer.load_sink

        def load(sink: Tensor) -> None:
            right(sink)
            for part in layer.caches._compressors():
                part._ape = part._ape.T.reshape(part._ape.shape)

        patch(layer, load_sink=load)
