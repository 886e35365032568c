"""One query row seen closely: its keys, weights and right answer, and how far other answers are from what came out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dsv4_conformance.judge.dump import Dump
from dsv4_conformance.numerics.budgets import logit_budget, ulp_bf16
from dsv4_conformance.numerics.compare import errors, in_budgets
from dsv4_conformance.numerics.mutants import Setting
from dsv4_conformance.numerics.truth import Truth, truth_of
from dsv4_conformance.oracle.attention import Answer, combine

NEAR = 3.0
"""A supposed mistake explains a row if what came out lies within this many budgets of its answer (and RowView.near)."""


@dataclass(frozen=True)
class RowView:
    """Row ``number`` of ``dump``.

    ``setting``: the row alone, its keys ``(1, N, 512)`` and logits ``(1, H, N)`` in float64. ``wrong``, ``wrong_out``:
    bool ``(H,)``, the judged heads in which some output, or out, is wrong.
    """

    dump: Dump
    number: int
    setting: Setting
    truth: Truth
    got: dict[str, Tensor]
    wrong: Tensor
    wrong_out: Tensor

    @classmethod
    def of(cls, dump: Dump, number: int, heads: Tensor) -> RowView:
        """Look at row ``number`` and judge its heads int64 ``heads``."""
        at = torch.tensor([number])
        part = dump.problem.rows(at)
        truth = truth_of(part)
        setting = Setting.of(part, truth.answer, dump.problem.rows((at + 1) % dump.rows))
        got = {name: tensor[at] for name, tensor in dump.got.items()}
        ratio = {name: _ratios(got[name], truth, truth.answer, name) for name in got}
        judged = torch.zeros(dump.heads, dtype=torch.bool)
        judged[heads] = True
        wrong = torch.stack(list(ratio.values())).amax(0) > 1
        return cls(dump, number, setting, truth, got, wrong & judged, (ratio["out"] > 1) & judged)

    @property
    def near(self) -> float:
        """Within how many budgets of its answer a supposed mistake explains this row.

        NEAR, and no more than half as far as the right answer: a mistake that changes nothing explains no small error.
        """
        return min(NEAR, float(self.distance(self.truth.answer)[self.wrong].amax()) / 2)

    @property
    def keys(self) -> Tensor:
        """Keys float64 ``(N, 512)`` of the scopes in order; 0 where the list names none."""
        return self.setting.keys[0]

    @property
    def valid(self) -> Tensor:
        """bool ``(N,)``: list entries that name a key."""
        return self.setting.valid[0]

    @property
    def logits(self) -> Tensor:
        """Logits ``(H, N)``."""
        return self.setting.logits[0]

    @property
    def log_total(self) -> Tensor:
        """``ln`` of the softmax denominator, sink included, ``(H,)``; -inf in a lonely row without sinks."""
        lse = self.setting.answer.lse[0]
        lse = lse.masked_fill(lse.isposinf(), -torch.inf)
        sink = self.setting.problem.sink
        return lse if sink is None else torch.logaddexp(lse, sink.double())

    def distance(self, answer: Answer) -> Tensor:
        """How far what came out is from ``answer``, in budgets: the worst output per head, ``(H,)``."""
        return torch.stack([_ratios(self.got[name], self.truth, answer, name) for name in self.got]).amax(0)

    def counted(self, times: Tensor, more: Tensor | None = None) -> Answer:
        """The answer if list entry j counted ``times[j]`` times, and a key ``more (512,)`` the last of ``times``."""
        problem = self.setting.problem
        keys, logits, valid = self.setting.keys, self.setting.logits, self.setting.valid
        if more is not None:
            keys = torch.cat((keys, more[None, None]), 1)
            logits = torch.cat((logits, (problem.q.double() @ more)[..., None] * problem.scale), 2)
            valid = torch.cat((valid, torch.ones_like(valid[:, :1])), 1)
        valid = valid & (times > 0)
        answer = combine(logits + times.clamp(min=1e-300).log(), keys, valid, problem.sink)
        return replace(answer, max_logits=logits.masked_fill(~valid[:, None], -torch.inf).amax(-1))


def _ratios(got: Tensor, truth: Truth, answer: Answer, name: str) -> Tensor:
    """Error of an output from ``answer`` in budgets, ``(H,)``. Where ``answer`` is not the right one, the right one's
    budget may be 0 (an exact 0, a +inf), so it is at least what rounding ``answer`` itself costs."""
    budget, want = getattr(truth.budgets, name), getattr(answer, name)
    if answer is not truth.answer:
        own = 2 * ulp_bf16(want.abs().amax(-1)) if name == "out" else _logit_rounding(want, answer)
        budget = torch.maximum(budget, own.nan_to_num(nan=0.0, posinf=0.0))
    return in_budgets(errors(got, want), budget)[0]


def _logit_rounding(want: Tensor, answer: Answer) -> Tensor:
    reach = answer.max_logits.abs().nan_to_num(posinf=0.0)
    return logit_budget(want, reach, torch.ones(len(want)))
