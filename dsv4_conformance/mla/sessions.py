"""Compressor and indexer on their own, for sequences that the caller numbers (spec §5 to §7).

The methods are those of ``implementations.sessions``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.compressor import Compressor
from dsv4_conformance.mla.indexer import RATIO, Indexer
from dsv4_conformance.mla.pools import IndexKeyPool
from dsv4_conformance.mla.sequences import Sequences
from dsv4_conformance.spec.weights import CompressorSpec, IndexerSpec


class Tokens(Protocol):
    """New tokens of one sequence."""

    @property
    def sequence(self) -> int:
        """The caller's number."""

    @property
    def x(self) -> Tensor:
        """``(n, hidden)``."""


class IndexTokens(Tokens, Protocol):
    """New tokens as the indexer sees them."""

    @property
    def qr(self) -> Tensor:
        """``(n, q_lora)``, normed."""


class IndexSelection(NamedTuple):
    """raw and paged int32 ``(n, index_topk)``, -1 = none; scores float32 ``(n, entries of the sequence)``."""

    raw: Tensor
    paged: Tensor
    scores: Tensor


class _Streams:
    """Which tokens the state of a compressor holds, per sequence."""

    def __init__(self, compressor: Compressor, sequences: Sequences) -> None:
        self._compressor, self._sequences = compressor, sequences
        self._reached: dict[int, int] = {}

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first ``length`` tokens. Raises BadInput beyond what compressor state can take back."""
        held = self._sequences[sequence].length
        if length < held and not self._compressor.can_resume(length, self._reached[sequence]):
            raise BadInput(
                f"sequence {sequence} has reached {self._reached[sequence]} tokens and its compressor cannot go on "
                f"from {length}; take back fewer tokens, or release the sequence and start again."
            )
        self._sequences.truncate(sequence, length)

    def release(self, sequence: int) -> None:
        """Forget a sequence; its state row and pages serve the next one, and are not cleared."""
        self._sequences.release(sequence)
        del self._reached[sequence]

    def state(self) -> list[Tensor]:
        """The state storage, live."""
        return [self._compressor.state]

    def _grow(self, segments: Sequence[Tokens]) -> list[tuple[int, int, int]]:
        """State row, first position and number of tokens of each segment, its sequence grown by them."""
        numbers = [segment.sequence for segment in segments]
        if len(set(numbers)) < len(numbers):
            raise BadInput(f"sequences {numbers} repeat one; pass the new tokens of a sequence as one segment.")
        new = [number for number in numbers if number not in self._reached]
        if len(new) > self._sequences.state_rows - 1 - len(self._reached):
            raise BadInput(f"sequences {new} find no room; release some, or open the session for more.")
        for segment in segments:
            self._sequences.check_room(segment.sequence, len(segment.x))
        chunks = []
        for segment in segments:
            first = self._sequences.grow(segment.sequence, len(segment.x))
            held = self._sequences[segment.sequence]
            self._reached[segment.sequence] = max(self._reached.get(segment.sequence, 0), held.length)
            chunks.append((held.state_row, first, len(segment.x)))
        return chunks


class CompressorSession(_Streams):
    """A Compressor session for up to ``sequences`` sequences, each as long as the rope table at most."""

    def __init__(self, spec: CompressorSpec, sequences: int, device: torch.device | str) -> None:
        rows = 1 + sequences
        compressor = Compressor(spec.weights, spec.ratio, spec.dim, spec.table, spec.eps, rows, device=device)
        super().__init__(compressor, Sequences(sequences, len(spec.table)))

    def push(self, segments: Sequence[Tokens]) -> list[Tensor]:
        """Take new tokens; per segment the entries they completed, float32 ``(m, dim)``, normed and roped.

        Raises BadInput for a sequence that is given twice, none or too many tokens, or has no state row left.
        """
        if not segments:
            return []
        chunks, ratio = self._grow(segments), self._compressor.ratio
        ug = self._compressor.project(torch.cat([segment.x for segment in segments]))
        entries, _ = self._compressor.extend(ug, chunks)
        return list(torch.split(entries, [(first + n) // ratio - first // ratio for _, first, n in chunks]))


class IndexerSession(_Streams):
    """An Indexer session for up to ``sequences`` sequences of up to ``max_tokens`` tokens, with its key cache."""

    def __init__(self, spec: IndexerSpec, sequences: int, max_tokens: int) -> None:
        self._indexer = Indexer(spec, 1 + sequences)
        super().__init__(self._indexer.compressor, Sequences(sequences, max_tokens))
        self._pool = IndexKeyPool(self._sequences.pages.num_pages, spec.quantised, spec.weights.wq_b.device)

    def push(self, segments: Sequence[IndexTokens]) -> list[IndexSelection]:
        """Take new tokens, store the keys they complete, and select for each of them; BadInput as CompressorSession."""
        if not segments:
            return []
        chunks = self._grow(segments)
        x = torch.cat([segment.x for segment in segments])
        entries, _ = self._compressor.extend(self._compressor.project(x), chunks)
        slots = [
            self._slots(segment.sequence, first // RATIO, (first + n) // RATIO)
            for segment, (_, first, n) in zip(segments, chunks, strict=True)
        ]
        self._pool.store(self._indexer.rotate_keys(entries), torch.cat(slots))
        return [self._select(segment, first) for segment, (_, first, _) in zip(segments, chunks, strict=True)]

    def keys(self, sequence: int) -> Tensor:
        """Stored index keys, dequantised, Hadamard-rotated: float32 ``(entries, 128)``."""
        return self._pool.load(self._slots(sequence, 0, self._sequences[sequence].length // RATIO))

    def page_table(self, sequence: int) -> Tensor:
        """int32 ``(pages,)`` of 256-token pages."""
        pages = self._sequences[sequence].pages
        return torch.tensor(pages, dtype=torch.int32, device=self._pool.buffer.device)

    def _select(self, segment: IndexTokens, first: int) -> IndexSelection:
        positions = torch.arange(first, first + len(segment.x), device=segment.x.device)
        iq, w = self._indexer.queries(segment.x, segment.qr, positions)
        table = self.page_table(segment.sequence)[None]
        scores = self._indexer.scores_paged(iq, w, self._pool, table, (first + len(segment.x)) // RATIO)
        raw = self._indexer.select(scores, (positions + 1) // RATIO, self._indexer.topk)
        return IndexSelection(raw, self._indexer.paged(raw, table.expand(len(raw), -1)), scores)

    def _slots(self, sequence: int, first: int, stop: int) -> Tensor:
        """Slots int64 of entries ``first`` to ``stop - 1`` (spec §9.4)."""
        entry = torch.arange(first, stop, device=self._pool.buffer.device)
        per_page = self._pool.page_size
        return self.page_table(sequence).long()[entry // per_page] * per_page + entry % per_page
