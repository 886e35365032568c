"""FlashMLA's sparse kernels as the built-in layer calls them (spec §10, §11)."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.spec.geometry import HEAD_DIM

HEADS = (64, 128)
"""Query heads the kernels are built for; nothing else is accepted."""
DECODE_MULTIPLE = 64
PREFILL_MULTIPLE = 128


def engine() -> Any:
    """The module ``flash_mla`` with kernels for the 584-byte cache. Raises BadInput if it is not there."""
    remedy = "install it with `pip install 'dsv4-conformance[flash-mla]'`, or open the layer with the torch kernels"
    try:
        found = importlib.import_module("flash_mla")
    except (ImportError, OSError) as error:
        raise BadInput(f"FlashMLA cannot be loaded ({' '.join(str(error).split())}); {remedy}.") from None
    if not found.has_legacy():
        raise BadInput(f"this build of FlashMLA lacks the kernels for the 584-byte cache; {remedy}.")
    return found


def decode(
    flash: Any,
    q: Tensor,
    window: tuple[Tensor, Tensor, Tensor],
    extra: tuple[Tensor, Tensor, Tensor] | None,
    sink: Tensor,
    scale: float,
    plan: Any,
) -> Tensor:
    """out bf16 ``(T, h_q, 512)`` of q bf16 ``(T, h_q, 512)``, one query per batch row.

    A scope is (pages, slots int32 ``(T, n)``, lengths int32 ``(T,)``). ``plan`` is a scheduler object of this forward
    and these lengths: reused for other lengths it is silently wrong, so a graph records the planning itself.
    """
    pages, slots, lengths = window
    more = extra or (None, None, None)
    out, _ = flash.flash_mla_with_kvcache(
        q=q[:, None],
        k_cache=pages,
        block_table=None,
        cache_seqlens=None,
        head_dim_v=HEAD_DIM,
        tile_scheduler_metadata=plan,
        softmax_scale=scale,
        is_fp8_kvcache=True,
        indices=slots[:, None],
        attn_sink=sink,
        extra_k_cache=more[0],
        extra_indices_in_kvcache=None if more[1] is None else more[1][:, None],
        topk_length=lengths,
        extra_topk_length=more[2],
        use_legacy=True,
    )
    return out[:, 0]  # type: ignore[no-any-return]


def prefill(
    flash: Any, q: Tensor, rows: Tensor, indices: Tensor, lengths: Tensor | None, sink: Tensor, scale: float
) -> Tensor:
    """out bf16 ``(T, h_q, 512)`` over rows bf16 ``(s, 1, 512)`` at indices int32 ``(T, n)``, n a multiple of 128."""
    out, _, _ = flash.flash_mla_sparse_fwd(
        q=q,
        kv=rows,
        indices=indices[:, None],
        sm_scale=scale,
        d_v=HEAD_DIM,
        attn_sink=sink,
        topk_length=lengths,
        use_legacy=True,
    )
    return out  # type: ignore[no-any-return]
