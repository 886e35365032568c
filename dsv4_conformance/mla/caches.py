"""What a layer stores: window and compressed rows, index keys, compressor state (spec §5, §6, §7, §9).

All pools use the same page numbers: page n of the window pool holds 256 tokens, page n of the compressed pool their 64
C4 or 2 C128 entries, page n of the index pool the keys of those entries (spec §9.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from dsv4_conformance.mla.compress_static import extend_static
from dsv4_conformance.mla.compressor import Compressor
from dsv4_conformance.mla.indexer import Indexer
from dsv4_conformance.mla.metadata import DSV4Metadata
from dsv4_conformance.mla.pools import IndexKeyPool, KVPool
from dsv4_conformance.mla.sequences import PAGE, Sequences
from dsv4_conformance.spec.geometry import HEAD_DIM
from dsv4_conformance.spec.weights import IndexerSpec, LayerSpec


class Tokens(Protocol):
    """Consecutive tokens of one sequence in an eager prefill."""

    @property
    def state_row(self) -> int:
        """Compressor state row."""

    @property
    def start(self) -> int:
        """Position of the first token."""

    @property
    def count(self) -> int:
        """Tokens."""


class LayerCaches:
    """Pools and state of one layer. ``unified``: where rows are stored as they are, the buffer ``(rows, 1, 512)`` that
    holds the window's rows first, the compressed ones from row ``compressed_from`` on."""

    def __init__(self, spec: LayerSpec, sequences: Sequences, table: Tensor, device: torch.device) -> None:
        pages, rows = sequences.pages.num_pages, sequences.state_rows
        self._sequences, self._ratio = sequences, spec.ratio
        self.dtype = torch.bfloat16 if spec.precision == "bfloat16" else torch.float32
        self.window = KVPool(pages, PAGE, spec.quantised, self.dtype, device)
        self.compressed: KVPool | None = None
        self.compressor: Compressor | None = None
        self.indexer: Indexer | None = None
        self.index_keys: IndexKeyPool | None = None
        if spec.ratio:
            assert spec.weights.compressor is not None
            self.compressed = KVPool(pages, PAGE // spec.ratio, spec.quantised, self.dtype, device)
            self.compressor = Compressor(
                spec.weights.compressor,
                spec.ratio,
                HEAD_DIM,
                table,
                spec.geometry.rms_norm_eps,
                rows,
                device=device,
                tail_pages=sequences.width,
            )
        if spec.ratio == 4:
            assert spec.weights.indexer is not None
            view = IndexerSpec(spec.geometry, spec.weights.indexer, table, spec.quantised)
            self.indexer = Indexer(view, rows, tail_pages=sequences.width)
            self.index_keys = IndexKeyPool(pages, spec.quantised, device)
        self.compressed_from = pages * PAGE
        self.unified = None if spec.quantised else self._join()

    def store(
        self,
        x: Tensor,
        keys: Tensor,
        meta: DSV4Metadata,
        runs: Sequence[Tokens] | None,
        bounds: tuple[Tensor, Tensor] | None,
    ) -> None:
        """Write the tokens' window rows, advance the compressors, and write the entries that tokens complete.

        With ``runs`` eagerly, sequence by sequence; else row by row with static shapes (``AttentionLayer.before``).
        Rows of nobody write nothing.
        """
        self.window.store(keys, meta.raw_out_loc)
        if self.compressor is None or self.compressed is None:
            return
        slots = meta.c4_out_loc if self._ratio == 4 else meta.c128_out_loc
        self._compress(self.compressor, self.compressed, x, slots, meta, runs, bounds)
        if self.indexer is not None and self.index_keys is not None:
            self._compress(self.indexer.compressor, self.index_keys, x, slots, meta, runs, bounds)

    def _compress(
        self,
        compressor: Compressor,
        pool: KVPool | IndexKeyPool,
        x: Tensor,
        slots: Tensor,
        meta: DSV4Metadata,
        runs: Sequence[Tokens] | None,
        bounds: tuple[Tensor, Tensor] | None,
    ) -> None:
        ug = compressor.project(x)
        if bounds is not None:
            entries = extend_static(compressor, ug, meta.state_rows, meta.positions, *bounds)
        elif runs is None:
            entries = compressor.advance(ug, meta.state_rows, meta.positions)
        else:
            owned = sum(run.count for run in runs)
            entries, closing = compressor.extend(ug[:owned], [(run.state_row, run.start, run.count) for run in runs])
            slots = slots[closing]
        if self.indexer is not None and compressor is self.indexer.compressor:
            entries = self.indexer.rotate_keys(entries)
        pool.store(entries, slots)

    def select(self, x: Tensor, qr: Tensor, meta: DSV4Metadata, entries: int, runs: Sequence[Tokens] | None) -> None:
        """Score ``entries`` C4 entries per row and write the selection into the metadata (spec §7).

        With ``runs`` sequence by sequence, so that the keys of each are read once.
        """
        assert self.indexer is not None and self.index_keys is not None
        iq, weights = self.indexer.queries(x, qr, meta.positions)
        if runs is None:
            scores = self.indexer.scores_paged(iq, weights, self.index_keys, meta.page_table, entries)
        else:
            scores = iq.new_zeros(len(iq), entries)
            first = 0
            for run in runs:
                part = slice(first, first := first + run.count)
                own = (run.start + run.count) // 4
                table = meta.page_table[part][:1]
                scores[part, :own] = self.indexer.scores_paged(iq[part], weights[part], self.index_keys, table, own)
        raw = self.indexer.select(scores, meta.c4_topk_lengths_raw.long(), meta.index_topk)
        meta.c4_sparse_raw_indices.copy_(raw)
        meta.c4_sparse_page_indices.copy_(self.indexer.paged(raw, meta.page_table))

    def storage(self) -> dict[str, Tensor]:
        """Every tensor that steps read and write, by name."""
        pools = {"window": self.window, "compressed": self.compressed, "index keys": self.index_keys}
        held = {name: pool.buffer for name, pool in pools.items() if pool is not None}
        return held | {f"state {n}": compressor.state for n, compressor in enumerate(self._compressors())}

    def resume(self, source: int, target: int, length: int) -> None:
        """Give state row ``target`` what a sequence needs to go on from the cached prefix of state row ``source``."""
        for compressor in self._compressors():
            compressor.import_tail(target, length, compressor.export_tail(source, length))

    def poison(self) -> None:
        """Fill with NaN every byte that no live sequence owns."""
        live = self._sequences.pages.live()
        for pool in (self.window, self.compressed, self.index_keys):
            if pool is not None:
                pool.poison(live)
        for compressor in self._compressors():
            compressor.poison(self._sequences.live_rows())

    def _compressors(self) -> list[Compressor]:
        found = [self.compressor, None if self.indexer is None else self.indexer.compressor]
        return [compressor for compressor in found if compressor is not None]

    def _join(self) -> Tensor:
        """Let both exact pools live in one buffer."""
        pools = [pool for pool in (self.window, self.compressed) if pool is not None]
        joined = torch.cat([pool.buffer for pool in pools])
        start = 0
        for pool in pools:
            pool.buffer = joined[start : start + len(pool.buffer)]
            start += len(pool.buffer)
        return joined[:, None]
