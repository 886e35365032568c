"""The engine's Triton sparse decode over the 584-byte cache (spec §10).

``triton_fp8_attention_fwd`` takes what FlashMLA's ``flash_mla_with_kvcache`` takes. It rounds where that does: keys are
exact in bf16, scores and sums are float32, weights are rounded to bf16 before they meet the values, under the largest
score so far, and the output is divided and rounded at the end.
"""

from __future__ import annotations

from dsv4_conformance.implementations import sglang_engine as engine
from dsv4_conformance.implementations import sglang_release as release
from dsv4_conformance.implementations.api import DecodeCall, DecodeResult

FUNCTION = "triton_fp8_attention_fwd"
HEAD_DIM = 512


def offered() -> bool:
    """Whether the release has the kernel."""
    return release.first(release.DECODERS, FUNCTION) is not None


def decode(call: DecodeCall) -> DecodeResult:
    """The engine's wrapper allocates its outputs; its lse is ``(b, s_q, h_q)`` in natural units."""
    found = release.first(release.DECODERS, FUNCTION)
    assert found is not None
    extra = call.extra
    out, lse = getattr(engine.module(found), FUNCTION)(
        q=call.q,
        k_cache=call.window.pages,
        head_dim_v=HEAD_DIM,
        softmax_scale=call.scale,
        indices=call.window.indices,
        attn_sink=call.sink,
        extra_k_cache=extra and extra.pages,
        extra_indices_in_kvcache=extra and extra.indices,
        topk_length=call.window.topk_length,
        extra_topk_length=extra and extra.topk_length,
    )
    return DecodeResult(out, lse.transpose(1, 2))
