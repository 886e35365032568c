"""Caches rewritten byte by byte: other page sizes, other physical places, clean or poisoned surroundings."""

from dataclasses import replace

import torch
from torch import Tensor

from dsv4_conformance.cases.case import Poison
from dsv4_conformance.cases.generator import words
from dsv4_conformance.cases.pages import page_buffer
from dsv4_conformance.cases.rearrange import Lists, scope_lists
from dsv4_conformance.implementations.api import DecodeCall, KVScope, PrefillCall
from dsv4_conformance.oracle.kv_format import page_views


def copy_slots(source: Tensor, from_slots: Tensor, target: Tensor, to_slots: Tensor) -> None:
    """Copy the 576 data and 7 scale bytes of slots between kernel views."""
    data, scales = page_views(source)
    new_data, new_scales = page_views(target)
    page, row = from_slots // source.shape[1], from_slots % source.shape[1]
    new_page, new_row = to_slots // target.shape[1], to_slots % target.shape[1]
    new_data[new_page, new_row] = data[page, row]
    new_scales[new_page, new_row, :7] = scales[page, row, :7]


def live_slots(scope: KVScope) -> Tensor:
    """Slots that some row references, sorted, int64."""
    lists = scope_lists(scope, "scope")
    slots: Tensor = torch.unique(lists.indices[lists.valid])
    return slots


def repack(call: DecodeCall, window_page: int, extra_page: int, key: int) -> DecodeCall:
    """The same tokens in pages of other sizes, at other physical places (every slot moves), lists renumbered."""
    window = _repacked(call.window, window_page, key, "window")
    extra = None if call.extra is None else _repacked(call.extra, extra_page, key, "extra")
    return replace(call, window=window, extra=extra)


def _repacked(scope: KVScope, page_size: int, key: int, name: str) -> KVScope:
    live, device = live_slots(scope), scope.pages.device
    num_pages = -(-len(live) // page_size) + 2
    places = (num_pages - 1) * page_size  # page 0 stays a dummy page
    shuffled = torch.argsort(words(key, f"repack/{name}", (places,), device), stable=True)[: len(live)] + page_size
    pages = page_buffer(num_pages, page_size, "nan", device)
    copy_slots(scope.pages, live, pages, shuffled)
    number = torch.full((scope.pages.shape[0] * scope.page_size,), -1, dtype=torch.int64, device=device)
    number[live] = shuffled
    lists = scope_lists(scope, name)
    listed = torch.where(lists.valid, number[lists.indices.masked_fill(~lists.valid, 0)], lists.indices)
    return KVScope(pages, listed.to(torch.int32).view(scope.indices.shape), scope.topk_length)


def spread_pages(call: DecodeCall, factor: int) -> DecodeCall:
    """The same pages in the same order, cut from a pool in which they lie ``factor`` times as far apart; what lies
    between them is NaN."""

    def scope(given: KVScope) -> KVScope:
        count, size = given.pages.shape[:2]
        pages = page_buffer(count * factor, size, "nan", given.pages.device)[::factor]
        live = live_slots(given)
        copy_slots(given.pages, live, pages, live)
        return replace(given, pages=pages)

    return replace(call, window=scope(call.window), extra=None if call.extra is None else scope(call.extra))


def resurround(call: DecodeCall | PrefillCall, fill: Poison) -> DecodeCall | PrefillCall:
    """The same live rows at the same places, with ``fill`` in everything else: other slots, pads, tails, red zones."""
    if isinstance(call, PrefillCall):
        listed = call.indices.to(torch.int64)
        live = torch.unique(listed[(listed >= 0) & (listed < call.kv.shape[0])])
        value = {"nan": torch.nan, "inf": torch.inf, "none": 0.0}[fill]
        kv = torch.full_like(call.kv.contiguous(), value)
        kv[live] = call.kv[live]
        return replace(call, kv=kv)

    def scope(given: KVScope) -> KVScope:
        pages = page_buffer(given.pages.shape[0], given.page_size, fill, given.pages.device)
        live = live_slots(given)
        copy_slots(given.pages, live, pages, live)
        return replace(given, pages=pages)

    return replace(call, window=scope(call.window), extra=None if call.extra is None else scope(call.extra))


def _entries(scope: KVScope, offset: int) -> Tensor:
    """Slots of valid entries + ``offset``, -1 elsewhere, ``(b, s_q, topk)``."""
    lists: Lists = scope_lists(scope, "scope")
    return torch.where(lists.valid, lists.indices + offset, -1).view(scope.indices.shape)


def merge_scopes(call: DecodeCall) -> DecodeCall:
    """Both scopes as one window scope: the extra cache's slots follow the window cache's in a new cache."""
    assert call.extra is not None
    window, extra, page = call.window, call.extra, call.window.page_size
    first, second = window.pages.shape[0] * page, extra.pages.shape[0] * extra.page_size
    pages = page_buffer(-(-(first + second) // page), page, "nan", window.pages.device)
    mine, theirs = live_slots(window), live_slots(extra)
    copy_slots(window.pages, mine, pages, mine)
    copy_slots(extra.pages, theirs, pages, theirs + first)
    listed = torch.cat((_entries(window, 0), _entries(extra, first)), -1).to(torch.int32)
    return replace(call, window=KVScope(pages, listed, None), extra=None)


def split_scope(call: DecodeCall) -> DecodeCall:
    """The window scope alone, as two scopes over the same cache: even places of its lists, then odd ones."""
    scope = call.window
    listed = _entries(scope, 0).to(torch.int32)
    odd = torch.arange(listed.shape[-1], device=listed.device) % 2 == 1
    halves = [torch.where(odd == half, listed, -1) for half in (False, True)]
    return replace(call, window=KVScope(scope.pages, halves[0], None), extra=KVScope(scope.pages, halves[1], None))
