"""Whole layers that are wrong in one place each: heads and sinks, projections, kernels, the workspace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor

from dsv4_conformance.faults import layers, sinks_and_heads
from dsv4_conformance.faults.layers import Kernels
from dsv4_conformance.mla import chunk_cache, combine, metadata
from dsv4_conformance.mla.attend import Attention
from dsv4_conformance.mla.chunk_cache import SparsePrefillChunkCache
from dsv4_conformance.mla.heads import LocalSink
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.metadata import DSV4Metadata
from dsv4_conformance.mla.norm import rms_norm
from dsv4_conformance.mla.pools import KVPool
from dsv4_conformance.mla.rope import apply_rope
from dsv4_conformance.mla.step import LayerOutput, NewTokens
from dsv4_conformance.mla.workspace import SparsePrefillWorkspace
from dsv4_conformance.spec.weights import LayerSpec, RopeTables
from tests.miniatures.base import Miniature
from tests.miniatures.state import C128FromTheFirstRow


class Layered(Miniature, layers.Layered):
    """The built-in layer, right; subclasses open it otherwise, name a class that steps otherwise, or change a part."""


def _pools(layer: AttentionLayer) -> list[KVPool]:
    return [pool for pool in (layer.caches.window, layer.caches.compressed) if pool is not None]


class SinkSliceWithoutTheRank(Layered):
    """Every rank copies the first rank's sinks."""

    def change(self, layer: AttentionLayer) -> None:
        layer.local_sink._first = 0


class SinkNeverReadAgain(Layered, sinks_and_heads.SinkNeverReadAgain):
    """Keeps what it read at the first forward, whatever is loaded later."""


class SinkBuiltForEveryStep(Layered):
    """Hands out a new tensor each time."""

    class built(LocalSink):
        def get(self) -> Tensor:
            return super().get().clone()

    def change(self, layer: AttentionLayer) -> None:
        layer.local_sink.__class__ = self.built


class SinkMovedByAnUpdate(Layered, sinks_and_heads.SinkMovedByAnUpdate):
    """A refresh makes a new tensor, so a captured graph goes on with the old one."""


class UnifiedPathWithAllSinks(Layered, sinks_and_heads.UnifiedPathWithAllSinks):
    """The second attention path is given the sinks of rank 0, which begin the checkpoint's vector."""


class OneScaleForAllHeads(Layered):
    """Scales a token's queries by the maximum over all heads, padded ones among them, and back."""

    class kernels(Kernels):
        def before(self, q: Tensor) -> Tensor:
            top = q.abs().amax((1, 2), keepdim=True)
            return q / top * top

    def change(self, layer: AttentionLayer) -> None:
        layer.attention._kernels = self.kernels(layer.attention._kernels)


class PaddedHeadsTimesZero(Layered, sinks_and_heads.PaddedHeadsTimesZero):
    """Masks padded heads by a product with 0 in a sum over heads, which NaN survives."""


class WorkspaceAssumedZero(Layered):
    """Adds the gathered rows to a workspace that every call leaves cleared."""

    class cleared(SparsePrefillWorkspace):
        @contextmanager
        def use(self, rows: int) -> Iterator[Tensor]:
            with super().use(rows) as view:
                yield view
                view.zero_()

    def change(self, layer: AttentionLayer) -> None:
        layer.attention.workspace.__class__ = self.cleared
        for pool in _pools(layer):
            vars(pool)["load"] = partial(self.added, pool.load)

    @staticmethod
    def added(load: Any, slots: Tensor, out: Tensor | None = None) -> Tensor:
        """Rows as they are, or added to what stands there."""
        rows: Tensor = load(slots)
        return rows if out is None else out.add_(rows)


class GatheredOnceForAllLayers(Layered):
    """Takes rows for gathered where another layer of the batch has put its own."""

    def change(self, layer: AttentionLayer) -> None:
        for pool in _pools(layer):
            vars(pool)["load"] = partial(self.once, vars(layer.attention.workspace), pool.load)

    @staticmethod
    def once(shared: dict[str, Any], load: Any, slots: Tensor, out: Tensor | None = None) -> Tensor:
        """Rows as they are, or into ``out`` unless the last ones there had the same slots."""
        key = None if out is None else (out.data_ptr(), slots.tolist())
        if key is not None and shared.get("gathered") == key:
            assert out is not None
            return out
        shared["gathered"] = key or shared.get("gathered")
        rows: Tensor = load(slots, out)
        return rows


class ChunkCacheOfTheBatchBefore(Layered):
    """Keeps the gather lists for the next batch of as many rows."""

    class attends(Attention):
        kept: SparsePrefillChunkCache | None = None

        def _chunk_cache(
            self, meta: DSV4Metadata, runs: Sequence[Any], rows: int, first: int = 0
        ) -> SparsePrefillChunkCache:
            if self.kept is None or self.kept.query_rows != rows:
                self.kept = super()._chunk_cache(meta, runs, rows, first)
            return self.kept


class C128GatherFromTheFirstRow(Layered):
    """Lists the entries that a request's first new query sees."""

    class attends(Attention):
        def _chunk_cache(
            self, meta: DSV4Metadata, runs: Sequence[Any], rows: int, first: int = 0
        ) -> SparsePrefillChunkCache:
            cache = super()._chunk_cache(meta, runs, rows, first)
            cache.__class__ = C128FromTheFirstRow.cache
            return cache


class ScaleOf576(Layered):
    """Divides logits by the root of 512 + 64."""

    def change(self, layer: AttentionLayer) -> None:
        layer.attention._scale = 576**-0.5


class TableOfCompressedLayersEverywhere(Layered):
    """Window layers are given the table with YaRN."""

    def spec(self, spec: LayerSpec) -> LayerSpec:
        return replace(spec, rope=RopeTables(spec.rope.compressed, spec.rope.compressed))


class TableOfWindowLayersEverywhere(Layered):
    """Compressed layers are given the plain table."""

    def spec(self, spec: LayerSpec) -> LayerSpec:
        return replace(spec, rope=RopeTables(spec.rope.plain, spec.rope.plain))


class NoInverseRope(Layered):
    """Leaves o at the angles of its keys."""

    def change(self, layer: AttentionLayer) -> None:
        vars(layer.projections)["unrotated"] = lambda o, positions: o


class InverseRopeAtTheOldestKey(Layered):
    """Turns o back by the angle of the first key in the window instead of the query's."""

    def change(self, layer: AttentionLayer) -> None:
        right = layer.projections.unrotated
        vars(layer.projections)["unrotated"] = lambda o, positions: right(o, (positions - 127).clamp(min=0))


class KeysRopedBeforeTheirNorm(Layered):
    """The norm's weights then meet rotated dims. (Queries are normed without weights: for them the order is free.)"""

    def change(self, layer: AttentionLayer) -> None:
        p = layer.projections

        def keys(x: Tensor, positions: Tensor) -> Tensor:
            return rms_norm(apply_rope(x @ p._wkv.T, p._table, positions), p._kv_norm, p._eps).to(p._dtype)

        vars(p)["keys"] = keys


class QueriesWithoutTheirNorm(Layered):
    """Skips the norm of each head."""

    def change(self, layer: AttentionLayer) -> None:
        p = layer.projections

        def queries(qr: Tensor, positions: Tensor, padded: int) -> Tensor:
            q = apply_rope((qr @ p._wq_b.T).view(len(qr), p.heads, 512), p._table, positions)
            return torch.cat((q, q.new_zeros(len(q), padded - p.heads, 512)), 1).to(p._dtype)

        vars(p)["queries"] = queries


class HeadsDealtOutToGroups(Layered):
    """Head h goes to group h mod G."""

    def change(self, layer: AttentionLayer) -> None:
        p, right = layer.projections, layer.projections.output
        vars(p)["output"] = lambda o: right(o.reshape(len(o), -1, p._groups, 512).transpose(1, 2).flatten(1, 2))


class OutputColumnsOfRank0(Layered):
    """Every rank multiplies by the first columns of wo_b."""

    def change(self, layer: AttentionLayer) -> None:
        p, whole = layer.projections, layer.spec.weights.wo_b
        p._wo_b = whole[:, : p._wo_b.shape[1]]


class _Windowed(AttentionLayer):
    """A layer whose lists and gathers have windows of another size."""

    window: ClassVar[int]

    def step(
        self, segments: Sequence[NewTokens], mode: str = "prefill", padded_rows: int = 0, path: str = "auto"
    ) -> LayerOutput:
        with (
            mock.patch.object(metadata, "WINDOW", self.window),
            mock.patch.object(combine, "WINDOW", self.window),
            mock.patch.object(chunk_cache, "WINDOW", self.window),
        ):
            return super().step(segments, mode, padded_rows, path)


class WindowOf127(Layered):
    """Loses the oldest key of the window."""

    class made(_Windowed):
        window = 127


class WindowOf129(Layered):
    """Sees one key too many."""

    class made(_Windowed):
        window = 129
