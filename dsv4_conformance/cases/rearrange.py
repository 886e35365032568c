"""Calls rearranged so that the answer stays, or changes in a known way: index lists, rows and heads.

Every function takes a call and returns a new one; tensors that do not change are shared. Lists keep what stands beyond
topk_length unless said otherwise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dsv4_conformance.cases.generator import words
from dsv4_conformance.implementations.api import DecodeCall, KVScope, PrefillCall

Call = DecodeCall | PrefillCall


@dataclass(frozen=True)
class Lists:
    """One scope's lists by query row: ``indices (R, N)`` int64, ``inside`` the length, ``valid`` = names a key."""

    name: str
    indices: Tensor
    inside: Tensor
    valid: Tensor


Rewrite = Callable[[Lists], Tensor]


def _view(name: str, indices: Tensor, length: Tensor | None, per_group: int, s_kv: int | None) -> Lists:
    flat = indices.reshape(-1, indices.shape[-1]).to(torch.int64)
    place = torch.arange(flat.shape[1], device=flat.device)
    inside = torch.ones_like(flat, dtype=torch.bool)
    if length is not None:
        inside = place < length.repeat_interleave(per_group)[:, None]
    named = flat != -1 if s_kv is None else (flat >= 0) & (flat < s_kv)
    return Lists(name, flat, inside, inside & named)


def scope_lists(scope: KVScope, name: str) -> Lists:
    """The lists of one decode scope."""
    return _view(name, scope.indices, scope.topk_length, scope.indices.shape[1], None)


def prefill_lists(call: PrefillCall) -> Lists:
    """The lists of a prefill call."""
    return _view("window", call.indices, call.topk_length, 1, call.kv.shape[0])


def rewrite_lists(call: Call, rewrite: Rewrite, stretch: int | None = 1) -> Call:
    """The call with every list replaced by ``rewrite(lists)`` ``(R, N')``.

    ``stretch`` multiplies topk_length (1 = as it was); None drops it, so that the whole new list counts.
    """

    def lengths(length: Tensor | None) -> Tensor | None:
        return None if length is None or stretch is None else (length * stretch).to(torch.int32)

    if isinstance(call, PrefillCall):
        listed = rewrite(prefill_lists(call)).to(torch.int32)
        return replace(call, indices=listed[:, None], topk_length=lengths(call.topk_length))

    def scope(given: KVScope, name: str) -> KVScope:
        listed = rewrite(scope_lists(given, name)).to(torch.int32)
        shape = (*given.indices.shape[:2], listed.shape[-1])
        return KVScope(given.pages, listed.view(shape), lengths(given.topk_length))

    extra = None if call.extra is None else scope(call.extra, "extra")
    return replace(call, window=scope(call.window, "window"), extra=extra)


def permute_lists(call: Call, key: int) -> Call:
    """Entries inside each length in another order."""

    def rewrite(lists: Lists) -> Tensor:
        rank = words(key, f"permute/{lists.name}", tuple(lists.indices.shape), lists.indices.device).to(torch.int64)
        place = torch.arange(rank.shape[1], device=rank.device)
        order = torch.argsort(torch.where(lists.inside, rank, 2**32 + place), dim=1, stable=True)
        return torch.gather(lists.indices, 1, order)

    return rewrite_lists(call, rewrite)


def insert_holes(call: Call) -> Call:
    """A -1 after every entry, lengths doubled."""

    def rewrite(lists: Lists) -> Tensor:
        return torch.stack((lists.indices, torch.full_like(lists.indices, -1)), -1).flatten(1)

    return rewrite_lists(call, rewrite, 2)


def repeat_entries(call: Call, times: int = 2) -> Call:
    """Every entry ``times`` times in a row, lengths multiplied."""
    return rewrite_lists(call, lambda lists: lists.indices.repeat_interleave(times, dim=1), times)


def with_lengths(call: Call, lengths: Callable[[str, int], Sequence[int]]) -> Call:
    """The call with topk_length ``lengths(scope, groups)`` in every scope; lists are as wide as before."""

    def given(name: str, groups: int) -> Tensor:
        return torch.tensor(list(lengths(name, groups)), dtype=torch.int32, device=call.q.device)

    if isinstance(call, PrefillCall):
        return replace(call, topk_length=given("window", call.q.shape[0]))
    window = replace(call.window, topk_length=given("window", call.q.shape[0]))
    extra = call.extra and replace(call.extra, topk_length=given("extra", call.q.shape[0]))
    return replace(call, window=window, extra=extra)


def keep_entries(call: Call, keep: Callable[[Lists], Tensor]) -> Call:
    """Only entries where ``keep`` (bool ``(R, N)``); the others become -1, beyond the length too."""
    return rewrite_lists(call, lambda lists: torch.where(keep(lists), lists.indices, -1))


def compact(call: Call) -> Call:
    """Holes removed: valid entries move to the front, lists are filled up with -1 and have no length."""

    def rewrite(lists: Lists) -> Tensor:
        order = torch.argsort(~lists.valid, dim=1, stable=True)
        return torch.where(torch.gather(lists.valid, 1, order), torch.gather(lists.indices, 1, order), -1)

    return rewrite_lists(call, rewrite, None)


def holes_beyond(call: Call) -> Call:
    """Every entry beyond the length, and every hole, as a plain -1."""
    return rewrite_lists(call, lambda lists: torch.where(lists.valid, lists.indices, -1))


def first_key(lists: Lists) -> Tensor:
    """bool ``(R, N)``: the first valid entry of each row."""
    return lists.valid & (lists.valid.cumsum(1) == 1)


def permute_heads(call: Call, order: Tensor) -> Call:
    """Query heads and sinks in another order (``order`` int64 ``(h_q,)``)."""
    sink = None if call.sink is None else call.sink[order]
    return replace(call, q=call.q[..., order, :], sink=sink)


def keep_rows(call: Call, row: int, other: Call) -> Call:
    """``call`` with the queries and, inside each length, the lists of every group but ``row`` taken from ``other``.

    Both come from cases that differ in their seed alone. The caches are those of ``call``; entries of other groups are
    reversed rather than replaced, since the other call's slots mean nothing here.
    """
    same = torch.arange(call.q.shape[0], device=call.q.device) == row
    shape = (-1,) + (1,) * (call.q.dim() - 1)
    q = torch.where(same.view(shape), call.q, other.q)

    def rewrite(lists: Lists) -> Tensor:
        mine = same.repeat_interleave(lists.indices.shape[0] // same.shape[0])[:, None]
        place = torch.arange(lists.indices.shape[1], device=q.device)
        back = (lists.inside.sum(1, keepdim=True) - 1 - place).clamp(min=0)
        reversed_ = torch.where(lists.inside, torch.gather(lists.indices, 1, back), lists.indices)
        return torch.where(mine, lists.indices, reversed_)

    return replace(rewrite_lists(call, rewrite), q=q)
