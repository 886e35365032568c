"""Whether the sinks explain a wrong row: a sink only scales its head, so the scale tells which sink was used.

``out = softmax_out * f`` with ``f = sigmoid(lse - sink)`` (spec §8), hence ``sink = lse - ln(f / (1 - f))``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.judge.view import RowView
from dsv4_conformance.numerics.budgets import ulp_bf16
from dsv4_conformance.oracle.attention import Answer, combine

CHANCE = 1e-3
"""Sinks in another order are named only if as many sinks out of nowhere would fit as well more rarely than this."""


@dataclass(frozen=True)
class ImpliedSink:
    """The sink of a head: ``given`` in the dump (-inf: none), and ``implied`` by what came out, ``low`` to ``high``.

    Far below the head's lse a sink does not show (low = -inf), far above it out is 0 (high = inf).
    """

    head: int
    given: float
    implied: float
    low: float
    high: float


@dataclass(frozen=True)
class SinkStory:
    """``heads``: implied sinks of the wrong heads whose difference is a factor; ``others``: the other wrong heads.

    ``match``: what the implied sinks are, in words, or None; ``everywhere``: whether that is so in the right heads too.
    ``explains``: whether other sinks explain every wrong head.
    """

    heads: list[ImpliedSink]
    others: list[int]
    match: str | None
    everywhere: bool
    explains: bool


@dataclass(frozen=True)
class _Factors:
    """Per head: ``factor`` of the softmax output in what came out, how well it is known (``slack``), lse."""

    factor: Tensor
    slack: Tensor
    lse: Tensor

    def off(self, sink: Tensor) -> Tensor:
        """How far sinks ``(..., H)`` are from giving these factors, in slacks; more than 1 does not fit."""
        return (self.factor - torch.sigmoid(self.lse - sink)).abs() / self.slack

    def implied(self, head: int, given: float) -> ImpliedSink:
        """The sink of a head."""
        factor, slack = self.factor[head], self.slack[head]
        sinks = [self.lse[head] - torch.logit(f.clamp(0, 1)) for f in (factor, factor + slack, factor - slack)]
        return ImpliedSink(head, given, *map(float, sinks))


def explain_by_sink(view: RowView) -> SinkStory | None:
    """What the sinks have to do with a wrong out, or None if they have nothing to do with it."""
    setting = view.setting
    plain = combine(setting.logits.clone(), setting.keys, setting.valid, None)
    got, soft, lse = view.got["out"][0].double(), plain.out[0], plain.lse[0]
    factor = ((got * soft).sum(-1) / soft.square().sum(-1)).clamp(0, 1)
    distance = view.distance(Answer((soft * factor[:, None])[None], plain.lse, plain.max_logits))
    fits = view.wrong_out & (distance <= view.near) & factor.isfinite()
    if not bool(fits.any()):
        return None
    budget = torch.maximum(view.truth.budgets.out[0], 2 * ulp_bf16((soft * factor[:, None]).abs().amax(-1)))
    factors = _Factors(factor, budget / soft.abs().amax(-1), lse)
    given = torch.full_like(lse, -torch.inf) if setting.problem.sink is None else setting.problem.sink.double()
    heads = fits.nonzero()[:, 0]
    told = [factors.implied(head, float(given[head])) for head in heads.tolist()]
    others = (view.wrong & ~fits).nonzero()[:, 0].tolist()
    return SinkStory(told, others, *_match(view, factors, heads, given), explains=not others)


def _match(view: RowView, factors: _Factors, heads: Tensor, given: Tensor) -> tuple[str | None, bool]:
    """The supposition that gives the factors of all ``heads`` best, and whether it gives those of every head."""
    hit = (2 * factors.slack[heads]).clamp(max=1)  # the chance that a sink out of nowhere gives a head's factor
    suppositions = [*_changed(view, given)]
    moved = [*_moved(view, given)]
    if len(moved) * float(hit.prod()) < CHANCE:
        suppositions += moved
    far = [float(factors.off(sink)[heads].amax()) for _, sink in suppositions]
    best = min(range(len(far)), key=far.__getitem__)
    if far[best] <= 1:
        words, sink = suppositions[best]
        return words, bool((factors.off(sink).nan_to_num() <= 1).all())
    known = float((hit * len(given)).clamp(max=1).prod()) < CHANCE
    return _permutation(factors, heads, given) if known else None, False


def _changed(view: RowView, given: Tensor) -> Iterator[tuple[str, Tensor]]:
    scale = view.setting.problem.scale
    yield "no sink at all", torch.full_like(given, -torch.inf)
    yield "a sink of 0 in every head", torch.zeros_like(given)
    if view.setting.problem.sink is not None:
        yield "the sinks times the softmax scale", given * scale
        yield "the sinks divided by the softmax scale", given / scale
        yield "the sinks times log2(e)", given / math.log(2)
        yield "the sinks times ln 2", given * math.log(2)
        yield "the sinks with the other sign", -given


def _moved(view: RowView, given: Tensor) -> Iterator[tuple[str, Tensor]]:
    count = len(given)
    if view.setting.problem.sink is not None:
        for shift in range(1, count):
            yield (
                f"another slice of the sinks: head h used the sink of head (h + {shift}) mod {count}",
                given.roll(-shift),
            )
    if view.dump.all_sinks is not None:
        yield from slices(view.dump.all_sinks, count)


def slices(all_sinks: Tensor, heads: int) -> Iterator[tuple[str, Tensor]]:
    """Every slice of the model's sinks that a rank with ``heads`` heads may have used, whole ranks first."""
    starts = range(len(all_sinks) - heads + 1)
    for start in sorted(starts, key=lambda start: (start % heads, start)):
        rank = f", rank {start // heads}'s slice" if start % heads == 0 else ""
        yield f"all_sinks[{start}:{start + heads}]{rank}", all_sinks[start : start + heads].double()


def _permutation(factors: _Factors, heads: Tensor, given: Tensor) -> str | None:
    """Other heads of this call whose sinks fit, one for each wrong head, or None."""
    from scipy.optimize import linear_sum_assignment

    far = _Factors(factors.factor[heads, None], factors.slack[heads, None], factors.lse[heads, None]).off(given)
    rows, picked = linear_sum_assignment(far.nan_to_num(posinf=1e9).clamp(max=1e9).numpy())
    if float(far[rows, picked].amax()) > 1:
        return None
    used = ", ".join(map(str, picked.tolist()))
    return f"the sinks in another order: heads {', '.join(map(str, heads.tolist()))} used those of heads {used}"
