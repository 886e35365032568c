"""Attention calls and layer steps that are timed: built once, judged once, then run without guards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.cases.case import AttentionCase, ScopeShape
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.schedule import steps
from dsv4_conformance.cases.timing_case import TimingCase
from dsv4_conformance.errors import NotApplicable
from dsv4_conformance.implementations.api import DecodeCall, PrefillCall
from dsv4_conformance.implementations.state_api import Segment
from dsv4_conformance.runner.execute import Call
from dsv4_conformance.runner.layer_run import LayerRun
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.kv_layout import PageLayout

WINDOW = ScopeShape(128, 128, 256, "full")
TWO_BYTES = 2


def attention_call(subject: Subject, case: TimingCase, h_q: int = 0) -> Call:
    """The call of a case: full lists of distinct keys drawn from twice as many, a finite sink, nothing poisoned.

    Raises NotApplicable for a head count that the adapter does not declare.
    """
    heads = h_q or case.h_q
    declared = subject.convention(case.surface).h_q
    if declared is not None and heads not in declared:
        raise NotApplicable(f"the adapter declares h_q {', '.join(map(str, declared))}, and {heads} is asked.")
    plain: dict[str, Any] = {"sink": "finite", "holes": "none", "poison": "none", "strided": False, "seed": case.seed}
    if case.surface == "SparsePrefill":
        return subject.build(
            AttentionCase(case.surface, 1, case.rows, heads, ScopeShape(8 * case.keys, case.keys, 64, "full"), **plain)
        )
    extra = ScopeShape(2 * case.keys, case.keys, 64, "full")
    return subject.build(AttentionCase(case.surface, case.rows, 1, heads, WINDOW, extra, **plain))


def judged(subject: Subject, call: Call) -> Callable[[], Any]:
    """The bare call, after its answer was found right: the time of a wrong answer says nothing."""
    subject.compare(call, subject.run(call), subject.truth(call))
    name = "decode" if isinstance(call, DecodeCall) else "prefill"
    method: Callable[[Any], Any] = getattr(subject.implementation, name)
    return lambda: method(call)


def with_length(call: Call, length: int) -> Call:
    """The call with every row's (extra) list cut to ``length`` by topk_length; the tensors stay."""
    if isinstance(call, PrefillCall):
        return replace(call, topk_length=_filled(call.topk_length, length))
    assert call.extra is not None
    return replace(call, extra=replace(call.extra, topk_length=_filled(call.extra.topk_length, length)))


def widened(call: Call, factor: int) -> Call:
    """The call with (extra) lists ``factor`` times as wide: what is added holds -1, and topk_length stays."""
    if isinstance(call, PrefillCall):
        return replace(call, indices=_padded(call.indices, factor))
    assert call.extra is not None
    return replace(call, extra=replace(call.extra, indices=_padded(call.extra.indices, factor)))


def work(call: Call) -> tuple[float, float]:
    """FLOP and bytes that a call needs at least: 4 x 512 FLOP per head and listed key; each row of keys that is listed
    read once (584 bytes of a page, 1,024 of a workspace), q read and out written once."""
    keys, held = 0, 0
    if isinstance(call, PrefillCall):
        scopes = [(call.indices, call.topk_length, 1024)]
    else:
        both = [scope for scope in (call.window, call.extra) if scope is not None]
        scopes = [(scope.indices, scope.topk_length, PageLayout.TOKEN_BYTES) for scope in both]
    for indices, lengths, bytes_each in scopes:
        listed = indices.flatten(0, -2)
        live = torch.arange(listed.shape[1], device=listed.device)
        rows = listed.shape[0] // (1 if lengths is None else lengths.numel())
        bound = listed.shape[1] if lengths is None else lengths.repeat_interleave(rows)[:, None]
        valid = (listed >= 0) & (live < bound)
        keys += int(valid.sum())
        held += int(torch.unique(listed[valid]).numel()) * bytes_each
    rows, heads = call.q.numel() // (call.q.shape[-2] * 512), call.q.shape[-2]
    return 4.0 * 512 * keys * heads, float(held + 2 * rows * heads * 512 * TWO_BYTES)


def decoding_layer(subject: Subject, case: TimingCase, count: int) -> tuple[Any, list[Segment]]:
    """The adapter's layer of DeepSeek-V4-Flash, holding ``rows`` sequences of ``tokens`` tokens with room for ``count``
    more decode steps, and the segments of one of them."""
    everyone = "+".join(f"{n}:{case.tokens}" for n in range(case.rows))
    run = _layer(subject, case, f"p{everyone}", case.tokens + count)
    run.run(judge=False)
    x = torch.randn(case.rows, run.spec.geometry.hidden_size, device=run.device)
    return run.session.unwrap(), [Segment(n, x[n : n + 1]) for n in range(case.rows)]


def prefilling_layer(subject: Subject, case: TimingCase) -> Callable[[str], Any]:
    """A prefill on a path, in a layer of DeepSeek-V4-Flash that holds ``tokens`` tokens of one sequence: ``rows`` more
    in a fork of it, which is dropped again. Raises NotApplicable if the adapter declares no forks."""
    schedule = f"p0:{case.tokens} f0>1:{case.tokens} p1:{case.rows}"
    run = _layer(subject, case, schedule, case.tokens + case.rows)
    run.do(steps(schedule)[0], judge=False)
    x = torch.randn(case.rows, run.spec.geometry.hidden_size, device=run.device)

    layer = run.session.unwrap()

    def prefill(path: str) -> Any:
        layer.fork(0, 1, case.tokens)
        result = layer.step([Segment(1, x)], path=path)
        layer.release(1)
        return result

    return prefill


def _layer(subject: Subject, case: TimingCase, schedule: str, capacity: int) -> LayerRun:
    shape = LayerCase("AttentionLayer", case.ratio, schedule, "flash", "bfloat16", quantised=True, sinks="finite")
    return LayerRun(subject, shape.with_(capacity=-(-capacity // 256) * 256, seed=case.seed))


def _filled(lengths: Tensor | None, length: int) -> Tensor:
    assert lengths is not None
    return torch.full_like(lengths, length)


def _padded(indices: Tensor, factor: int) -> Tensor:
    wide = torch.full((*indices.shape[:-1], indices.shape[-1] * factor), -1, dtype=torch.int32, device=indices.device)
    wide[..., : indices.shape[-1]] = indices
    return wide
