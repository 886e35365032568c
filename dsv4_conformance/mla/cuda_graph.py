"""Captured steps of a layer: full decode graphs, and prefill graphs broken at attention (spec §14).

On CUDA the pieces are CUDA graphs; on a CPU the same pieces run again on the same static buffers, so that the protocol
can be checked anywhere: what is captured holds a copy of the metadata object as it was, so a field that a replay sets
by reference reaches it no more than it would reach a captured kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.metadata import DSV4Metadata
from dsv4_conformance.mla.step import LayerOutput, NewTokens, Run

if TYPE_CHECKING:
    from dsv4_conformance.mla.layer import AttentionLayer

WARM_UPS = 2


class Piece:
    """A function of static buffers, captured once. Its results are static tensors, rewritten by every run."""

    def __init__(self, function: Callable[[], tuple[Tensor, ...]], device: torch.device, pool: Any = None) -> None:
        self._function = function
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type != "cuda":
            self.results = tuple(result.clone() for result in function())
            return
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):  # kernels load and libraries allocate here, not inside the graph
            for _ in range(WARM_UPS):
                function()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self.results = function()
        self._graph = graph

    def run(self) -> tuple[Tensor, ...]:
        """Replay; allocates nothing on CUDA."""
        if self._graph is not None:
            self._graph.replay()
        else:
            for static, result in zip(self.results, self._function(), strict=True):
                static.copy_(result)
        return self.results


class _Static:
    """Static inputs of a captured step: token rows and metadata of ``rows`` rows that belong to nobody."""

    def __init__(self, layer: AttentionLayer, rows: int) -> None:
        if rows < 1:
            raise BadInput(f"a step of {rows} rows cannot be captured; give at least one row.")
        self.layer, self.rows = layer, rows
        self.x = torch.zeros(rows, layer.spec.geometry.hidden_size, device=layer.device)
        self.meta = layer.metadata([], rows)

    def check(self, segments: Sequence[NewTokens]) -> None:
        """Raise BadInput if the tokens do not fit."""
        count = sum(len(segment.x) for segment in segments)
        if count > self.rows:
            raise BadInput(f"{count} tokens do not fit into a graph of {self.rows} rows; capture a larger one.")

    def fill(self, segments: Sequence[NewTokens]) -> int:
        """Copy the tokens in, and return how many there are; rows beyond them keep whatever they held."""
        count = 0
        for segment in segments:
            self.x[count : count + len(segment.x)].copy_(segment.x)
            count += len(segment.x)
        return count

    def addresses(self) -> dict[str, int]:
        """Address of every tensor that captured kernels read or write."""
        layer = self.layer
        held: dict[str, Any] = {"x": self.x, "sink": layer.sink(), "rope table": layer.table}
        held |= {f"metadata.{name}": value for name, value in self.meta.fields().items()}
        held |= {f"cache.{name}": tensor for name, tensor in layer.caches.storage().items()}
        return {name: value.data_ptr() for name, value in held.items() if isinstance(value, Tensor)}


class DecodeGraph:
    """One decode step of ``rows`` rows as one graph: planning, cache writes, indexer, attention, projections.

    Captured with rows that belong to nobody; replayed with any number of sequences up to ``rows``.
    """

    def __init__(self, layer: AttentionLayer, rows: int) -> None:
        self._static = _Static(layer, rows)
        self._captured = copy(self._static.meta)
        layer.sink()  # read the slice now: inside the graph it would be copied at every replay
        self._piece = Piece(self._forward, layer.device)

    def _forward(self) -> tuple[Tensor, ...]:
        layer, static, meta = self._static.layer, self._static, self._captured
        # Scores are made for every entry that the page table could name: shapes are static, and lengths mask the rest.
        q = layer.before(static.x, meta, layer.spec.max_tokens // 4)
        o, out = layer.after(layer.attention.attend(q, meta, "paged", ()), meta)
        return o, out, q

    def replay(self, segments: Sequence[NewTokens]) -> LayerOutput:
        """One decode step of one token per segment; other rows belong to nobody."""
        layer, static = self._static.layer, self._static
        static.check(segments)
        runs = layer.take(segments, "decode")
        count = static.fill(segments)
        static.meta.copy_(layer.metadata(runs, static.rows - count))
        layer.sink()  # a weight update since the last step is copied in place
        o, out, q = (result[:count].clone() for result in self._piece.run())
        selected = static.meta.c4_sparse_raw_indices[:count].clone() if layer.spec.ratio == 4 else None
        return LayerOutput(o, out, q[:, : layer.projections.heads], selected, "paged")

    def replay_only(self) -> None:
        """The captured work alone, on whatever the static buffers hold: what a profiler should see."""
        self._piece.run()

    @property
    def metadata(self) -> DSV4Metadata:
        """The captured metadata object."""
        return self._static.meta

    def addresses(self) -> Mapping[str, int]:
        """Addresses that captured kernels hold."""
        return self._static.addresses()


class PrefillGraph:
    """A prefill of up to ``rows`` rows as two graphs with eager attention between them (spec §14.4).

    The indexer is captured and writes its selection into the captured metadata, whose lists the eager attention then
    reads by reference; rows beyond the batch are zero-filled before the second graph.
    """

    def __init__(self, layer: AttentionLayer, rows: int) -> None:
        self._static = _Static(layer, rows)
        device = layer.device
        self._bounds = torch.zeros(2, rows, dtype=torch.int64, device=device)
        self._captured = copy(self._static.meta)
        layer.sink()
        self._first = Piece(self._before, device)
        (q,) = self._first.results
        self._o = torch.zeros_like(q)
        self._last = Piece(self._after, device)

    def _before(self) -> tuple[Tensor, ...]:
        layer, static = self._static.layer, self._static
        bounds = (self._bounds[0], self._bounds[1])
        return (layer.before(static.x, self._captured, layer.spec.max_tokens // 4, None, bounds),)

    def _after(self) -> tuple[Tensor, ...]:
        return self._static.layer.after(self._o, self._captured)

    def replay(self, segments: Sequence[NewTokens], path: str = "auto") -> LayerOutput:
        """Prefill the segments' tokens."""
        layer, static = self._static.layer, self._static
        static.check(segments)
        chosen = layer.path("prefill", path, sum(len(segment.x) for segment in segments))
        runs = layer.take(segments, "prefill")
        count = static.fill(segments)
        fresh = layer.metadata(runs, static.rows - count)
        static.meta.refresh_for_breakable_cuda_graph_replay_(fresh)
        # The eager attention reads page tables by reference; the captured indexer has one of its own.
        self._captured.page_table.copy_(fresh.page_table)
        self._bounds.copy_(_bounds(runs, static.rows))
        layer.sink()
        (q,) = self._first.run()
        self._o[:count] = layer.attention.attend(q[:count], _first_rows(static.meta, count), chosen, runs)
        self._o[count:].zero_()
        o, out = (result[:count].clone() for result in self._last.run())
        selected = static.meta.c4_sparse_raw_indices[:count].clone() if layer.spec.ratio == 4 else None
        return LayerOutput(o, out, q[:count, : layer.projections.heads].clone(), selected, chosen)

    @property
    def metadata(self) -> DSV4Metadata:
        """The captured metadata object."""
        return self._static.meta

    def addresses(self) -> Mapping[str, int]:
        """Addresses that captured kernels hold: by-reference lists are the eager attention's, not theirs."""
        referenced = {
            f"metadata.{name}"
            for name, change in self._static.meta.classes("refresh").items()
            if change == "referenced"
        }
        held = {name: at for name, at in self._static.addresses().items() if name not in referenced}
        return {**held, "bounds": self._bounds.data_ptr(), "o": self._o.data_ptr()}


def _first_rows(meta: DSV4Metadata, count: int) -> DSV4Metadata:
    """Metadata of the first ``count`` rows, views of the same tensors."""
    parts: dict[str, Any] = {n: value[:count] for n, value in meta.fields().items() if isinstance(value, Tensor)}
    return replace(meta, **parts)


def _bounds(runs: Sequence[Run], rows: int) -> Tensor:
    """int64 ``(2, rows)`` on the host: first position of each row's chunk, and the one after its last."""
    pairs = [(run.start, run.start + run.count) for run in runs for _ in range(run.count)]
    return torch.tensor(pairs + [(0, 0)] * (rows - len(pairs))).T
