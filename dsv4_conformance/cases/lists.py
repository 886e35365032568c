"""Index lists: picks, duplicates, holes, lengths and what stands beyond them (spec §8, §10, §11)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.cases.case import AttentionCase, ScopeShape
from dsv4_conformance.cases.generator import below

INT_MAX, INT_MIN = 2**31 - 1, -(2**31)
_STEPS = (1, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""Candidate strides of the pick progression; one that shares no factor with the slot count gives distinct picks."""


@dataclass(frozen=True)
class Picks:
    """Token numbers ``(R, topk)`` int64 within the row's own tokens (-1 = hole), lengths ``(R,)`` or None, and for each
    entry whether it lies inside the length."""

    local: Tensor
    length: Tensor | None
    inside: Tensor


def _lengths(case: AttentionCase, shape: ScopeShape, name: str, groups: int, device: torch.device) -> Tensor | None:
    """topk_length int32 ``(groups,)``: few keys first, the rest anywhere, the last 0 if the case has a lonely row."""
    root, topk = case.digest(), shape.topk
    if shape.lengths == "none":
        return None
    if shape.lengths == "zero":
        return torch.zeros(groups, dtype=torch.int32, device=device)
    length = torch.full((groups,), topk, dtype=torch.int64, device=device)
    if shape.lengths == "mixed":
        length = below(root, f"{name}/length", (groups,), topk + 1, device)
        length[-1] = topk - length[-1] // 4
        if groups > 1:
            few = min(7, topk)
            length[0] = 1 + below(root, f"{name}/few", (1,), few, device)[0]
    if case.lonely:
        length[-1] = 0
    return length.to(torch.int32)


def draw_picks(case: AttentionCase, shape: ScopeShape, name: str, per_group: int, device: torch.device) -> Picks:
    """Lists of scope ``name`` for every query row; ``per_group`` query rows share one topk_length.

    Inside the length: distinct tokens (an arithmetic progression modulo the slot count), then duplicates and holes as
    the case says. The first entry of every list is never a hole unless the row is lonely.
    """
    root, topk, slots = case.digest(), shape.topk, shape.slots
    groups = case.s_q if case.surface == "SparsePrefill" else case.b
    rows = groups * per_group
    steps = torch.tensor([s for s in _STEPS if slots % s or s == 1], device=device)
    step = steps[below(root, f"{name}/step", (rows,), len(steps), device)]
    start = below(root, f"{name}/start", (rows,), slots, device)
    place = torch.arange(topk, device=device)
    local = (start[:, None] + step[:, None] * place) % slots
    local[:, slots:] = -1
    if case.duplicates and topk > 1:
        again = below(root, f"{name}/duplicate", (rows, topk - 1), 4, device) == 0
        local[:, 1:] = torch.where(again, local[:, :-1], local[:, 1:])
    if case.holes != "none":
        odds = 8 if case.holes == "some" else 2
        hole = below(root, f"{name}/hole", (rows, topk), odds, device) == 0
        hole[:, 0] = False
        local.masked_fill_(hole, -1)
    length = _lengths(case, shape, name, groups, device)
    if length is None:
        inside = torch.ones(rows, topk, dtype=torch.bool, device=device)
        if groups > 1:
            local[:per_group, 7:] = -1
        if case.lonely:
            local[-per_group:] = -1
    else:
        inside = place < length.repeat_interleave(per_group)[:, None]
    return Picks(local, length, inside)


def beyond_decode(case: AttentionCase, name: str, indices: Tensor, inside: Tensor) -> Tensor:
    """Decode: anything may stand beyond topk_length. Some entries keep their live slot, the others are garbage."""
    code = below(case.digest(), f"{name}/beyond", tuple(indices.shape), 8, indices.device)
    garbage = torch.tensor([INT_MAX, INT_MIN, -1, -7, 2**24 + 3, 0, 0, 0], device=indices.device)[code]
    return torch.where(inside | (code > 4), indices, garbage)


def holes_prefill(case: AttentionCase, name: str, indices: Tensor, s_kv: int) -> Tensor:
    """Prefill: every value < 0 or >= s_kv is a hole (INV-14), so holes take all such forms."""
    code = below(case.digest(), f"{name}/hole_form", tuple(indices.shape), 6, indices.device)
    forms = torch.tensor([-1, INT_MIN, -123456, s_kv, s_kv + 5, INT_MAX], device=indices.device)
    return torch.where(indices < 0, forms[code], indices)


def beyond_prefill(case: AttentionCase, name: str, indices: Tensor, inside: Tensor, s_kv: int) -> Tensor:
    """Prefill: beyond the length stand -1, values >= s_kv, or indices of finite rows; never of NaN rows (spec §11)."""
    code = below(case.digest(), f"{name}/beyond", tuple(indices.shape), 6, indices.device)
    garbage = torch.tensor([-1, s_kv, INT_MAX, INT_MIN, 0, 0], device=indices.device)[code]
    return torch.where(inside | (code > 3), indices, garbage)
