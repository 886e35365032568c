"""Attention calls that are changed on their way: lists, keys and bytes of a call, and hooks around the built-in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from dsv4_conformance.implementations.api import (
    DecodeCall,
    DecodeResult,
    KVScope,
    PrefillCall,
    PrefillResult,
)
from dsv4_conformance.implementations.builtin import Builtin

Call = DecodeCall | PrefillCall
Change = Callable[[int, Tensor, Tensor], Tensor]


class Called(Builtin):
    """The built-in kernels, right; subclasses change the call before it runs or the result after it."""

    touches: ClassVar[tuple[str, ...]] = ("SparseDecode", "SparsePrefill")

    def before(self, call: Any) -> Any:
        """The call that is really made."""
        return call

    def after(self, call: Any, result: Any) -> Any:
        """What is really returned; ``result`` may be changed in place."""
        return result

    def decode(self, call: DecodeCall) -> DecodeResult:
        """SparseDecode with the hooks."""
        done: DecodeResult = self.after(call, super().decode(self.before(call)))
        return done

    def prefill(self, call: PrefillCall) -> PrefillResult:
        """SparsePrefill with the hooks."""
        done: PrefillResult = self.after(call, super().prefill(self.before(call)))
        return done


def lists_of(call: Call) -> list[tuple[Tensor, Tensor]]:
    """Per scope: indices int64 ``(R, N)`` with every hole as -1, and which of them name a key, bool ``(R, N)``."""
    if isinstance(call, PrefillCall):
        raw = call.indices[:, 0].long()
        return [_valid(torch.where((raw >= 0) & (raw < call.kv.shape[0]), raw, -1), call.topk_length, 1)]
    scopes = [scope for scope in (call.window, call.extra) if scope is not None]
    return [_valid(s.indices.flatten(0, 1).long(), s.topk_length, call.q.shape[1]) for s in scopes]


def _valid(lists: Tensor, length: Tensor | None, per_row: int) -> tuple[Tensor, Tensor]:
    inside = torch.ones_like(lists, dtype=torch.bool)
    if length is not None:
        inside = torch.arange(lists.shape[1]) < length.long().repeat_interleave(per_row)[:, None]
    return lists, inside & (lists != -1)


def with_lists(call: Call, change: Change) -> Call:
    """The call with each scope's lists replaced by ``change(scope number, lists, valid)``; -1 where not valid before,
    and no lengths any more."""
    new = []
    for number, (lists, valid) in enumerate(lists_of(call)):
        new.append(change(number, torch.where(valid, lists, -1), valid).to(torch.int32))
    if isinstance(call, PrefillCall):
        return replace(call, indices=new[0][:, None].contiguous(), topk_length=None)

    def scope(given: KVScope, lists: Tensor) -> KVScope:
        return KVScope(given.pages, lists.view(*given.indices.shape[:2], -1).contiguous(), None)

    extra = None if call.extra is None else scope(call.extra, new[1])
    return replace(call, window=scope(call.window, new[0]), extra=extra)


def keys_of(call: Call, lists: list[Tensor]) -> Tensor:
    """Keys float32 ``(R, N1 + N2, 512)`` at ``lists`` (each ``(R, N)``, every entry in range), whatever they hold."""
    from dsv4_conformance.mla.kernels.kv_format import unpack_slots

    if isinstance(call, PrefillCall):
        return call.kv[:, 0][lists[0]].float()
    scopes = [scope for scope in (call.window, call.extra) if scope is not None]
    rows = [unpack_slots(s.pages, at.flatten()).view(*at.shape, 512) for s, at in zip(scopes, lists, strict=True)]
    return torch.cat(rows, 1).float()


def tables_of(pages: Tensor) -> tuple[Tensor, Tensor]:
    """Data rows ``(num_pages, P, 576)`` and scale rows ``(num_pages, P, 8)`` behind a kernel view, as views."""
    num_pages, size = pages.shape[:2]
    start, stride = int(pages.storage_offset()), pages.stride(0)
    data = pages.as_strided((num_pages, size, 576), (stride, 576, 1), start)
    return data, pages.as_strided((num_pages, size, 8), (stride, 8, 1), start + 576 * size)


def with_bytes(call: Call, change: Callable[[Tensor, Tensor], None]) -> Call:
    """A decode call on copies of its caches, changed in place by ``change(data rows, scale rows)``."""
    if isinstance(call, PrefillCall):
        return call

    def scope(given: KVScope) -> KVScope:
        raw = torch.empty(0, dtype=torch.uint8).set_(given.pages.untyped_storage()).clone()
        pages = raw.as_strided(given.pages.shape, given.pages.stride(), given.pages.storage_offset())
        change(*tables_of(pages))
        return replace(given, pages=pages)

    return replace(call, window=scope(call.window), extra=None if call.extra is None else scope(call.extra))


def with_scopes(call: Call, change: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]) -> Call:
    """The call with the indices and lengths of each scope replaced by ``change(indices, lengths)``."""
    if isinstance(call, PrefillCall):
        indices, length = change(call.indices, call.topk_length)
        return replace(call, indices=indices, topk_length=length)

    def scope(given: KVScope) -> KVScope:
        indices, length = change(given.indices, given.topk_length)
        return replace(given, indices=indices, topk_length=length)

    return replace(call, window=scope(call.window), extra=None if call.extra is None else scope(call.extra))


def per_head(call: Call, lse: Tensor) -> Tensor:
    """lse of any call as a view ``(R, h_q)``, or a copy where its strides allow no view."""
    return lse.transpose(1, 2).flatten(0, 1) if isinstance(call, DecodeCall) else lse
