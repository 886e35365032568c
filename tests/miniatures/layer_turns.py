"""Layers that are right the first time: wrong on another rank, in a second graph, after an update, in a crowd."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.mla.attend import Attention
from dsv4_conformance.mla.cuda_graph import DecodeGraph
from dsv4_conformance.mla.heads import LocalSink, _version
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.metadata import DSV4Metadata
from dsv4_conformance.mla.step import Run
from tests.miniatures.layer import Layered


def _fixed(sink: Tensor) -> Any:
    return SimpleNamespace(get=lambda: sink)


class CapturedDecodeHasRank0Sinks(Layered):
    """Only a captured decode takes the first slice of the sinks."""

    class made(AttentionLayer):
        def capture(self, rows: int, mode: str = "decode") -> Any:
            graph: Any = super().capture(rows, mode)
            if self.spec.tp > 1 and mode == "decode":
                right, attention, own = graph._piece._function, self.attention, self.local_sink

                def wrong() -> Any:
                    attention._sink = SimpleNamespace(  # type: ignore[assignment]
                        get=lambda: torch.cat((self.attn_sink, own.get()))[: self.padded]
                    )
                    try:
                        return right()
                    finally:
                        attention._sink = own

                graph._piece._function = wrong
            return graph


class SparsePrefillKeepsItsFirstSinks(Layered):
    """The workspace's path keeps a copy of its padded slice."""

    class attends(Attention):
        def _gathered(self, *given: Any) -> Tensor:
            own = self._sink
            kept = self.__dict__.setdefault("kept", own.get().clone())
            if own._local is not own._parameter:
                self._sink = _fixed(kept)
            try:
                return super()._gathered(*given)
            finally:
                self._sink = own


class ChunksHaveRank0Sinks(Layered):
    """Prefills cut into chunks take the first slice."""

    class attends(Attention):
        def _in_chunks(self, q: Tensor, *given: Any) -> Tensor:
            own = self._sink
            if own._local is not own._parameter:
                self._sink = _fixed(torch.cat((own._parameter, own.get()))[: q.shape[1]])
            try:
                return super()._in_chunks(q, *given)
            finally:
                self._sink = own


class BrokenPrefillKeepsTheSinksOfItsCapture(Layered):
    """Attention between the pieces of a captured prefill goes by the sinks of the capture."""

    class made(AttentionLayer):
        def capture(self, rows: int, mode: str = "decode") -> Any:
            graph = super().capture(rows, mode)
            if mode == "prefill":
                kept, own, right = self.sink().clone(), self.local_sink, graph.replay

                def replay(segments: Any, path: str = "auto") -> Any:
                    self.attention._sink = _fixed(kept)
                    try:
                        return right(segments, path)
                    finally:
                        self.attention._sink = own

                graph.replay = replay
            return graph


class OneMetadataForBothGraphs(Layered):
    """A prefill's refresh binds lists anew that the decode graph of as many rows has captured."""

    class made(AttentionLayer):
        def capture(self, rows: int, mode: str = "decode") -> Any:
            graph = super().capture(rows, mode)
            graph._static.meta = self.__dict__.setdefault("metas", {}).setdefault(rows, graph._static.meta)
            graph._captured = copy(graph._static.meta)
            return graph


class OlderPrefillGraphsLoseTheirInput(Layered):
    """The latest capture of a prefill moves the buffer of tokens; graphs before it go on reading the old one."""

    class made(AttentionLayer):
        def capture(self, rows: int, mode: str = "decode") -> Any:
            graph = super().capture(rows, mode)
            if mode == "prefill":
                self.__dict__["newest"], static, fill = graph, graph._static, graph._static.fill

                def wrong(segments: Any) -> int:
                    kept = static.x.clone()
                    count: int = fill(segments)
                    if self.__dict__["newest"] is not graph:
                        static.x.copy_(kept)
                    return count

                static.fill = wrong
            return graph


class EqualLengthsShareABase(Layered):
    """The base of a request's compressed rows is looked up by its length."""

    class attends(Attention):
        def _chunk_cache(self, *given: Any, **named: Any) -> Any:
            cache = super()._chunk_cache(*given, **named)
            for gather in cache.compressed.values():
                gather.base = torch.stack([gather.base[cache.seq_lens.index(length)] for length in cache.seq_lens])
            return cache


class WindowsEndAtTheEighth(Layered):
    """Sequences beyond the eighth of a step get the window of the eighth."""

    class made(AttentionLayer):
        def metadata(self, runs: Sequence[Run], padded_rows: int) -> DSV4Metadata:
            meta = super().metadata(runs, padded_rows)
            first = sum(run.count for run in runs[:8])
            if len(runs) > 8:
                meta.swa_page_indices[first:] = meta.swa_page_indices[first - 1].clone()
            return meta


class ForksTakeTheLastTailOnly(Layered):
    """A fork takes the overlap of its last page, and not those of the pages before."""

    def change(self, layer: AttentionLayer) -> None:
        for compressor in layer.caches._compressors():
            right = compressor.import_tail

            def wrong(row: int, length: int, tail: Tensor, own: Any = compressor, right: Any = right) -> None:
                kept = own.tails[row].clone()
                right(row, length, tail)
                if len(tail):
                    own.tails[row, : len(tail) - 1] = kept[: len(tail) - 1]

            compressor.import_tail = wrong  # type: ignore[method-assign, assignment]


class DecodeKeepsTheFirstPagesTailOnly(Layered):
    """What later forks need of a page's end is kept for the first page alone, if tokens come one by one."""

    def change(self, layer: AttentionLayer) -> None:
        for compressor in layer.caches._compressors():
            right = compressor.advance

            def wrong(given: Any, rows: Any, positions: Any, own: Any = compressor, right: Any = right) -> Any:
                kept = own.tails.clone()
                found = right(given, rows, positions)
                own.tails[:, 1:] = kept[:, 1:]
                return found

            compressor.advance = wrong  # type: ignore[method-assign, assignment]


class ReplaysKeepRejectedPages(Layered):
    """The page table of replays is appended to, never cut: pages that a rejection gave back stay in it."""

    class made(AttentionLayer):
        def capture(self, rows: int, mode: str = "decode") -> Any:
            graph = super().capture(rows, mode)
            if isinstance(graph, DecodeGraph):
                right, tables = graph.replay, self.__dict__.setdefault("tables", {})
                sequences: Any = self.sequences

                def page_row(number: int) -> list[int]:
                    kept = tables.setdefault(number, [])
                    kept += sequences[number].pages[len(kept) :]
                    row: list[int] = (kept + [0] * sequences.width)[: sequences.width]
                    return row

                def replay(segments: Any) -> Any:
                    sequences.page_row = page_row
                    try:
                        return right(segments)
                    finally:
                        del sequences.page_row

                graph.replay = replay  # type: ignore[method-assign]
            return graph


class SinksRefreshedOnOddRanks(Layered):
    """A weight update reaches every second rank."""

    def change(self, layer: AttentionLayer) -> None:
        if layer.spec.tp > 1 and layer.spec.rank % 2 == 0:
            layer.local_sink.__class__ = _Stale


class _Stale(LocalSink):
    def refresh(self) -> None:
        """At the first use only."""
        if self._copied is None:
            super().refresh()
        self._copied = _version(self._parameter)


class LaterLayersAttendToTheOldBuffer(Layered):
    """The workspace has grown, and a layer attends to the view that it took before."""

    class attends(Attention):
        def _gathered(self, *given: Any) -> Tensor:
            kernels, workspace, old = self._kernels, self.workspace, self.__dict__.get("old")

            def rows(q: Tensor, kv: Tensor, *rest: Any) -> Tensor:
                mine = kv if old is None or len(old) < len(kv) else old[: len(kv)]
                return kernels.rows(q, mine, *rest)

            self._kernels = SimpleNamespace(rows=rows, paged=kernels.paged)
            try:
                return super()._gathered(*given)
            finally:
                self._kernels = kernels
                if old is None and workspace._buffer is not None:
                    self.__dict__["old"] = workspace._buffer
