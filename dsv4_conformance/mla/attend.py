"""Core attention of a layer: paged, over unified exact rows, or over the sparse-prefill workspace (spec §8-§13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from dsv4_conformance.mla.backend import Kernels, Listed, masked
from dsv4_conformance.mla.caches import LayerCaches
from dsv4_conformance.mla.chunk_cache import SparsePrefillChunkCache
from dsv4_conformance.mla.heads import LocalSink
from dsv4_conformance.mla.host_lists import offsets
from dsv4_conformance.mla.metadata import DSV4Metadata
from dsv4_conformance.mla.planner import Planner
from dsv4_conformance.mla.sequences import PAGE
from dsv4_conformance.mla.workspace import SparsePrefillWorkspace
from dsv4_conformance.spec.weights import LayerSpec

MAX_PAGED_ROWS = 11673
"""Query rows of one paged call; more are served in pieces (spec §12)."""
ROWS_MULTIPLE = 128
"""Width of index rows into a flat buffer: what the narrowest kernel asks for (spec §11)."""


class Extended(Protocol):
    """One sequence of an extend batch."""

    @property
    def start(self) -> int:
        """Position of its first new token."""

    @property
    def count(self) -> int:
        """New tokens."""


@dataclass(frozen=True)
class Cut:
    """Part of a sequence's new tokens."""

    start: int
    count: int


class Attention:
    """Attends from padded queries to what the caches hold; each way is given the same local sink."""

    def __init__(
        self,
        spec: LayerSpec,
        kernels: Kernels,
        caches: LayerCaches,
        sink: LocalSink,
        workspace: SparsePrefillWorkspace,
        device: torch.device,
        planner: Planner | None = None,
    ) -> None:
        self._ratio, self._scale = spec.ratio, spec.geometry.softmax_scale
        self._kernels, self._caches, self._sink, self.workspace = kernels, caches, sink, workspace
        self._device, self._planner = device, planner

    def check_fits(self, seq_lens: Sequence[int], extend_lens: Sequence[int]) -> None:
        """Raise BadInput if the workspace is bounded and too small for some new token of such a sparse prefill."""
        if self._planner is not None:
            self._planner.plan(seq_lens, extend_lens)

    def attend(self, q: Tensor, meta: DSV4Metadata, path: str, runs: Sequence[Extended]) -> Tensor:
        """out ``(T, padded, 512)``; rows that belong to nobody give 0. ``runs`` are needed on the sparse path only."""
        if not len(q):
            return q
        if path == "sparse" and runs:
            return self._sparse(q, meta, runs)
        return self.unified(q, meta) if self._caches.unified is not None else self.paged(q, meta)

    def paged(self, q: Tensor, meta: DSV4Metadata) -> Tensor:
        """Through slot lists into quantised pages (spec §10)."""
        scopes = [self._window(meta), self._extra(meta)]
        pieces = []
        for start in range(0, len(q), MAX_PAGED_ROWS):
            part = slice(start, start + MAX_PAGED_ROWS)
            window, extra = (
                None if scope is None else Listed(scope.pool, scope.slots[part], scope.lengths[part])
                for scope in scopes
            )
            assert window is not None
            # A scheduler's plan holds for the lengths of one call: a new one each time, recorded where a graph is.
            plan = self._kernels.plan()
            pieces.append(self._kernels.paged(q[part], window, extra, self._sink.get(), self._scale, plan))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def unified(self, q: Tensor, meta: DSV4Metadata) -> Tensor:
        """Over the one buffer that holds window and compressed rows as they are."""
        assert self._caches.unified is not None
        window, extra = self._window(meta), self._extra(meta)
        lists = [masked(window.slots, window.lengths)]
        if extra is not None:
            slots = masked(extra.slots, extra.lengths)
            lists.append(torch.where(slots < 0, slots, slots + self._caches.compressed_from))
        joined = torch.cat(lists, 1)
        joined = pad(joined, (0, -joined.shape[1] % ROWS_MULTIPLE), value=-1)
        return self._kernels.rows(q, self._caches.unified, joined, None, self._sink.get(), self._scale)

    def _sparse(self, q: Tensor, meta: DSV4Metadata, runs: Sequence[Extended]) -> Tensor:
        """Over rows gathered once for the whole batch into the workspace (spec §13); by chunks if it is bounded."""
        if self._planner is not None:
            return self._in_chunks(q, meta, runs, self._planner)
        cache = meta.chunk_cache()
        if cache is None:
            cache = self._chunk_cache(meta, runs, len(q))
            meta.attach_chunk_cache(cache)
        return self._gathered(q, meta, cache, slice(None))

    def _in_chunks(self, q: Tensor, meta: DSV4Metadata, runs: Sequence[Extended], planner: Planner) -> Tensor:
        """A gather of its own for each chunk: its rows alone, and their requests up to the last of them."""
        out = torch.zeros_like(q)
        firsts = offsets([run.count for run in runs])
        for chunk in planner.plan([run.start + run.count for run in runs], [run.count for run in runs]):
            pieces = [Cut(piece.start, piece.count) for piece in chunk]
            first = firsts[chunk[0].request] + chunk[0].start - runs[chunk[0].request].start
            rows = slice(first, first + sum(piece.count for piece in pieces))
            cache = self._chunk_cache(meta, pieces, rows.stop - rows.start, first)
            out[rows] = self._gathered(q[rows], meta, cache, rows)
        return out

    def _gathered(self, q: Tensor, meta: DSV4Metadata, cache: SparsePrefillChunkCache, part: slice) -> Tensor:
        """Gather what ``cache`` lists and attend to it from the query rows ``part`` of the step."""
        if self._ratio == 4:
            cache.ensure_c4(meta.page_table[part])
        elif self._ratio == 128:
            cache.ensure_c128(meta.c128_page_indices[part])
        raw = meta.c4_sparse_raw_indices[part] if self._ratio == 4 else None
        indices, lengths = cache.combined(self._ratio, raw)
        head = cache.compressed_rows(self._ratio)
        with self.workspace.use(cache.workspace_rows(self._ratio)) as rows:
            if head:
                assert self._caches.compressed is not None
                self._caches.compressed.load(cache.token_ids(self._ratio), rows[:head, 0])
            self._caches.window.load(cache.window_token_ids(), rows[head:, 0])
            return self._kernels.rows(q, rows, indices, lengths, self._sink.get(), self._scale)

    def _chunk_cache(
        self, meta: DSV4Metadata, runs: Sequence[Extended], rows: int, first: int = 0
    ) -> SparsePrefillChunkCache:
        """For ``runs``, the first of which begins at query row ``first`` of the step."""
        lens = [run.start + run.count for run in runs]
        firsts = [first + start for start in offsets([run.count for run in runs])[:-1]]
        positions = torch.arange(max(lens), device=self._device)
        tables = meta.page_table[firsts].long()
        slots = tables[:, positions // PAGE] * PAGE + positions % PAGE
        return SparsePrefillChunkCache.build(lens, [run.count for run in runs], slots.to(torch.int32), rows)

    def _window(self, meta: DSV4Metadata) -> Listed:
        return Listed(self._caches.window, meta.swa_page_indices, meta.swa_topk_lengths)

    def _extra(self, meta: DSV4Metadata) -> Listed | None:
        pool = self._caches.compressed
        if pool is None:
            return None
        if self._ratio == 4:
            return Listed(pool, meta.c4_sparse_page_indices, meta.c4_sparse_topk_lengths)
        return Listed(pool, meta.c128_page_indices, meta.c128_topk_lengths_clamp1)
