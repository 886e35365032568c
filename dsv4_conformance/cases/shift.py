"""Calls in which every logit of a head can be shifted at once: one channel is 1 in all keys (INV-16)."""

from dataclasses import replace

import torch
from torch import Tensor

from dsv4_conformance.implementations.api import DecodeCall, KVScope, PrefillCall
from dsv4_conformance.oracle.kv_format import page_views

Call = DecodeCall | PrefillCall

CHANNEL = 511
"""The last rope channel: stored as plain bf16, so that a 1 there is exact."""


def _levelled(pages: Tensor) -> Tensor:
    """A copy of the cache whose rows all hold 1 in CHANNEL."""
    storage = torch.empty(0, dtype=torch.uint8, device=pages.device).set_(pages.untyped_storage()).clone()
    copy = storage.as_strided(pages.shape, pages.stride(), pages.storage_offset())
    page_views(copy)[0].view(torch.bfloat16)[..., -1] = 1.0
    return copy


def level_channel(call: Call) -> Call:
    """The call with CHANNEL 1 in every key and 0 in every query."""
    q = call.q.clone()
    q[..., CHANNEL] = 0
    if isinstance(call, PrefillCall):
        kv = call.kv.clone()
        kv[..., CHANNEL] = 1
        return replace(call, q=q, kv=kv)

    def scope(given: KVScope) -> KVScope:
        return replace(given, pages=_levelled(given.pages))

    return replace(call, q=q, window=scope(call.window), extra=None if call.extra is None else scope(call.extra))


def step_query(call: Call, shift: float) -> tuple[Call, float]:
    """A levelled call whose logits all rise by ``shift``, and by how much they do once bf16 has rounded the query."""
    step = torch.tensor(shift / call.scale, dtype=torch.bfloat16)
    q = call.q.clone()
    q[..., CHANNEL] = step
    return replace(call, q=q), float(step) * call.scale
