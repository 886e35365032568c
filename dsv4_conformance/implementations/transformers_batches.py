"""Sessions that run several sequences in one call of transformers: left-padded, right-padded, packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.state_api import LayerResult, Segment
from dsv4_conformance.implementations.transformers_layer import Batch, Layer
from dsv4_conformance.implementations.transformers_sessions import LayerRows


def _padding(like: Tensor, rows: int) -> Tensor:
    """``rows`` pad tokens: like an embedding, finite and of the size of a normed row."""
    return like.new_ones(rows, like.shape[-1])


class LeftPaddedSession(LayerRows):
    """One batch on one cache, as ``generate`` runs prompts of different lengths: padding in front, masked; then as many
    tokens of every sequence in every call."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        self._drop()

    def _drop(self) -> None:
        self._cache: Any = None
        self._members: list[int] = []
        self._gone: set[int] = set()
        self._lengths: list[int] = []
        self._mask: Tensor | None = None

    def step(
        self, segments: Sequence[Segment], mode: str = "prefill", padded_rows: int = 0, path: str = "auto"
    ) -> LayerResult:
        """The first step is the padded prompt. Raises BadInput for a later one that does not take the whole batch."""
        if not segments:
            return self.joined([])
        counts = [len(segment.x) for segment in segments]
        width = max(counts)
        if self._cache is None:
            self._cache = self.layer_of.new_cache()
            self._members, self._lengths = [segment.sequence for segment in segments], [0] * len(segments)
        by_number = {segment.sequence: segment for segment in segments}
        if set(by_number) != set(self._members) or self._gone or (self._mask is not None and len(set(counts)) > 1):
            raise BadInput("a batch on one cache takes as many tokens of each of its sequences in every step.")
        ordered = [by_number[number].x for number in self._members]
        x = torch.stack([torch.cat((_padding(rows, width - len(rows)), rows)) for rows in ordered])
        real = torch.tensor([[0] * (width - len(rows)) + [1] * len(rows) for rows in ordered], device=x.device)
        self._mask = real if self._mask is None else torch.cat((self._mask, real), 1)
        positions = (self._mask.cumsum(1) - 1).clamp(min=0)[:, -width:]
        batch = self.layer_of.run(x, positions, self._mask, self._cache)
        self._lengths = [held + len(rows) for held, rows in zip(self._lengths, ordered, strict=True)]
        return self.joined(
            [
                (batch, self._members.index(segment.sequence), slice(width - len(segment.x), width))
                for segment in segments
            ]
        )

    def truncate(self, sequence: int, length: int) -> None:
        """Keep all tokens. Raises BadInput if some are to go."""
        held = self._lengths[self._members.index(sequence)]
        if length != held:
            raise BadInput(f"sequence {sequence} holds {held} tokens and cannot go back to {length}.")

    def release(self, sequence: int) -> None:
        """Forget a sequence; the batch ends with its last one."""
        self._gone.add(sequence)
        if self._gone == set(self._members):
            self._drop()

    def window_rows(self, sequence: int, positions: Tensor) -> Tensor:
        """Stored keys float32 ``(n, 512)``: the row's last tokens, its padding in front of them."""
        row = self._members.index(sequence)
        kept = self._cache.layers[0].keys[row, 0]
        rows: Tensor = kept[positions - (self._lengths[row] - len(kept))]
        return rows.float()

    def compressed_rows(self, sequence: int) -> Tensor:
        """Stored entries float32: the last of the row, as many as its tokens make."""
        row = self._members.index(sequence)
        entries: Tensor = self._cache.layers[0].compressed_kv["compressor"][row]
        due = self._lengths[row] // self.layer_of.spec.ratio
        return entries[len(entries) - due :].float()


class _Recomputed(LayerRows):
    """Without a cache: every step runs all tokens of its sequences again, and its new rows are those of the step."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        self._held: dict[int, Tensor] = {}
        self._keys: dict[int, tuple[Tensor, Tensor]] = {}

    def step(
        self, segments: Sequence[Segment], mode: str = "prefill", padded_rows: int = 0, path: str = "auto"
    ) -> LayerResult:
        """All tokens of these sequences in one call, with ``padded_rows`` columns more than they need."""
        if not segments:
            return self.joined([])
        for segment in segments:
            before = self._held.get(segment.sequence, segment.x[:0])
            self._held[segment.sequence] = torch.cat((before, segment.x))
        whole = [self._held[segment.sequence] for segment in segments]
        batch, places = self._run(whole, padded_rows)
        for segment, rows, (row, first) in zip(segments, whole, places, strict=True):
            self._keep(segment.sequence, batch, row, first, len(rows))
        return self.joined(
            [
                (batch, row, slice(first + len(rows) - len(segment.x), first + len(rows)))
                for segment, rows, (row, first) in zip(segments, whole, places, strict=True)
            ]
        )

    def _run(self, whole: Sequence[Tensor], padded: int) -> tuple[Batch, list[tuple[int, int]]]:
        """The batch, and the row and first column of each sequence in it."""
        raise NotImplementedError

    def _keep(self, sequence: int, batch: Batch, row: int, first: int, count: int) -> None:
        ratio, columns = self.layer_of.spec.ratio, batch.o.shape[1]
        entries = batch.keys[row, columns:]
        if ratio:
            entries = entries[first // ratio :][: count // ratio]
        self._keys[sequence] = batch.keys[row, first : first + count].float(), entries.float()

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first ``length`` tokens."""
        self._held[sequence] = self._held[sequence][:length]

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        del self._held[sequence], self._keys[sequence]

    def window_rows(self, sequence: int, positions: Tensor) -> Tensor:
        """Keys of the last call, float32 ``(n, 512)``."""
        return self._keys[sequence][0][positions]

    def compressed_rows(self, sequence: int) -> Tensor:
        """Entries of the last call, float32: those that lie where the sequence's tokens do."""
        return self._keys[sequence][1][: len(self._held[sequence]) // self.layer_of.spec.ratio]


class RightPaddedSession(_Recomputed):
    """A row per sequence, padding behind, masked."""

    def _run(self, whole: Sequence[Tensor], padded: int) -> tuple[Batch, list[tuple[int, int]]]:
        width = max(len(rows) for rows in whole) + padded
        x = torch.stack([torch.cat((rows, _padding(rows, width - len(rows)))) for rows in whole])
        column = torch.arange(width, device=x.device)
        mask = torch.stack([(column < len(rows)).long() for rows in whole])
        batch = self.layer_of.run(x, column.expand(len(whole), -1), mask, None)
        return batch, [(row, 0) for row in range(len(whole))]


class PackedSession(_Recomputed):
    """All sequences in one row, one behind the other; positions that start again at 0 are what tells them apart."""

    def _run(self, whole: Sequence[Tensor], padded: int) -> tuple[Batch, list[tuple[int, int]]]:
        parts = [*whole, _padding(whole[0], padded)]
        x = torch.cat(parts)[None]
        positions = torch.cat([torch.arange(len(rows), device=x.device) for rows in parts])[None]
        batch = self.layer_of.run(x, positions, None, None)
        starts = [sum(len(rows) for rows in whole[:place]) for place in range(len(whole))]
        return batch, [(0, start) for start in starts]
