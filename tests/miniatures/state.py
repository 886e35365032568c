"""Sparse-prefill workspaces and chunk caches that are wrong in one place each."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_conformance.faults import steps
from dsv4_conformance.mla.chunk_cache import SparsePrefillChunkCache
from dsv4_conformance.mla.workspace import SparsePrefillWorkspace
from tests.miniatures.base import Miniature


class Workspaced(Miniature, steps.Workspaced):
    """The built-in workspace, right; subclasses name another class."""


class GrowthIgnored(Workspaced):
    """Slices the buffer that is there, whatever is asked."""

    class workspace(SparsePrefillWorkspace):
        def get(self, rows: int) -> Tensor:
            return super().get(rows) if self._buffer is None else self._buffer[:rows]


class GrowsByDoubling(Workspaced):
    """Makes room for twice what is asked."""

    class workspace(SparsePrefillWorkspace):
        def get(self, rows: int) -> Tensor:
            return super().get(2 * rows if rows > self.rows else rows)[:rows]


class BufferPerCall(Workspaced):
    """Allocates for every request."""

    class workspace(SparsePrefillWorkspace):
        def get(self, rows: int) -> Tensor:
            self._buffer = None
            return super().get(rows)


class NoRowsAreFine(Workspaced):
    """Returns an empty view for 0 rows."""

    class workspace(SparsePrefillWorkspace):
        def get(self, rows: int) -> Tensor:
            return super().get(max(rows, 1))[: max(rows, 0)]


class WorkspaceInFloat16(Workspaced):
    """Rows of the wrong type."""

    class workspace(SparsePrefillWorkspace):
        def get(self, rows: int) -> Tensor:
            return super().get(rows).view(torch.float16)


class Chunked(Miniature, steps.Chunked):
    """The built-in chunk cache, right; subclasses name another class."""


class _Rectangular(SparsePrefillChunkCache):
    """One count for all requests; entries beyond a request's own are dummies."""

    def widen(self, ratio: int, count: int, of_request: list[list[int]]) -> None:
        """Gather ``count`` rows per request: its own slots, then slot 0."""
        gather = self.compressed[ratio]
        gather.counts = [count] * len(self.seq_lens)
        gather.base = torch.arange(len(self.seq_lens)) * count
        gather.token_ids = torch.tensor([(own + [0] * count)[:count] for own in of_request]).flatten()
        self._windows.clear()

    def own_c4(self, table: Tensor) -> list[list[int]]:
        """C4 slots of each request."""
        return [
            [int(table[row, e // 64]) * 64 + e % 64 for e in range(seq_len // 4)]
            for row, seq_len in zip(self.query_start_loc, self.seq_lens, strict=False)
        ]

    def own_c128(self, slots: Tensor) -> list[list[int]]:
        """C128 slots of each request."""
        return [
            slots[end - 1, : seq_len // 128].tolist()
            for end, seq_len in zip(self.query_start_loc[1:], self.seq_lens, strict=True)
        ]


class ExtentFromCapacity(Chunked):
    """Gathers as many rows as the table could name; the answer is right."""

    class cache(_Rectangular):
        def ensure_c4(self, page_table: Tensor, page_size: int = 64) -> None:
            if self.compressed[4].token_ids is not None:
                return
            super().ensure_c4(page_table, page_size)
            self.widen(4, page_table.shape[1] * page_size, self.own_c4(page_table))

        def ensure_c128(self, page_indices: Tensor) -> None:
            if self.compressed[128].token_ids is not None:
                return
            super().ensure_c128(page_indices)
            self.widen(128, page_indices.shape[1], self.own_c128(page_indices))


class DeclaresRaggedAndIsRectangular(Chunked):
    """Gathers the longest request's count for all."""

    class cache(_Rectangular):
        def ensure_c4(self, page_table: Tensor, page_size: int = 64) -> None:
            if self.compressed[4].token_ids is not None:
                return
            super().ensure_c4(page_table, page_size)
            self.widen(4, max(self.max_seq_len // 4, 1), self.own_c4(page_table))

        def ensure_c128(self, page_indices: Tensor) -> None:
            if self.compressed[128].token_ids is not None:
                return
            super().ensure_c128(page_indices)
            self.widen(128, max(self.max_seq_len // 128, 1), self.own_c128(page_indices))


class TakesShortTables(Chunked):
    """Clamps page numbers to the table's width instead of refusing."""

    class cache(SparsePrefillChunkCache):
        def ensure_c4(self, page_table: Tensor, page_size: int = 64) -> None:
            missing = max(-(-(self.max_seq_len // 4) // page_size) - page_table.shape[1], 0)
            super().ensure_c4(torch.cat((page_table, page_table[:, -1:].expand(-1, missing)), 1), page_size)


class C128FromTheFirstRow(Chunked):
    """Reads the index row of a request's first query."""

    class cache(SparsePrefillChunkCache):
        def ensure_c128(self, page_indices: Tensor) -> None:
            first = page_indices[torch.tensor(self.query_start_loc[:-1])]
            lens = torch.tensor(self.extend_lens)
            owned = first.repeat_interleave(lens, 0)
            super().ensure_c128(torch.cat((owned, page_indices[len(owned) :])))


class RebuildsForEveryLayer(Chunked):
    """Takes the table of whichever layer comes last."""

    class cache(SparsePrefillChunkCache):
        def ensure_c4(self, page_table: Tensor, page_size: int = 64) -> None:
            self.compressed[4].token_ids = None
            super().ensure_c4(page_table, page_size)

        def ensure_c128(self, page_indices: Tensor) -> None:
            self.compressed[128].token_ids = None
            super().ensure_c128(page_indices)


class ChecksSpareColumns(Chunked):
    """Refuses page numbers that nobody reads."""

    class cache(SparsePrefillChunkCache):
        def ensure_c4(self, page_table: Tensor, page_size: int = 64) -> None:
            if bool((page_table < 0).any()):
                raise ValueError("negative page")
            super().ensure_c4(page_table, page_size)


class _Rows(SparsePrefillChunkCache):
    """Index rows that are changed before they are returned."""

    def changed(self, rows: Tensor, lengths: Tensor, ratio: int, raw: Tensor | None) -> None:
        """Change copies of the right rows in place."""

    def combined(self, ratio: int, raw: Tensor | None = None) -> tuple[Tensor, Tensor]:
        rows, lengths = (x.clone() for x in super().combined(ratio, raw))
        self.changed(rows, lengths, ratio, raw)
        return rows, lengths


class HoleNamesTheRowBefore(Chunked):
    """Adds the base to a hole."""

    class cache(_Rows):
        def changed(self, rows: Tensor, lengths: Tensor, ratio: int, raw: Tensor | None) -> None:
            if raw is not None:
                head = rows[:, : raw.shape[1]]
                base = self.compressed[4].base[self.request_of_row].to(torch.int32)[:, None] - 1
                within = torch.arange(raw.shape[1]) < lengths[:, None] - 128
                head.copy_(torch.where(within & (raw == -1), base, head))


class FirstSelectionForAllLayers(Chunked):
    """Builds the index rows of ratio 4 once."""

    class cache(SparsePrefillChunkCache):
        first: Tensor | None = None

        def combined(self, ratio: int, raw: Tensor | None = None) -> tuple[Tensor, Tensor]:
            if raw is not None and self.first is None:
                self.first = raw
            return super().combined(ratio, None if raw is None else self.first)


class TailsAreNotFilled(Chunked):
    """Leaves old indices beyond the length."""

    class cache(_Rows):
        def changed(self, rows: Tensor, lengths: Tensor, ratio: int, raw: Tensor | None) -> None:
            rows[torch.arange(rows.shape[1]) >= lengths[:, None]] = 0


class WindowStartsOneTooLate(Chunked):
    """Names the window rows one further on; the last query reads a row that nobody gathered."""

    class cache(_Rows):
        def changed(self, rows: Tensor, lengths: Tensor, ratio: int, raw: Tensor | None) -> None:
            start = self.compressed_rows(ratio)
            rows[rows >= start] += 1


class EveryRequestStartsAtRow0(Chunked):
    """Forgets the base of a request's compressed rows."""

    class cache(_Rows):
        def changed(self, rows: Tensor, lengths: Tensor, ratio: int, raw: Tensor | None) -> None:
            if ratio:
                base = self.compressed[ratio].base[self.request_of_row].to(torch.int32)[:, None]
                rows.sub_(torch.where((rows >= 0) & (rows < self.compressed_rows(ratio)), base, 0))


class RowsOfNobodyRepeatTheLast(Chunked):
    """Pads the batch with the last query."""

    class cache(_Rows):
        def changed(self, rows: Tensor, lengths: Tensor, ratio: int, raw: Tensor | None) -> None:
            owned = self.query_start_loc[-1]
            rows[owned:], lengths[owned:] = rows[owned - 1], lengths[owned - 1]


class RowsOfNobodyHaveNegativeLengths(Chunked):
    """Expands the length of padding as if it had tokens before it."""

    class cache(_Rows):
        def changed(self, rows: Tensor, lengths: Tensor, ratio: int, raw: Tensor | None) -> None:
            lengths[self.query_start_loc[-1] :] = -2
