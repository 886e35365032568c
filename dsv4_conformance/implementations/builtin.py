"""The built-in implementation: shows that the suites can pass, runs without a GPU, and is the model for adapters."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, cast

from dsv4_conformance import __version__
from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.api import (
    AttentionConvention,
    Convention,
    DecodeCall,
    DecodeResult,
    FormatConvention,
    Identity,
    Implementation,
    PlainConvention,
    PrefillCall,
    PrefillResult,
)
from dsv4_conformance.implementations.extent_api import FormulaConvention, PrefixConvention
from dsv4_conformance.implementations.state_api import (
    ChunkCacheConvention,
    ExtendBatch,
    LayerConvention,
    ServerOptions,
    Settings,
    StateConvention,
    StepBatch,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dsv4_conformance.implementations.extent_api import PlannerSession, PrefixSession
    from dsv4_conformance.implementations.sessions import IndexerSession, LayerSession
    from dsv4_conformance.mla.chunk_cache import SparsePrefillChunkCache
    from dsv4_conformance.mla.heads import LocalSink
    from dsv4_conformance.mla.metadata import DSV4Metadata
    from dsv4_conformance.mla.sessions import CompressorSession
    from dsv4_conformance.mla.workspace import SparsePrefillWorkspace
    from dsv4_conformance.spec.weights import CompressorSpec, IndexerSpec, LayerSpec


class Builtin(Implementation):
    """Adapter of ``dsv4_conformance.mla`` for CPU and CUDA; offers every surface."""

    identity: ClassVar[Identity] = Identity(
        name="builtin",
        version=__version__,
        homepage="https://pypi.org/project/dsv4-conformance/",
        kind="engine",
        notes=("written for clarity, in torch: its timings say nothing about a kernel",),
    )
    surfaces: ClassVar[Mapping[str, Convention]] = {
        "SparseDecode": AttentionConvention(topk_multiple=1, accepts_out=True),
        "SparsePrefill": AttentionConvention(topk_multiple=1, accepts_out=True),
        "DecodePlan": PlainConvention(),
        "KVPageFormat": FormatConvention(),
        "IndexKeyFormat": FormatConvention(),
        "SlotMapping": PlainConvention(),
        "HeadLayout": PlainConvention(),
        "Compressor": StateConvention(),
        "Indexer": StateConvention(),
        "EngineConfig": PlainConvention(),
        "SparsePrefillWorkspace": PlainConvention(),
        "SparsePrefillChunkCache": ChunkCacheConvention(),
        "GraphMetadata": PlainConvention(),
        "AttentionLayer": LayerConvention(budgets=True),
        "Formula": FormulaConvention(),
        "Planner": PlainConvention(),
        "PrefixReuse": PrefixConvention(),
    }

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._sinks: dict[tuple[int, int, int], LocalSink] = {}
        self._workspaces: dict[str, SparsePrefillWorkspace] = {}

    def decode(self, call: DecodeCall) -> DecodeResult:
        """SparseDecode: spec §8, §10."""
        from dsv4_conformance.mla.kernels.torch import sparse_decode

        done = sparse_decode(call.q, call.window, call.extra, call.sink, call.scale, call.out, call.lse)
        return DecodeResult(*done)

    def new_plan(self) -> list[tuple[int, ...]]:
        """DecodePlan: the shapes of the call that the plan was made for; empty until there is one."""
        return []

    def decode_planned(self, call: DecodeCall, plan: list[tuple[int, ...]]) -> DecodeResult:
        """DecodePlan: spec §10. The torch kernel plans nothing; a plan is bound to its shapes all the same."""
        scopes = [scope for scope in (call.window, call.extra) if scope is not None]
        shapes = (*call.q.shape[:3], *(n for scope in scopes for n in (scope.page_size, scope.indices.shape[2])))
        if not plan:
            plan.append(shapes)
        if plan[0] != shapes:
            raise BadInput(f"the plan was made for shapes {plan[0]} and the call has {shapes}; make a new plan.")
        return self.decode(call)

    def prefill(self, call: PrefillCall) -> PrefillResult:
        """SparsePrefill: spec §8, §11."""
        from dsv4_conformance.mla.kernels.torch import sparse_prefill

        where = (call.out, call.max_logits, call.lse)
        done = sparse_prefill(call.q, call.kv, call.indices, call.topk_length, call.sink, call.scale, *where)
        return PrefillResult(*done)

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        """KVPageFormat: spec §9.1, §9.2."""
        from dsv4_conformance.mla.kernels.kv_format import pack_pages

        pack_pages(tokens, slots, pages)

    def unpack(self, pages: Tensor, slots: Tensor) -> Tensor:
        """KVPageFormat: spec §9.2."""
        from dsv4_conformance.mla.kernels.kv_format import unpack_slots

        return unpack_slots(pages, slots)

    def pack_index_keys(self, keys: Tensor, slots: Tensor, pages: Tensor) -> None:
        """IndexKeyFormat: spec §9.3."""
        from dsv4_conformance.mla.kernels.kv_format import pack_index_keys

        pack_index_keys(keys, slots, pages)

    def unpack_index_keys(self, pages: Tensor, slots: Tensor) -> Tensor:
        """IndexKeyFormat: spec §9.3."""
        from dsv4_conformance.mla.kernels.kv_format import unpack_index_keys

        return unpack_index_keys(pages, slots)

    def compressed_slots(self, page_table: Tensor, entries: Tensor, ratio: int) -> Tensor:
        """SlotMapping: spec §9.4."""
        from dsv4_conformance.mla.kernels.kv_format import compressed_slots

        return compressed_slots(page_table, entries, ratio)

    def padded_heads(self, n_heads: int, tp: int) -> int:
        """HeadLayout: spec §15."""
        from dsv4_conformance.mla.heads import padded_heads

        return padded_heads(n_heads, tp)

    def pad_query(self, q: Tensor, padded: int) -> Tensor:
        """HeadLayout: spec §15."""
        from dsv4_conformance.mla.heads import pad_query

        return pad_query(q, padded)

    def local_sink(self, sink: Tensor, rank: int, tp: int) -> Tensor:
        """HeadLayout: one storage per (rank, tp); another sink tensor is copied into it. Spec §15."""
        return self._sink(sink, rank, tp).get()

    def refresh_sink(self, sink: Tensor, rank: int, tp: int) -> None:
        """HeadLayout: spec §15, INV-54."""
        self._sink(sink, rank, tp).refresh()

    def open_compressor(self, spec: CompressorSpec, sequences: int) -> CompressorSession:
        """Compressor: spec §5, §6."""
        from dsv4_conformance.mla.sessions import CompressorSession

        return CompressorSession(spec, sequences, self.device)

    def open_indexer(self, spec: IndexerSpec, sequences: int, max_tokens: int) -> IndexerSession:
        """Indexer: spec §7."""
        from dsv4_conformance.mla import sessions

        # Its selections are tuples of its own with a Selection's fields: mla knows no adapters.
        return cast("IndexerSession", sessions.IndexerSession(spec, sequences, max_tokens))

    def select_topk(self, scores: Tensor, lengths: Tensor, topk: int, page_table: Tensor) -> tuple[Tensor, Tensor]:
        """Indexer: spec §7, §9.4."""
        from dsv4_conformance.mla.topk import paged, select

        raw = select(scores, lengths, topk)
        return raw, paged(raw, page_table)

    def open_workspace(self) -> SparsePrefillWorkspace:
        """SparsePrefillWorkspace: spec §13.1."""
        from dsv4_conformance.mla.workspace import SparsePrefillWorkspace

        return SparsePrefillWorkspace(self.device)

    def open_chunk_cache(self, batch: ExtendBatch) -> SparsePrefillChunkCache:
        """SparsePrefillChunkCache: spec §13.2 to §13.4."""
        from dsv4_conformance.mla.chunk_cache import SparsePrefillChunkCache

        return SparsePrefillChunkCache.build(batch.seq_lens, batch.extend_lens, batch.window_slots, batch.query_rows)

    def build_metadata(self, batch: StepBatch) -> DSV4Metadata:
        """GraphMetadata: spec §14. Compressor state is no part of this surface: every row gets state row 0."""
        from dsv4_conformance.mla.metadata import build_metadata

        positions = [seq_len - 1 for seq_len in batch.seq_lens]
        return build_metadata([0] * len(positions), positions, batch.page_table, batch.index_topk)

    def open_layer(self, spec: LayerSpec) -> LayerSession:
        """AttentionLayer: spec §2, §15. All layers of one precision share the workspace of sparse prefill (§13.1).

        The environment's switch decides whether path "auto" prefills with it; explicit paths are honoured.
        """
        import torch

        from dsv4_conformance.mla.config_checks import switch
        from dsv4_conformance.mla.layer import AttentionLayer
        from dsv4_conformance.mla.workspace import SparsePrefillWorkspace

        dtype = getattr(torch, spec.precision)
        rows = self._workspaces.setdefault(spec.precision, SparsePrefillWorkspace(self.device, dtype))
        sparse = switch(os.environ) != "off"
        return cast("LayerSession", AttentionLayer(spec, self.device, workspace=rows, sparse_prefill=sparse))

    def resolve_config(
        self, config: Mapping[str, Any], options: ServerOptions, environment: Mapping[str, str]
    ) -> Settings:
        """EngineConfig: spec §12, §15-§17."""
        from dsv4_conformance.mla.config import resolve
        from dsv4_conformance.mla.config_checks import Deployment

        found = resolve(config, Deployment(**asdict(options)), environment)
        return Settings(found.values, found.warnings)

    def formula(self, name: str, points: Sequence[tuple[int, ...]]) -> list[int]:
        """Formula: spec §6, §9, §13."""
        from dsv4_conformance.mla.formulas import evaluate

        return evaluate(name, points)

    def open_planner(self, rows: int, ratios: Sequence[int]) -> PlannerSession:
        """Planner: spec §13.1."""
        from dsv4_conformance.mla.planner import Planner

        # Its pieces are of a class of its own with a Piece's fields: mla knows no adapters.
        return cast("PlannerSession", Planner(rows, ratios))

    def open_prefix_cache(self, spec: LayerSpec) -> PrefixSession:
        """PrefixReuse: spec §2, §9.4."""
        from dsv4_conformance.mla.prefix_cache import PrefixCache

        return cast("PrefixSession", PrefixCache(spec, self.device))

    def _sink(self, sink: Tensor, rank: int, tp: int) -> LocalSink:
        from dsv4_conformance.mla.heads import LocalSink

        key = (rank, tp, sink.shape[0])
        local = self._sinks.get(key)
        if local is None:
            local = self._sinks[key] = LocalSink(sink, rank, tp)
        local.follow(sink)
        return local
