"""Adapter of SGLang's released DeepSeek-V4 attention: its classes and its Triton kernels (spec §9 to §17).

One release per process, the one that ``import sglang`` finds. What is offered and declared follows from what its
modules define. ``docs/engines.md`` tells what is driven, what is stood in for, and what it cannot show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from dsv4_conformance.implementations import (
    sglang_config,
    sglang_decode,
    sglang_engine,
    sglang_pages,
    sglang_standins,
    triton_interpreter,
)
from dsv4_conformance.implementations import sglang_release as release
from dsv4_conformance.implementations.api import (
    AttentionConvention,
    ConfigConvention,
    Convention,
    DecodeCall,
    DecodeResult,
    FormatConvention,
    HeadConvention,
    Identity,
    Implementation,
    MetadataConvention,
    PlainConvention,
)
from dsv4_conformance.implementations.state_api import ChunkCacheConvention

if TYPE_CHECKING:
    from torch import Tensor

    from dsv4_conformance.implementations.sessions import WorkspaceSession
    from dsv4_conformance.implementations.sglang_heads import RankLayer
    from dsv4_conformance.implementations.sglang_metadata import MetadataSession
    from dsv4_conformance.implementations.sglang_prefill import ChunkCacheSession
    from dsv4_conformance.implementations.state_api import ExtendBatch, ServerOptions, Settings, StepBatch

REFRESH = "refresh_for_breakable_cuda_graph_replay_"
WORKSPACES = ("SparsePrefillKVBuffer", "SparsePrefillWorkspace")


def _surfaces() -> dict[str, Convention]:
    """What this release offers; what the newest one does where there is none, so that declarations can be read."""
    absent = release.folder() is None
    # Heads were padded to all heads, at the rank's place, until the sink was cut to the rank's and kept.
    cut = absent or release.mentions(release.MODEL, "_attn_sink_local")
    # Rows of each request's own came with a gather per ratio; ratio 128 has as many for every request to this day.
    ragged = absent or (
        release.has(release.CHUNKS, "CompressedGather") and release.mentions(release.CHUNKS, "repeat_interleave")
    )
    found: dict[str, tuple[bool, Convention]] = {
        "HeadLayout": (True, HeadConvention("first" if cut else "own place")),
        "KVPageFormat": (sglang_pages.offered(), FormatConvention(ue8m0_floor="amax_1e-8")),
        "SparseDecode": (sglang_decode.offered(), AttentionConvention(topk_multiple=1)),
        "SparsePrefillWorkspace": (
            any(release.has(release.CHUNKS, name) for name in WORKSPACES),
            PlainConvention(),
        ),
        "SparsePrefillChunkCache": (
            release.has(release.CHUNKS, "SparsePrefillChunkCache.build"),
            ChunkCacheConvention("ragged" if ragged else "rectangular", "rectangular"),
        ),
        "GraphMetadata": (
            release.has(release.BACKEND, "DSV4Metadata.copy_", f"DSV4Metadata.{REFRESH}"),
            MetadataConvention(index_topk=(512, 1024), nobody="page 0"),
        ),
        "EngineConfig": (
            release.has(release.HOOK, "validate_deepseek_v4_cp"),
            ConfigConvention(tells=sglang_config.TOLD, refuses=False, cp_beside_dp=False),
        ),
    }
    return {surface: convention for surface, (offered, convention) in found.items() if offered or absent}


class SGLang(Implementation):
    """The SGLang release on the path, on the CPU in Triton's interpreter, on CUDA natively."""

    identity: ClassVar[Identity] = Identity(
        name="sglang",
        version=release.version(),
        homepage="https://github.com/sgl-project/sglang",
        kind="engine",
        notes=(
            "driven: MQALayer.forward up to the backend, chunk cache, workspace, metadata builders, copy and refresh,",
            "KV quantiser, store and dequantisation, Triton sparse decode, the hook for context parallelism",
            "stood in for: weights and query preparation, the backend that is called, parallel state, memory pools, "
            "FlashMLA's scheduler objects, the compressor's plans",
            "rows at slot -1 are left out before the engine's store, which has no such rows",
            sglang_standins.NOTES,
            f"on a CPU: {triton_interpreter.NOTE}",
        ),
    )
    surfaces: ClassVar[Mapping[str, Convention]] = _surfaces()

    @classmethod
    def check_available(cls) -> None:
        """Raise BadInput, in one sentence, if SGLang is missing, or too old or too new for what is driven."""
        sglang_engine.check_available()

    def __init__(self, device: str) -> None:
        super().__init__(device)
        sglang_engine.load(device)
        self._ranks: dict[tuple[int, int, int], tuple[Tensor, RankLayer]] = {}

    def padded_heads(self, n_heads: int, tp: int) -> int:
        """HeadLayout: spec §15. Heads of the query that the backend is called with for one token."""
        import torch

        sink = torch.zeros(n_heads, device=self.device)
        return self._pad(sink.new_zeros(1, n_heads // tp, 512, dtype=torch.bfloat16), sink, tp).shape[1]

    def pad_query(self, q: Tensor, padded: int) -> Tensor:
        """HeadLayout: spec §15. Rank 0 of as many ranks as such a query can come from."""
        import torch

        local = q.shape[1]
        tp = padded // local if padded % local == 0 else 2
        return self._pad(q, torch.zeros(local * tp, device=q.device), tp)

    def _pad(self, q: Tensor, sink: Tensor, tp: int) -> Tensor:
        from dsv4_conformance.implementations.sglang_heads import RankLayer

        return RankLayer(len(sink), 0, tp, sink).forward(q)[0]

    def local_sink(self, sink: Tensor, rank: int, tp: int) -> Tensor:
        """HeadLayout: spec §15. The sink that the backend is called with; the layer's parameter is ``sink`` itself."""
        import torch

        q = sink.new_zeros(1, len(sink) // tp, 512, dtype=torch.bfloat16)
        return self._rank(sink, rank, tp).forward(q)[1]

    def refresh_sink(self, sink: Tensor, rank: int, tp: int) -> None:
        """HeadLayout: spec §15. What the engine does after a weight update: nothing, in releases up to 0.5.22."""
        self._rank(sink, rank, tp).refresh()

    def _rank(self, sink: Tensor, rank: int, tp: int) -> RankLayer:
        """The layer of this rank whose parameter is this very tensor."""
        from dsv4_conformance.implementations.sglang_heads import RankLayer

        key = (len(sink), rank, tp)
        if key not in self._ranks or self._ranks[key][0] is not sink:
            self._ranks[key] = (sink, RankLayer(len(sink), rank, tp, sink))
        return self._ranks[key][1]

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        """KVPageFormat: spec §9.1, §9.2."""
        sglang_pages.pack(tokens, slots, pages)

    def unpack(self, pages: Tensor, slots: Tensor) -> Tensor:
        """KVPageFormat: spec §9.2."""
        return sglang_pages.unpack(pages, slots)

    def decode(self, call: DecodeCall) -> DecodeResult:
        """SparseDecode: spec §8, §10."""
        return sglang_decode.decode(call)

    def open_workspace(self) -> WorkspaceSession:
        """SparsePrefillWorkspace: spec §13.1."""
        from dsv4_conformance.implementations.sglang_prefill import open_workspace

        return cast("WorkspaceSession", open_workspace(self.device))

    def open_chunk_cache(self, batch: ExtendBatch) -> ChunkCacheSession:
        """SparsePrefillChunkCache: spec §13.2 to §13.4."""
        from dsv4_conformance.implementations.sglang_prefill import ChunkCacheSession

        return ChunkCacheSession(batch, self.device)

    def build_metadata(self, batch: StepBatch) -> MetadataSession:
        """GraphMetadata: spec §14."""
        from dsv4_conformance.implementations.sglang_metadata import MetadataSession

        return MetadataSession(batch, self.device)

    def resolve_config(
        self, config: Mapping[str, Any], options: ServerOptions, environment: Mapping[str, str]
    ) -> Settings:
        """EngineConfig: spec §16, §17. Whether sparse prefill is on, and what was logged about it."""
        return sglang_config.resolve(options, environment)
