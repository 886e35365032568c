"""Which single key explains a wrong row: counted 0 times, twice, or attended although no list names it.

If list entry j counts ``1 + c_j`` times, then for every head ``sum_j c_j p_j (k_j - out') = out' - out`` exactly, with
``out'`` what came out and ``p_j`` the right weight of the key (sink included). For one key that is a least-squares
problem in one unknown that all wrong heads share; the winner is then tested by computing the answer that it predicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.judge.view import RowView

MOST_SLOTS = 1 << 18
"""Caches up to this many slots are searched for keys that no list names."""

BATCH = 4096
FINALISTS = 4
WHOLE = 0.1
"""A fitted count this near to a whole number is taken for it."""


@dataclass(frozen=True)
class KeyStory:
    """The key that best explains a row. ``place``: in its scope's list, None if the list does not name it.

    ``times``: how often it counts by least squares; ``counted``: how often in the answer that was tested. ``logit`` and
    ``weight`` (share of the softmax, sink included) are those in ``head``. ``unexplained``: share of the squared
    difference that is left. ``distance``: budgets between the answer with that key counted so and what came out, over
    the wrong heads; ``everywhere``: whether it is no worse over all heads.
    """

    scope: str
    place: int | None
    slot: int
    where: str
    times: float
    counted: float
    head: int
    logit: float
    weight: float
    unexplained: float
    distance: float
    everywhere: bool
    explains: bool
    remark: str


@dataclass(frozen=True)
class Fit:
    """The wrong heads that can tell keys apart, ``(h, ...)``, each divided by its budget: ``got`` what came out,
    ``off = got - right``, both float64 ``(h, 512)``; ``log_total (h,)``; ``q (h, 512)`` times the softmax scale."""

    heads: Tensor
    got: Tensor
    off: Tensor
    budget: Tensor
    log_total: Tensor
    q: Tensor

    @classmethod
    def of(cls, view: RowView, most: int | None = None) -> Fit | None:
        """The fit of a row on its ``most`` worst heads, or None if no wrong head is finite."""
        got = view.got["out"][0].double()
        usable = view.wrong_out & got.isfinite().all(-1) & view.log_total.isfinite()
        heads = usable.nonzero()[:, 0]
        if not len(heads):
            return None
        off = got - view.setting.answer.out[0]
        budget = view.truth.budgets.out[0].clamp(min=1e-300)
        if most is not None:
            heads = heads[(off.abs().amax(-1) / budget)[heads].argsort(descending=True)[:most]]
        q = view.setting.problem.q[0].double() * view.setting.problem.scale
        return cls(heads, got[heads], off[heads], budget[heads], view.log_total[heads], q[heads])

    @property
    def total(self) -> Tensor:
        """The squared difference to be explained, in squared budgets."""
        return (self.off.square().sum(-1) / self.budget.square()).sum()

    def single(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """For each key ``(n, 512)`` alone: the change of its count, and the share it leaves unexplained, ``(n,)``."""
        weight = torch.exp(self.q @ keys.T - self.log_total[:, None])
        along = weight * (self.off @ keys.T - (self.off * self.got).sum(-1, keepdim=True))
        square = keys.square().sum(-1) - 2 * self.got @ keys.T + self.got.square().sum(-1, keepdim=True)
        scale = self.budget.square()[:, None]
        top, bottom = (along / scale).sum(0), (weight.square() * square.clamp(min=0) / scale).sum(0)
        change = torch.where(bottom > 0, top / bottom, 0.0).nan_to_num()
        left = 1 - (change * top / self.total).nan_to_num(nan=0.0, posinf=0.0)
        return change, left.clamp(0, 1)


def best_key(view: RowView) -> KeyStory | None:
    """The single key that best explains where out is wrong, or None if no finite head is wrong there."""
    fit = Fit.of(view)
    if fit is None:
        return None
    stories = [*_listed(view, fit), *_unlisted(view, fit)]
    return min(stories, key=lambda story: (not story.explains, story.distance, story.unexplained), default=None)


def places(view: RowView) -> Iterator[tuple[int, int, int]]:
    """(store number, place, slot) of every list entry of the row, in the order of the keys."""
    for number, scope in enumerate(view.setting.problem.scopes):
        for place, slot in enumerate(scope.indices[0].tolist()):
            yield number, place, slot


def _head(view: RowView, fit: Fit) -> int:
    """The head that is furthest off."""
    return int(fit.heads[(fit.off.abs().amax(-1) / fit.budget).argmax()])


def _distance(view: RowView, times: Tensor, more: Tensor | None = None) -> tuple[float, bool]:
    """How far what came out is from the answer with these counts, and whether that is so in all heads."""
    per_head = view.distance(view.counted(times, more))
    distance = float(per_head[view.wrong].amax())
    return distance, float(per_head.amax()) <= max(1.0, distance)


def _whole(times: float) -> float:
    """The count to test: a whole number if the fit is near one."""
    return float(max(0, round(times))) if abs(times - round(times)) < WHOLE else max(times, 0.0)


def _listed(view: RowView, fit: Fit) -> Iterator[KeyStory]:
    """Stories of the list entries that leave least unexplained."""
    valid = view.valid.nonzero()[:, 0]
    change, left = fit.single(view.keys[valid])
    entries, head = list(places(view)), _head(view, fit)
    for best in left.argsort()[:FINALISTS].tolist():
        at = int(valid[best])
        number, place, slot = entries[at]
        store, times = view.dump.stores[number], 1 + float(change[best])
        counted = torch.ones(len(entries), dtype=torch.float64)
        counted[at] = _whole(times)
        distance, everywhere = _distance(view, counted)
        again = [str(p) for n, p, s in entries if (n, s) == (number, slot) and p != place]
        logit = float(view.logits[head, at])
        yield KeyStory(
            scope=store.name,
            place=place,
            slot=slot,
            where=store.where(slot),
            times=times,
            counted=float(counted[at]),
            head=head,
            logit=logit,
            weight=math.exp(logit - float(view.log_total[head])),
            unexplained=float(left[best]),
            distance=distance,
            everywhere=everywhere,
            explains=distance <= view.near,
            remark=f"the list names it at place {', '.join(again)} as well" if again else "",
        )


def _unlisted(view: RowView, fit: Fit) -> Iterator[KeyStory]:
    """Stories of the slots of every cache that the row's list does not name (inside its length)."""
    q, head = view.setting.problem.q[0].double() * view.setting.problem.scale, _head(view, fit)
    for number, store in enumerate(view.dump.stores):
        for unexplained, change, slot in _outsiders(view, fit, number):
            key = store.fetch(torch.tensor([slot]))[0].double()
            counted = torch.ones(len(view.valid) + 1, dtype=torch.float64)
            counted[-1] = _whole(change)
            distance, everywhere = _distance(view, counted, key)
            logit = float(q[head] @ key)
            yield KeyStory(
                scope=store.name,
                place=None,
                slot=slot,
                where=store.where(slot),
                times=change,
                counted=float(counted[-1]),
                head=head,
                logit=logit,
                weight=float(torch.sigmoid(logit - view.log_total[head])),
                unexplained=unexplained,
                distance=distance,
                everywhere=everywhere,
                explains=distance <= view.near,
                remark=_why_read(view, number, slot),
            )


def _outsiders(view: RowView, fit: Fit, number: int) -> list[tuple[float, float, int]]:
    """(share left unexplained, count, slot) of the best finite slots of a cache that the row's list does not name."""
    store, scope = view.dump.stores[number], view.setting.problem.scopes[number]
    listed = scope.indices[0][scope.valid()[0]].to(torch.int64)
    slots = store.held(MOST_SLOTS)
    found: list[tuple[float, float, int]] = []
    for part in torch.split(slots[~torch.isin(slots, listed)], BATCH):
        keys = store.fetch(part).double()
        finite = keys.isfinite().all(-1)
        change, left = fit.single(keys[finite])
        best = left.argsort()[:FINALISTS]
        found += zip(left[best].tolist(), change[best].tolist(), part[finite][best].tolist(), strict=True)
    return sorted(found)[:FINALISTS]


def _why_read(view: RowView, number: int, slot: int) -> str:
    """How a kernel may have come to a slot that the list does not name."""
    scope = view.setting.problem.scopes[number]
    entries = scope.indices[0]
    length = entries.shape[0] if scope.length is None else int(scope.length[0])
    beyond = (entries[length:] == slot).nonzero()[:, 0]
    if len(beyond):
        return f"the list has it at place {length + int(beyond[0])}, beyond the length {length}"
    if slot == 0 and not bool(scope.valid()[0, :length].all()):
        return "the list has holes inside the length: was one read as slot 0?"
    every = view.dump.problem.scopes[number]
    others = (every.valid() & (every.indices == slot)).any(1).nonzero()[:, 0]
    if len(others):
        return f"the list of {view.dump.row_name(int(others[0]))} names it"
    return "no list in the dump names it"
