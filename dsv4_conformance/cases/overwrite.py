"""A call's tensors given the content of another call's, in place: addresses, shapes and strides stay (INV-103)."""

import torch
from torch import Tensor

from dsv4_conformance.implementations.api import DecodeCall, KVScope, PrefillCall

Call = DecodeCall | PrefillCall


def overwrite(call: Call, other: Call) -> None:
    """Copy every input of ``other`` over the same input of ``call``; both come from cases that differ in seed alone.

    Caches are copied byte for byte, what surrounds live rows included.
    """
    pairs: list[tuple[Tensor | None, Tensor | None]] = [(call.q, other.q), (call.sink, other.sink)]
    if isinstance(call, PrefillCall) and isinstance(other, PrefillCall):
        pairs += [(call.kv, other.kv), (call.indices, other.indices), (call.topk_length, other.topk_length)]
    elif isinstance(call, DecodeCall) and isinstance(other, DecodeCall):
        for mine, theirs in ((call.window, other.window), (call.extra, other.extra)):
            if isinstance(mine, KVScope) and isinstance(theirs, KVScope):
                pairs += [(mine.indices, theirs.indices), (mine.topk_length, theirs.topk_length)]
                pairs += [(_storage(mine.pages), _storage(theirs.pages))]
    for target, source in pairs:
        if target is not None and source is not None:
            target.copy_(source)


def _storage(pages: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=pages.device).set_(pages.untyped_storage())
