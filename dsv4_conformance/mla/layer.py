"""One attention layer on one attention-TP rank, end to end, with its paged caches (spec §2, §15).

A step runs in three parts: ``before`` (projections, cache writes, indexer), ``attend`` and ``after`` (inverse rope,
output projection). Full CUDA graphs capture all three, breakable ones capture the first and the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.attend import Attention
from dsv4_conformance.mla.backend import Kernels, kernels_for
from dsv4_conformance.mla.caches import LayerCaches
from dsv4_conformance.mla.heads import LocalSink
from dsv4_conformance.mla.metadata import DSV4Metadata, build_metadata
from dsv4_conformance.mla.planner import Planner
from dsv4_conformance.mla.projections import Projections
from dsv4_conformance.mla.sequences import LOOKBACK, PADDING_ROW, Sequences
from dsv4_conformance.mla.step import LayerOutput, NewTokens, Run
from dsv4_conformance.mla.workspace import SparsePrefillWorkspace
from dsv4_conformance.spec.weights import LayerSpec


class AttentionLayer:
    """A layer of ``spec`` with room for its sequences. ``kernels``: attention kernels, by default the device's own;
    ``workspace``: the buffer that all layers of an engine share; ``sparse_prefill``: whether path "auto" prefills with
    it. Raises BadInput for a spec that contradicts itself."""

    def __init__(
        self,
        spec: LayerSpec,
        device: torch.device | str,
        kernels: Kernels | None = None,
        workspace: SparsePrefillWorkspace | None = None,
        sparse_prefill: bool = True,
    ) -> None:
        self.spec, self.device = spec, torch.device(device)
        geometry = spec.geometry
        self.kernels = kernels or kernels_for(self.device, spec.precision)
        self.table = spec.rope.compressed if spec.ratio else spec.rope.plain
        if self.table.shape[0] < spec.max_tokens:
            raise BadInput(
                f"the rope table has {self.table.shape[0]} positions, the layer {spec.max_tokens}; pass a longer one."
            )
        self.projections = Projections(spec, self.table)
        self.padded = self.kernels.heads(geometry.num_attention_heads, spec.tp)
        # The layer's own parameter: an online weight update writes it in place.
        self.attn_sink = spec.weights.attn_sink.to(self.device, torch.float32, copy=True)
        self.local_sink = LocalSink(self.attn_sink, spec.rank, spec.tp, self.padded)
        self.sequences = Sequences(spec.max_sequences, spec.max_tokens)
        self.caches = LayerCaches(spec, self.sequences, self.table, self.device)
        rows = workspace or SparsePrefillWorkspace(self.device, self.caches.dtype)
        planner = None
        if spec.workspace_rows:
            planner = Planner(spec.workspace_rows, [spec.ratio])
            rows = SparsePrefillWorkspace(self.device, self.caches.dtype)  # its own: the shared one grows
            rows.reserve(planner.reserved())
        self.attention = Attention(spec, self.kernels, self.caches, self.local_sink, rows, self.device, planner)
        self.sparse_prefill = sparse_prefill

    def step(
        self, segments: Sequence[NewTokens], mode: str = "prefill", padded_rows: int = 0, path: str = "auto"
    ) -> LayerOutput:
        """Run new tokens of some sequences; see implementations.sessions.LayerSession.step.

        Raises BadInput, before anything changes, for tokens that have no room or that the mode does not allow.
        """
        chosen = self.path(mode, path, padded_rows + sum(len(segment.x) for segment in segments))
        if chosen == "sparse":
            counts = [len(segment.x) for segment in segments]
            held = [self.sequences.length(segment.sequence) for segment in segments]
            self.attention.check_fits([h + n for h, n in zip(held, counts, strict=True)], counts)
        runs = self.take(segments, mode)
        meta = self.metadata(runs, padded_rows)
        x = self.rows_of(segments, padded_rows)
        entries = max((run.start + run.count for run in runs), default=0) // 4
        q = self.before(x, meta, entries, runs if mode == "prefill" else None)
        o = self.attention.attend(q, meta, chosen, runs)
        o, out = self.after(o, meta)
        real = slice(0, len(x) - padded_rows)
        selected = meta.c4_sparse_raw_indices[real].clone() if self.spec.ratio == 4 else None
        return LayerOutput(o[real], out[real], q[real, : self.projections.heads], selected, chosen)

    def take(self, segments: Sequence[NewTokens], mode: str) -> list[Run]:
        """Give each sequence its new positions and pages; all segments are checked before any is taken."""
        numbers = [segment.sequence for segment in segments]
        if len(set(numbers)) != len(numbers):
            raise BadInput(
                f"sequences {numbers} of one step are not distinct; join the tokens of each into one segment."
            )
        if mode not in ("prefill", "decode", "verify"):
            raise BadInput(f"mode is {mode!r}; use prefill, decode or verify.")
        self.sequences.check_new(numbers)
        for segment in segments:
            count = len(segment.x)
            if mode == "decode" and count != 1:
                raise BadInput(f"sequence {segment.sequence} decodes {count} tokens; decode takes one, verify several.")
            if mode == "verify" and count > LOOKBACK:
                raise BadInput(f"sequence {segment.sequence} verifies {count} drafts; at most {LOOKBACK} can follow.")
            self.sequences.check_room(segment.sequence, count)
        runs = []
        for segment in segments:
            first = self.sequences.grow(segment.sequence, len(segment.x))
            row = self.sequences[segment.sequence].state_row
            runs.append(Run(segment.sequence, row, first, len(segment.x)))
        return runs

    def metadata(self, runs: Sequence[Run], padded_rows: int) -> DSV4Metadata:
        """Metadata of the runs' tokens, one row each, and of rows that belong to nobody."""
        state_rows = [run.state_row for run in runs for _ in range(run.count)] + [PADDING_ROW] * padded_rows
        positions = [run.start + k for run in runs for k in range(run.count)] + [-1] * padded_rows
        tables = torch.tensor([self.sequences.page_row(run.number) for run in runs], dtype=torch.int32)
        tables = tables.view(len(runs), self.sequences.width)
        counts = torch.tensor([run.count for run in runs], dtype=torch.int64)
        table = torch.zeros(len(positions), self.sequences.width, dtype=torch.int32)
        table[: len(positions) - padded_rows] = tables.repeat_interleave(counts, 0)
        return build_metadata(state_rows, positions, table, self.spec.geometry.index_topk, self.device)

    def rows_of(self, segments: Sequence[NewTokens], padded_rows: int) -> Tensor:
        """float32 ``(T, hidden)``: the segments' tokens, then NaN in rows that belong to nobody."""
        hidden = self.spec.geometry.hidden_size
        padding = torch.full((padded_rows, hidden), torch.nan, device=self.device)
        return torch.cat([*(segment.x.float() for segment in segments), padding])

    def before(
        self,
        x: Tensor,
        meta: DSV4Metadata,
        entries: int,
        runs: Sequence[Run] | None = None,
        bounds: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Projections, cache writes and the indexer; queries ``(T, padded, 512)``.

        ``entries``: C4 entries that scores are made for, at least what any row sees. Eager prefill gives ``runs``.
        Steps of static shape do not: their compressor state is advanced row by row, or, for chunks of any length, with
        ``bounds`` int64 ``(T,)``: first position of each row's chunk, and the one after its last.
        """
        qr = self.projections.query_source(x)
        self.caches.store(x, self.projections.keys(x, meta.positions), meta, runs, bounds)
        if self.spec.ratio == 4:
            self.caches.select(x, qr, meta, entries, runs)
        return self.projections.queries(qr, meta.positions, self.padded)

    def after(self, o: Tensor, meta: DSV4Metadata) -> tuple[Tensor, Tensor]:
        """o ``(T, n_local, 512)`` of the real heads after the inverse rope, and this rank's share of the output."""
        o = self.projections.unrotated(o[:, : self.projections.heads], meta.positions)
        return o, self.projections.output(o)

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first ``length`` tokens: later ones were drafts that were rejected."""
        self.sequences.truncate(sequence, length)

    def fork(self, source: int, target: int, length: int) -> None:
        """Start ``target`` from the first ``length`` tokens of ``source``, a multiple of 256, sharing cached pages."""
        origin = self.sequences[source].state_row
        self.caches.resume(origin, self.sequences.fork(source, target, length).state_row, length)

    def release(self, sequence: int) -> None:
        """Forget a sequence; its pages and state serve others, uncleared."""
        self.sequences.release(sequence)

    def window_rows(self, sequence: int, positions: Tensor) -> Tensor:
        """Stored keys at positions int64 ``(n,)``, dequantised: float32 ``(n, 512)``."""
        return self.caches.window.load(self._slots(sequence, positions, 1)).float()

    def compressed_rows(self, sequence: int) -> Tensor:
        """Stored entries, dequantised: float32 ``(S // ratio, 512)``. Raises BadInput in a C0 layer."""
        if self.caches.compressed is None:
            raise BadInput("a layer of ratio 0 stores no compressed entries; ask a C4 or C128 layer.")
        return self.caches.compressed.load(self.compressed_slots(sequence)).float()

    def compressed_slots(self, sequence: int) -> Tensor:
        """Slots int64 ``(S // ratio,)`` of the stored entries. Raises BadInput in a C0 layer."""
        if not self.spec.ratio:
            raise BadInput("a layer of ratio 0 stores no compressed entries; ask a C4 or C128 layer.")
        entries = torch.arange(self.sequences[sequence].length // self.spec.ratio, device=self.device)
        return self._slots(sequence, entries, self.spec.ratio)

    def poison(self) -> None:
        """Fill with NaN every byte of pools, compressor state and workspace that no live sequence owns."""
        self.caches.poison()
        if self.attention.workspace.rows:
            self.attention.workspace.get(self.attention.workspace.rows).fill_(torch.nan)

    def sink(self) -> Tensor:
        """The sink that kernels are given, float32 ``(padded,)``, always at one address."""
        return self.local_sink.get()

    def load_sink(self, sink: Tensor) -> None:
        """Write new weights attn_sink ``(H,)`` in place and refresh the local slice, which captured graphs read."""
        self.attn_sink.copy_(sink)
        self.local_sink.refresh()

    def capture(self, rows: int, mode: str = "decode") -> Any:
        """A captured step of ``rows`` rows: mode decode as one graph, prefill as graphs broken at attention.

        Raises BadInput for another mode, or without rows.
        """
        from dsv4_conformance.mla.cuda_graph import DecodeGraph, PrefillGraph

        if mode not in ("decode", "prefill"):
            raise BadInput(f"{mode} steps are not captured; use decode or prefill.")
        return DecodeGraph(self, rows) if mode == "decode" else PrefillGraph(self, rows)

    def path(self, mode: str, path: str, rows: int) -> str:
        """The attention path of a step: as asked, or for "auto" sparse in a prefill unless that is switched off."""
        if path not in ("auto", "paged", "sparse"):
            raise BadInput(f"path is {path!r}; use auto, paged or sparse.")
        if path != "auto":
            return path
        return "sparse" if mode == "prefill" and self.sparse_prefill and rows else "paged"

    def _slots(self, sequence: int, rows: Tensor, ratio: int) -> Tensor:
        pages = torch.tensor(self.sequences.page_row(sequence), device=self.device)
        per_page = 256 // ratio
        return pages[rows // per_page] * per_page + rows % per_page
