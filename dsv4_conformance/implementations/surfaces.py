"""Default methods of the stateful surfaces (spec §5 to §7, §13 to §17); an adapter defines those it declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from dsv4_conformance.implementations.extent_api import PlannerSession, PrefixSession
    from dsv4_conformance.implementations.sessions import (
        ChunkCacheSession,
        CompressorSession,
        IndexerSession,
        LayerSession,
        MetadataSession,
        WorkspaceSession,
    )
    from dsv4_conformance.implementations.state_api import ExtendBatch, ServerOptions, Settings, StepBatch
    from dsv4_conformance.spec.weights import CompressorSpec, IndexerSpec, LayerSpec


class StatefulSurfaces:
    """Default methods of the stateful surfaces; an adapter defines those it declares."""

    def open_compressor(self, spec: CompressorSpec, sequences: int) -> CompressorSession:
        """Compressor: spec §5, §6. State for up to ``sequences`` sequences."""
        raise NotImplementedError

    def open_indexer(self, spec: IndexerSpec, sequences: int, max_tokens: int) -> IndexerSession:
        """Indexer: spec §7."""
        raise NotImplementedError

    def select_topk(
        self, scores: Tensor, lengths: Tensor, topk: int, page_table: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Indexer: raw and paged int32 ``(T, topk)`` from scores float32 ``(T, N)`` of which row t has ``lengths[t]``.

        paged is None if the adapter declares that it has no pages.
        Beyond its length a row holds anything, NaN included. page_table int32 ``(T, pages)``. Spec §7, §9.4.
        """
        raise NotImplementedError

    def open_workspace(self) -> WorkspaceSession:
        """SparsePrefillWorkspace: spec §13.1."""
        raise NotImplementedError

    def open_chunk_cache(self, batch: ExtendBatch) -> ChunkCacheSession:
        """SparsePrefillChunkCache: spec §13.2 to §13.4."""
        raise NotImplementedError

    def build_metadata(self, batch: StepBatch) -> MetadataSession:
        """GraphMetadata: spec §14."""
        raise NotImplementedError

    def open_layer(self, spec: LayerSpec) -> LayerSession:
        """AttentionLayer: spec §2, §15."""
        raise NotImplementedError

    def resolve_config(
        self, config: Mapping[str, Any], options: ServerOptions, environment: Mapping[str, str]
    ) -> Settings:
        """EngineConfig: what a deployment of this Hugging Face config will do. Spec §1, §12, §16, §17.

        Raises BadInput with one sentence for a combination that is not supported.
        """
        raise NotImplementedError

    def formula(self, name: str, points: Sequence[tuple[int, ...]]) -> Sequence[int]:
        """Formula: the value at each point, computed as kernels and planners compute it; spec/formulas.py says which
        arguments a point has. Raises BadInput with one sentence for a point that no pool of this engine has."""
        raise NotImplementedError

    def open_planner(self, rows: int, ratios: Sequence[int]) -> PlannerSession:
        """Planner: chunks of prefills over a workspace of ``rows`` rows that serves layers of these ratios. Spec §13.1.

        Raises BadInput for rows < 1.
        """
        raise NotImplementedError

    def open_prefix_cache(self, spec: LayerSpec) -> PrefixSession:
        """PrefixReuse: a layer of ``spec`` whose prefixes are found again by content. Spec §2, §9.4."""
        raise NotImplementedError
