"""Tensors of an attention case: queries, pages or kv rows, lists, lengths, sinks (docs/semantics.md §20)."""

from dataclasses import replace

import torch
from torch import Tensor

from dsv4_conformance.cases import lists
from dsv4_conformance.cases.case import AttentionCase, ScopeShape
from dsv4_conformance.cases.generator import below, bf16_values, words
from dsv4_conformance.cases.pages import fill_pages, page_buffer, plan_pages
from dsv4_conformance.cases.problem import problem_of
from dsv4_conformance.implementations.api import DecodeCall, KVScope, PrefillCall
from dsv4_conformance.oracle.attention import Problem, attention

D = 512
NEEDLE_LOGIT = 12.0
"""Logit of the key that a needle query aims at, before a quarter of a random query is added."""
_RED = {"nan": torch.nan, "inf": torch.inf, "none": 0.0}


def build(case: AttentionCase, device: torch.device | str) -> DecodeCall | PrefillCall:
    """The call that ``case`` describes, bit-identical on every device. Allocates; touches no random state."""
    device = torch.device(device)
    call = _prefill(case, device) if case.surface == "SparsePrefill" else _decode(case, device)
    if case.data == "needle":
        call.q.copy_(_aim(case, problem_of(call)).view(call.q.shape))
    return replace(call, sink=draw_sink(case, problem_of(call)))


def _embed(case: AttentionCase, rows: Tensor, red: float) -> Tensor:
    """``rows (..., n, k)`` as a view into a larger buffer whose other entries hold ``red``, if the case is strided."""
    if not case.strided:
        return rows
    shape = (*rows.shape[:-2], rows.shape[-2] + 2, rows.shape[-1])
    buffer = torch.full(shape, red, dtype=rows.dtype, device=rows.device)
    inner = buffer[..., 1:-1, :]
    inner.copy_(rows)
    return inner


def _embed_lists(case: AttentionCase, indices: Tensor) -> Tensor:
    """Lists as a view into wider rows that hold INT_MAX beyond the list, if the case is strided."""
    indices = indices.to(torch.int32)
    if not case.strided:
        return indices.contiguous()
    shape = (*indices.shape[:-1], indices.shape[-1] + 64)
    buffer = torch.full(shape, lists.INT_MAX, dtype=torch.int32, device=indices.device)
    inner = buffer[..., : indices.shape[-1]]
    inner.copy_(indices)
    return inner


def _queries(case: AttentionCase, device: torch.device) -> Tensor:
    """bf16 ``(b, s_q, h_q, 512)``, magnitudes log-uniform in [1/4, 4)."""
    random = words(case.digest(), "q", (case.b, case.s_q, case.h_q, D // 2), device)
    return _embed(case, bf16_values(random, 124) * 2, _RED[case.poison])


def _scope(case: AttentionCase, shape: ScopeShape, name: str, device: torch.device) -> KVScope:
    picks = lists.draw_picks(case, shape, name, case.s_q, device)
    plan = plan_pages(case, shape, name, case.b, device)
    base = torch.arange(0, case.b * shape.slots, shape.slots, device=device)
    token = picks.local + (base if case.s_q == 1 else base.repeat_interleave(case.s_q))[:, None]
    slots = torch.where(picks.local < 0, -1, plan.slot_of[token.clamp_(min=0)])
    pages = page_buffer(plan.num_pages, shape.page_size, case.poison, device)
    live = torch.full((plan.num_pages * shape.page_size,), case.poison == "none", device=device)
    live[: shape.page_size] = True  # the dummy page, where holes land
    listed = lists.beyond_decode(picks, slots)
    live.index_fill_(0, listed.masked_fill((listed < 0).logical_or_(listed >= len(live)), 0).flatten(), True)
    fill_pages(case, name, pages, live)
    return KVScope(pages, _embed_lists(case, listed.view(case.b, case.s_q, shape.topk)), picks.length)


def _decode(case: AttentionCase, device: torch.device) -> DecodeCall:
    window = _scope(case, case.window, "window", device)
    extra = None if case.extra is None else _scope(case, case.extra, "extra", device)
    scale = D**-0.5 * 2.0**case.scale_bits
    return DecodeCall(_queries(case, device), window, extra, None, scale)


def _prefill(case: AttentionCase, device: torch.device) -> PrefillCall:
    shape, s_kv = case.window, case.window.slots
    picks = lists.draw_picks(case, shape, "window", 1, device)
    live = torch.full((s_kv,), case.poison == "none", device=device)
    indices = lists.forms_prefill(picks, s_kv)
    live.index_fill_(0, indices.masked_fill((indices < 0).logical_or_(indices >= s_kv), 0).flatten().long(), True)
    live[0] = True  # where a -1 read as row 0 lands
    random = words(case.digest(), "kv", (s_kv, D // 2), device)
    kv = bf16_values(random, 124)
    if case.data == "marker":
        row = torch.arange(s_kv, device=device)
        kv[row, row * 37 % D] = torch.where(row % 2 == 0, 14.0, -14.0).to(torch.bfloat16)
    if case.data == "edge":
        kv[:, 1::3] *= 2.0**-20
        kv[:, 2::5] *= 2.0
    kv.masked_fill_(~live[:, None], _RED[case.poison])
    kv = _embed(case, kv[None], _RED[case.poison])[0]
    scale = D**-0.5 * 2.0**case.scale_bits
    q = _queries(case, device)[0]
    return PrefillCall(q, kv[:, None], _embed_lists(case, indices[:, None]), picks.length, None, scale)


def _aim(case: AttentionCase, problem: Problem) -> Tensor:
    """Queries that each point at one of their own valid keys, so that it leads by 6 or more: ``q / 4 + gain k``, with
    ``scale gain |k|^2 = NEEDLE_LOGIT``."""
    rows, heads = problem.q.shape[:2]
    valid = torch.cat([scope.valid() for scope in problem.scopes], 1)
    slots = torch.cat([scope.indices for scope in problem.scopes], 1).to(torch.int64)
    count = valid.cumsum(1)
    rank = below(case.digest(), "needle", (rows, heads), 2**31, valid.device) % count[:, -1:].clamp(min=1)
    place = torch.searchsorted(count.contiguous(), rank + 1).clamp(max=valid.shape[1] - 1)
    chosen = torch.gather(slots.masked_fill(~valid, 0), 1, place)
    width = problem.scopes[0].indices.shape[1]
    keys = problem.scopes[0].fetch(torch.where(place < width, chosen, 0))
    if len(problem.scopes) > 1:
        other = problem.scopes[1].fetch(torch.where(place < width, 0, chosen))
        keys = torch.where((place < width)[..., None], keys, other)
    exact = keys.to(torch.float32)
    gain = NEEDLE_LOGIT / problem.scale / exact.square().sum(-1, keepdim=True)
    aimed = problem.q.to(torch.float32) * 0.25 + exact * gain
    return torch.where((count[:, -1] > 0)[:, None, None], aimed, problem.q.to(torch.float32)).to(torch.bfloat16)


def draw_sink(case: AttentionCase, problem: Problem) -> Tensor | None:
    """fp32 ``(h_q,)`` sinks, distinct per head: the head's lse in the first row + {-2, -1, 0, 1, 2}, rounded to 1/16,
    + head / 2048; "special" puts -inf at heads 3 and +inf at heads 6 of every 8 (from 2 heads on: at 0 or 1)."""
    heads, device = case.h_q, problem.q.device
    if case.sink == "none":
        return None
    if case.sink in ("zero", "minus_inf", "plus_inf"):
        value = {"zero": 0.0, "minus_inf": -torch.inf, "plus_inf": torch.inf}[case.sink]
        return torch.full((heads,), value, device=device)
    lse = attention(problem.rows(slice(0, 1))).lse[0]
    lse = torch.where(lse.isfinite(), lse, 0.0)
    offset = below(case.digest(), "sink", (heads,), 5, device) - 2
    head = torch.arange(heads, device=device)
    sink = torch.round((lse + offset) * 16) / 16 + head / 2048
    if case.sink == "special" and heads > 1:
        sink.masked_fill_(head % 8 == min(3, heads - 1), -torch.inf).masked_fill_(head % 8 == 6, torch.inf)
    return sink.to(torch.float32)
