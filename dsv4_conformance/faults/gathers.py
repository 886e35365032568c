"""Metadata of padding, and what sparse prefill gathers: workspace, combined rows (spec §13, §14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.faults.fault import fault
from dsv4_conformance.faults.layers import Layered
from dsv4_conformance.faults.steps import Chunked, CombinedRows, Stepped, Workspaced
from dsv4_conformance.implementations.state_api import StepBatch
from dsv4_conformance.mla.attend import Attention
from dsv4_conformance.mla.chunk_cache import SparsePrefillChunkCache
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.metadata import DSV4Metadata
from dsv4_conformance.mla.workspace import SparsePrefillWorkspace


@fault("S15", breaks="INV-81")
class PaddingExpandedBelowZero(Stepped):
    """Padding of length 1 is expanded over a draft of four tokens, as if three came before: lengths -2, -1, 0, 1."""

    def built(self, metadata: DSV4Metadata, batch: StepBatch) -> None:
        """Give padding such lengths."""
        padded = metadata.seq_lens == 0
        expanded = torch.arange(int(padded.sum()), dtype=torch.int32) % 4 - 2
        for lengths in (metadata.swa_topk_lengths, metadata.c4_sparse_topk_lengths, metadata.c128_topk_lengths_clamp1):
            lengths[padded] = expanded


@fault("V07", breaks="INV-73")
class ReusedRowsKeepTheirTails(Chunked):
    """Index rows are written into the caller's buffer, and what stood behind their ends stays."""

    class cache(CombinedRows):
        """Dirty tails."""

        def changed(self, rows: Tensor, lengths: Tensor, ratio: int, raw: Tensor | None) -> None:
            """INT32_MAX from each length on."""
            rows[torch.arange(rows.shape[1]) >= lengths[:, None]] = torch.iinfo(torch.int32).max


@fault("O16", breaks="INV-81")
class OffsetsOfAnOlderBatch(Chunked):
    """Row offsets behind the live part are not filled: those rows belong to the last request still."""

    class cache(CombinedRows):
        """Rows of nobody go on."""

        def changed(self, rows: Tensor, lengths: Tensor, ratio: int, raw: Tensor | None) -> None:
            """Repeat the last owned row."""
            owned = self.query_start_loc[-1]
            rows[owned:], lengths[owned:] = rows[owned - 1], lengths[owned - 1]


@fault("V16", breaks="INV-72", symptom="raises")
class WorkspaceLockedAtItsFirstSize(Workspaced):
    """The workspace may not grow beyond what the first call, a profiling run, asked for."""

    class workspace(SparsePrefillWorkspace):
        """Locked."""

        def get(self, rows: int) -> Tensor:
            """Rows of the first buffer."""
            if self._buffer is not None and rows > self.rows:
                raise AssertionError(f"workspace is locked but {rows} rows are requested, current size is {self.rows}")
            return super().get(rows)


@fault("V65", breaks="INV-72")
class SliceStandsInForARequest(Workspaced):
    """A slice of the buffer that is there answers every request, be it too short."""

    class workspace(SparsePrefillWorkspace):
        """Cut silently."""

        def get(self, rows: int) -> Tensor:
            """At most the rows of the first buffer."""
            return super().get(rows) if self._buffer is None else self._buffer[:rows]


@fault("S70", breaks="INV-42", symptom="raises")
class BufferMadeUnderInferenceMode(Layered):
    """The workspace is made on first use, under inference mode; a later step outside of it cannot write there."""

    class kept(SparsePrefillWorkspace):
        """Allocates where it happens to be."""

        def get(self, rows: int) -> Tensor:
            """Rows of an inference tensor."""
            with torch.inference_mode():
                return super().get(rows)

    def change(self, layer: AttentionLayer) -> None:
        """Exchange the workspace's class."""
        layer.attention.workspace.__class__ = self.kept


@fault("O03", breaks="INV-81", symptom="raises")
class PaddingTrimmedOnOnePath(Layered):
    """Only one of two attention paths takes padding rows off; the other meets lists of fewer rows than queries."""

    class attends(Attention):
        """Builds the chunk cache for real rows alone."""

        def _chunk_cache(
            self, meta: DSV4Metadata, runs: Sequence[Any], rows: int, first: int = 0
        ) -> SparsePrefillChunkCache:
            return super()._chunk_cache(meta, runs, sum(run.count for run in runs), first)
