"""Adapter of FlashMLA's sparse kernels for the V4 cache, from the ``sgl-flash-mla`` wheel (spec §10, §11)."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.api import (
    AttentionConvention,
    Convention,
    DecodeCall,
    DecodeResult,
    Identity,
    Implementation,
    PlainConvention,
    PrefillCall,
    PrefillResult,
)

if TYPE_CHECKING:
    from torch import Tensor

DISTRIBUTION = "sgl-flash-mla"
REMEDY = "install it with `pip install 'dsv4-conformance[flash-mla]'`"
HEAD_DIM = 512
KERNEL_HEADS = (64, 128)


def _version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "not installed"


class FlashMLA(Implementation):
    """FlashMLA sparse decode and sparse prefill on SM90 and SM100.

    The 584-byte V4 cache is served by the kernels that the wheel keeps beside its current ones, so every call asks for
    those. The scheduler's metadata is made anew for each call: reused for other lengths it is silently wrong.
    """

    identity: ClassVar[Identity] = Identity(
        name="flash_mla",
        version=_version(),
        homepage="https://github.com/sgl-project/FlashMLA",
        kind="kernel",
        notes=(
            "the kernels take 64 or 128 query heads; the adapter pads other counts (zero query, zero sink) and slices",
            "allocates its own outputs, so red zones around outputs are not checked",
        ),
    )
    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    compute_capabilities: ClassVar[tuple[tuple[int, int], ...]] = ((9, 0), (10, 0), (10, 3))
    surfaces: ClassVar[Mapping[str, Convention]] = {
        "SparseDecode": AttentionConvention(topk_multiple=64),
        "SparsePrefill": AttentionConvention(topk_multiple=128),
        "DecodePlan": PlainConvention(),
    }

    @classmethod
    def check_available(cls) -> None:
        """Raise BadInput if the wheel is missing, or if ``flash_mla`` comes from another distribution."""
        if importlib.util.find_spec("flash_mla") is None:
            raise BadInput(f"implementation 'flash_mla' needs the module flash_mla, which is not installed; {REMEDY}.")
        if _version() == "not installed":
            raise BadInput(
                f"implementation 'flash_mla' needs {DISTRIBUTION}, but the installed module flash_mla comes from "
                f"something else; uninstall that and {REMEDY}."
            )

    def __init__(self, device: str) -> None:
        super().__init__(device)
        try:
            self._engine = importlib.import_module("flash_mla")
        except (ImportError, OSError) as error:  # the wheel's libraries are loaded by path: OSError if one does not fit
            reason = " ".join(str(error).split())
            raise BadInput(f"implementation 'flash_mla' cannot load its kernels ({reason}); {REMEDY}.") from None
        if not self._engine.has_legacy():
            raise BadInput(
                "implementation 'flash_mla' needs the kernels for the 584-byte cache, which this build of "
                f"{DISTRIBUTION} lacks; {REMEDY}."
            )

    def decode(self, call: DecodeCall) -> DecodeResult:
        """SparseDecode: spec §10, under a plan of its own."""
        return self.decode_planned(call, self.new_plan())

    def new_plan(self) -> Any:
        """DecodePlan: an empty ``FlashMLASchedMeta``."""
        return self._engine.get_mla_metadata()[0]

    def decode_planned(self, call: DecodeCall, plan: Any) -> DecodeResult:
        """DecodePlan: spec §10. The engine asserts that a plan is used for its shapes; lengths it does not check."""
        heads = call.q.shape[2]
        extra = call.extra
        for scope in (call.window, extra):
            if scope is not None:
                _check_width(scope.indices, 64)
        out, lse = self._engine.flash_mla_with_kvcache(
            q=_pad_heads(call.q),
            k_cache=call.window.pages,
            block_table=None,
            cache_seqlens=None,
            head_dim_v=HEAD_DIM,
            tile_scheduler_metadata=plan,
            softmax_scale=call.scale,
            is_fp8_kvcache=True,
            indices=call.window.indices,
            attn_sink=_pad_sink(call.sink, heads),
            extra_k_cache=extra and extra.pages,
            extra_indices_in_kvcache=extra and extra.indices,
            topk_length=call.window.topk_length,
            extra_topk_length=extra and extra.topk_length,
            use_legacy=True,
        )
        return DecodeResult(out[:, :, :heads], lse[:, :heads])

    def prefill(self, call: PrefillCall) -> PrefillResult:
        """SparsePrefill: spec §11. Statistics in natural-log units are what the call gives by default."""
        heads = call.q.shape[1]
        _check_width(call.indices, 128)
        out, max_logits, lse = self._engine.flash_mla_sparse_fwd(
            q=_pad_heads(call.q),
            kv=call.kv,
            indices=call.indices,
            sm_scale=call.scale,
            d_v=HEAD_DIM,
            attn_sink=_pad_sink(call.sink, heads),
            topk_length=call.topk_length,
            use_legacy=True,
        )
        return PrefillResult(out[:, :heads], max_logits[:, :heads], lse[:, :heads])


def _check_width(indices: Tensor, multiple: int) -> None:
    """Raise BadInput for lists that the kernels are not built for: what they assert ends the process."""
    if indices.shape[-1] % multiple:
        raise BadInput(f"lists are {indices.shape[-1]} wide; pad them with -1 to a multiple of {multiple}.")


def _kernel_heads(heads: int) -> int:
    return next((count for count in KERNEL_HEADS if heads <= count), heads)


def _pad_heads(q: Tensor) -> Tensor:
    """q ``(..., h_q, 512)`` with zero heads appended up to a count the kernels take; q itself if it has one."""
    heads = q.shape[-2]
    padded = _kernel_heads(heads)
    if padded == heads:
        return q
    wide = q.new_zeros(*q.shape[:-2], padded, q.shape[-1])
    wide[..., :heads, :] = q
    return wide


def _pad_sink(sink: Tensor | None, heads: int) -> Tensor | None:
    """Sink fp32 ``(heads,)`` with zeros appended as _pad_heads does; None stays None. Raises BadInput for another
    number of sinks, which padding would hide from the kernel."""
    if sink is not None and tuple(sink.shape) != (heads,):
        raise BadInput(f"sinks are {tuple(sink.shape)} and the queries have {heads} heads; pass one for each.")
    if sink is None or _kernel_heads(sink.shape[0]) == sink.shape[0]:
        return sink
    wide = sink.new_zeros(_kernel_heads(sink.shape[0]))
    wide[: sink.shape[0]] = sink
    return wide
