"""What an adapter is: identity, declarations per surface, and the calls it answers.

This module imports no torch at run time, so that collection can read declarations without touching a device.
Shapes use the field's names: ``b`` batch rows, ``s_q`` query tokens per row, ``h_q`` query heads, ``topk`` index-list
width, ``P`` page size in tokens; the head dim is always 512 and there is one shared KV head (docs/semantics.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from dsv4_conformance.implementations.extent_api import EXTENT_METHODS, FormulaConvention, PrefixConvention
from dsv4_conformance.implementations.state_api import (
    STATE_METHODS,
    ChunkCacheConvention,
    LayerConvention,
    StateConvention,
)
from dsv4_conformance.implementations.surfaces import StatefulSurfaces

if TYPE_CHECKING:
    from torch import Tensor

SURFACE_METHODS: Mapping[str, tuple[str, ...]] = {
    "SparseDecode": ("decode",),
    "SparsePrefill": ("prefill",),
    "DecodePlan": ("new_plan", "decode_planned"),
    "KVPageFormat": ("pack", "unpack"),
    "IndexKeyFormat": ("pack_index_keys", "unpack_index_keys"),
    "SlotMapping": ("compressed_slots",),
    "HeadLayout": ("padded_heads", "pad_query", "local_sink", "refresh_sink"),
    **STATE_METHODS,
    **EXTENT_METHODS,
}
"""Surface name -> methods an adapter that declares it must define."""


@dataclass(frozen=True)
class Identity:
    """Who is under test. ``kind`` decides which surfaces a profile makes mandatory; reports print ``notes``."""

    name: str
    version: str
    homepage: str
    commit: str = ""
    kind: Literal["kernel", "engine"] = "kernel"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AttentionConvention:
    """Declarations for SparseDecode or SparsePrefill; each is checked, none is taken on trust.

    ``h_q``: head counts the adapter's call accepts, None = any from 1 to 128. ``page_sizes``: None = any (decode only).
    ``topk_multiple``: index widths are padded with -1 to a multiple of this before the call. ``lse_base``: "e" or "2".
    ``lonely_lse``: what lse holds for a row without keys. ``accepts_out``: the call writes into ``call.out`` /
    ``call.lse`` (and ``call.max_logits``) when given, so that red zones around them can be checked.
    ``returns_max_logits``: prefill only. ``returns_lse``: False for a kernel that returns nothing but ``out``.
    ``head_permutation``: whether permuting heads permutes bits (INV-19).
    """

    h_q: tuple[int, ...] | None = None
    page_sizes: tuple[int, ...] | None = None
    topk_multiple: int = 64
    lse_base: Literal["e", "2"] = "e"
    lonely_lse: Literal["+inf", "-inf"] = "+inf"
    accepts_out: bool = False
    returns_max_logits: bool = True
    returns_lse: bool = True
    head_permutation: Literal["bitwise", "rounding"] = "rounding"


@dataclass(frozen=True)
class FormatConvention:
    """Declarations for KVPageFormat and IndexKeyFormat.

    ``ue8m0_floor`` names the quantiser's floor rule (docs/semantics.md §9): "amax_1e-4", "scale_1e-4", "amax_1e-8".
    ``fp8``: the dialect of its bytes, OCP's e4m3fn or e4m3fnuz; ``fp8_max``: the divisor of its scales, 448 or 240 by
    the dialect's largest value unless declared otherwise (some fnuz writers keep to 224).
    """

    page_sizes: tuple[int, ...] | None = None
    ue8m0_floor: Literal["amax_1e-4", "scale_1e-4", "amax_1e-8"] = "amax_1e-4"
    fp8: Literal["e4m3fn", "e4m3fnuz"] = "e4m3fn"
    fp8_max: Literal[448, 240, 224] | None = None


@dataclass(frozen=True)
class PlainConvention:
    """For surfaces that need no declaration beyond being offered."""


@dataclass(frozen=True)
class HeadConvention(PlainConvention):
    """Declarations for HeadLayout; PlainConvention is this with its defaults.

    ``heads``: where a rank's real heads stand in the padded query and in the sink: "first", or at their "own place"
    among all heads, under the sinks of all heads (spec §15: the layout before heads were padded to 64).
    """

    heads: Literal["first", "own place"] = "first"


@dataclass(frozen=True)
class MetadataConvention(PlainConvention):
    """Declarations for GraphMetadata; PlainConvention is this with its defaults.

    ``index_topk``: the values that ``build_metadata`` takes, None = any. ``nobody``: what a padding row names: no key,
    or the first slot of page 0, which no request ever owns.
    """

    index_topk: tuple[int, ...] | None = None
    nobody: Literal["no key", "page 0"] = "no key"


@dataclass(frozen=True)
class ConfigConvention(PlainConvention):
    """Declarations for EngineConfig; PlainConvention is this with its defaults.

    ``tells``: the promised settings that are told (``docs/cli.md``), None = all. ``refuses``: whether unsound configs
    and options are refused; False where no part of the engine that looks at them is driven. ``cp_beside_dp``: whether
    context parallelism runs beside attention replicas.
    """

    tells: tuple[str, ...] | None = None
    refuses: bool = True
    cp_beside_dp: bool = True


Convention = (
    AttentionConvention
    | FormatConvention
    | StateConvention
    | ChunkCacheConvention
    | LayerConvention
    | FormulaConvention
    | PrefixConvention
    | PlainConvention
)


@dataclass(frozen=True)
class KVScope:
    """One paged key scope of a decode call.

    ``pages``: uint8 ``(num_pages, P, 1, 584)`` view with strides ``(B, 584, 584, 1)``, B >= page bytes (spec §9.1): ask
    the view, pages may stand further apart than they are large.
    ``indices``: int32 ``(b, s_q, topk)`` slot ids ``page * P + i``; -1 = hole. ``topk_length``: int32 ``(b,)`` or None:
    number of leftmost list slots to process; anything may stand beyond it.
    """

    pages: Tensor
    indices: Tensor
    topk_length: Tensor | None

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return int(self.pages.shape[1])


@dataclass(frozen=True)
class DecodeCall:
    """One sparse decode call (spec §10). q bf16 ``(b, s_q, h_q, 512)``, last dim contiguous; sink fp32 ``(h_q,)`` or
    None; ``scale`` multiplies dot products. ``out`` / ``lse``: preallocated outputs, given only if the adapter accepts
    them."""

    q: Tensor
    window: KVScope
    extra: KVScope | None
    sink: Tensor | None
    scale: float
    out: Tensor | None = None
    lse: Tensor | None = None


class DecodeResult(NamedTuple):
    """out bf16 ``(b, s_q, h_q, 512)``; lse fp32 ``(b, h_q, s_q)`` in the declared base, sink-free, or any tensor from
    an adapter that declares none, where nobody looks at it."""

    out: Tensor
    lse: Tensor


@dataclass(frozen=True)
class PrefillCall:
    """One sparse prefill call (spec §11). q bf16 ``(s_q, h_q, 512)``; kv bf16 ``(s_kv, 1, 512)``; indices int32
    ``(s_q, 1, topk)``, < 0 or >= s_kv = hole; topk_length int32 ``(s_q,)`` or None; sink fp32 ``(h_q,)`` or None."""

    q: Tensor
    kv: Tensor
    indices: Tensor
    topk_length: Tensor | None
    sink: Tensor | None
    scale: float
    out: Tensor | None = None
    max_logits: Tensor | None = None
    lse: Tensor | None = None


class PrefillResult(NamedTuple):
    """out bf16 ``(s_q, h_q, 512)``; max_logits fp32 ``(s_q, h_q)`` or None; lse fp32 ``(s_q, h_q)``."""

    out: Tensor
    max_logits: Tensor | None
    lse: Tensor


class Implementation(StatefulSurfaces):
    """Base class of adapters: declare ``identity``, ``devices`` and ``surfaces``, and define the surfaces' methods.

    The constructor receives the torch device string ("cpu", "cuda"). Import the engine inside methods or the
    constructor, never at module level of an adapter that lives beside others.
    """

    identity: ClassVar[Identity]
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    compute_capabilities: ClassVar[tuple[tuple[int, int], ...]] = ()
    surfaces: ClassVar[Mapping[str, Convention]] = {}

    def __init__(self, device: str) -> None:
        self.device = device

    @classmethod
    def check_available(cls) -> None:
        """Raise BadInput with one sentence (what is missing, how to get it) if the engine is not installed."""

    def decode(self, call: DecodeCall) -> DecodeResult:
        """SparseDecode: spec §8, §10."""
        raise NotImplementedError

    def new_plan(self) -> Any:
        """DecodePlan: an empty scheduler plan, filled by the first ``decode_planned`` that uses it. Spec §10."""
        raise NotImplementedError

    def decode_planned(self, call: DecodeCall, plan: Any) -> DecodeResult:
        """DecodePlan: ``decode`` under a plan of these shapes and lengths; raises for one of other shapes. Spec §10."""
        raise NotImplementedError

    def prefill(self, call: PrefillCall) -> PrefillResult:
        """SparsePrefill: spec §8, §11."""
        raise NotImplementedError

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        """KVPageFormat: quantise tokens bf16 ``(n, 512)`` and write them at slots int64 ``(n,)`` of pages in place.

        pages: uint8 ``(num_pages, P, 1, 584)`` view as in KVScope. Slot -1 skips the row. Source: spec §9.1, §9.2.
        """
        raise NotImplementedError

    def unpack(self, pages: Tensor, slots: Tensor) -> Tensor:
        """KVPageFormat: bf16 ``(n, 512)`` dequantised rows at slots int64 ``(n,)``. Source: spec §9.2, §13.5."""
        raise NotImplementedError

    def pack_index_keys(self, keys: Tensor, slots: Tensor, pages: Tensor) -> None:
        """IndexKeyFormat: write keys fp32 ``(n, 128)`` at slots of pages uint8 ``(num_pages, 64 * 132)``. Spec §9.3."""
        raise NotImplementedError

    def unpack_index_keys(self, pages: Tensor, slots: Tensor) -> Tensor:
        """IndexKeyFormat: fp32 ``(n, 128)`` dequantised index keys at slots. Spec §9.3."""
        raise NotImplementedError

    def compressed_slots(self, page_table: Tensor, entries: Tensor, ratio: int) -> Tensor:
        """SlotMapping: slot of compressed entry ``entries[r, j]`` of request r, int64; -1 stays -1. Spec §9.4.

        page_table int32 ``(R, pages)`` of 256-token pages; ratio 4 or 128.
        """
        raise NotImplementedError

    def padded_heads(self, n_heads: int, tp: int) -> int:
        """HeadLayout: query heads the kernel is called with on one of ``tp`` ranks. Spec §15."""
        raise NotImplementedError

    def pad_query(self, q: Tensor, padded: int) -> Tensor:
        """HeadLayout: q ``(T, n_local, 512)`` -> ``(T, padded, 512)``, real heads first, then anything. Spec §15."""
        raise NotImplementedError

    def local_sink(self, sink: Tensor, rank: int, tp: int) -> Tensor:
        """HeadLayout: this rank's sink, fp32 ``(padded,)``; one storage for all calls of one (rank, tp). Spec §15."""
        raise NotImplementedError

    def refresh_sink(self, sink: Tensor, rank: int, tp: int) -> None:
        """HeadLayout: re-read the slice after a weight update, in place. Spec §15, INV-54."""
        raise NotImplementedError
