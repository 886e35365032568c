"""The engine's KV page: its Triton quantiser, store and paged dequantisation (spec §9.1, §9.2)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

from dsv4_conformance.implementations import sglang_engine as engine
from dsv4_conformance.implementations import sglang_release as release

QUANTISER = "quant_to_nope_fp8_rope_bf16_pack_triton"
QUANTISERS = (
    "sglang.kernels.ops.attention.dsv4.quant_k_cache",
    "sglang.srt.layers.attention.dsv4.quant_k_cache",
    # 0.5.23 quantises in CUDA only; the Triton kernel went on as the reference of the release's own tests.
    "sglang.test.kernels.deepseek_v4.k_cache_reference",
)
STORES = (
    "sglang.kernels.ops.kvcache.dsv4_main_kv_store",
    "sglang.kernels.ops.attention.dsv4.index_buf_accessor",
    "sglang.srt.layers.attention.dsv4.index_buf_accessor",
)
DEQUANTISER = ("dequantize_k_cache_paged_dsv4", "dequantize_k_cache_paged")


def offered() -> bool:
    """Whether the release has all three."""
    read = any(release.first(release.DEQUANTISERS, name) for name in DEQUANTISER)
    return read and None not in (release.first(QUANTISERS, QUANTISER), release.first(STORES, "SetKAndS"))


def pack(tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
    """Quantise tokens bf16 ``(n, 512)`` and store them at slots of pages; rows at slot -1 are left out before.

    The engine's store has no such rows: padding of a batch is written to the first slot of page 0.
    """
    kept = slots >= 0
    packed = getattr(engine.module(_found(QUANTISERS, QUANTISER)), QUANTISER)(tokens[kept])
    store = engine.module(_found(STORES, "SetKAndS")).SetKAndS
    pool = SimpleNamespace(page_size=pages.shape[1])
    store.execute(pool, whole_pages(pages), slots[kept].contiguous(), packed)


def unpack(pages: Tensor, slots: Tensor) -> Tensor:
    """Dequantised rows bf16 ``(n, 512)`` at slots of pages."""
    module = release.first(release.DEQUANTISERS, DEQUANTISER[0]) or _found(release.DEQUANTISERS, DEQUANTISER[1])
    rows: Tensor = engine.attribute(module, *DEQUANTISER)(whole_pages(pages), slots.contiguous(), pages.shape[1])
    return rows[:, 0]


def whole_pages(pages: Tensor) -> Tensor:
    """The pool as the engine holds it: uint8 ``(num_pages, page bytes)``, the bytes behind the last token included."""
    size = pages.stride(0)
    return pages.as_strided((pages.shape[0], size), (size, 1))


def _found(modules: tuple[str, ...], name: str) -> str:
    found = release.first(modules, name)
    if found is None:
        raise engine.misfit(f"no module defines {name}")
    return found
