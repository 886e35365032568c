"""From a surface's call to the oracle's view of it: the same tensors, read by definition."""

from functools import partial

import torch
from torch import Tensor

from dsv4_conformance.implementations.api import DecodeCall, KVScope, PrefillCall
from dsv4_conformance.oracle.attention import Problem, Scope
from dsv4_conformance.oracle.kv_format import unpack


def _paged(scope: KVScope, s_q: int) -> Scope:
    pages = scope.pages
    length = None if scope.topk_length is None else scope.topk_length.repeat_interleave(s_q)
    slots = pages.shape[0] * pages.shape[1]
    indices = scope.indices.flatten(0, 1)
    return Scope(partial(unpack, pages), indices, length, slots=slots, fetch_into=partial(unpack, pages))


def decode_problem(call: DecodeCall) -> Problem:
    """Rows are (batch row, query) in order: R = b * s_q."""
    s_q = call.q.shape[1]
    scopes = [_paged(scope, s_q) for scope in (call.window, call.extra) if scope is not None]
    return Problem(call.q.flatten(0, 1), tuple(scopes), call.sink, call.scale)


def prefill_problem(call: PrefillCall) -> Problem:
    """Rows are the s_q queries."""
    kv = call.kv[:, 0]

    def fetch(rows: Tensor) -> Tensor:
        return kv[rows]

    return Problem(call.q, (Scope(fetch, call.indices[:, 0], call.topk_length, kv.shape[0]),), call.sink, call.scale)


def problem_of(call: DecodeCall | PrefillCall) -> Problem:
    """The oracle's view of a call."""
    return decode_problem(call) if isinstance(call, DecodeCall) else prefill_problem(call)


def rows_first(call: DecodeCall | PrefillCall, lse: Tensor) -> Tensor:
    """lse of a decode result ``(b, h_q, s_q)`` as ``(R, h_q)``; prefill's is that already."""
    if isinstance(call, PrefillCall):
        return lse
    return torch.transpose(lse, 1, 2).flatten(0, 1)
