"""The float64 answer to a call with its budgets, computed chunk by chunk so that large calls fit."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.numerics.budgets import Budgets, logit_budget, out_budget
from dsv4_conformance.numerics.reference import low_precision
from dsv4_conformance.oracle.attention import Answer, Problem, attend


@dataclass(frozen=True)
class Truth:
    """What is right, and how far from it is still right."""

    answer: Answer
    budgets: Budgets

    def rows(self, chosen: Tensor | slice) -> "Truth":
        """The truth of some query rows."""
        return Truth(
            Answer(*(getattr(self.answer, n)[chosen] for n in ("out", "lse", "max_logits"))),
            Budgets(*(getattr(self.budgets, n)[chosen] for n in ("out", "lse", "max_logits"))),
        )


def judge_chunk(problem: Problem) -> Truth:
    """Answer and budgets of a problem small enough for one chunk."""
    keys, valid = problem.gather()
    answer = attend(problem.q, keys, valid, problem.sink, problem.scale)
    sink = None if problem.sink is None else problem.sink.to(torch.float32)
    reference = low_precision(problem.q, keys, valid, sink, problem.scale)
    reach, count = reference.reach.to(torch.float64), valid.sum(-1)
    budgets = Budgets(
        out_budget(answer.out, reference.outs),
        logit_budget(answer.lse, reach, count),
        logit_budget(answer.max_logits, reach, count),
    )
    return Truth(answer, budgets)


def truth_of(problem: Problem, max_bytes: int = 1 << 30) -> Truth:
    """Answer and budgets of a whole problem."""
    parts = [judge_chunk(part) for _, part in problem.chunks(max_bytes)]
    if len(parts) == 1:
        return parts[0]
    names = ("out", "lse", "max_logits")
    return Truth(
        Answer(*(torch.cat([getattr(p.answer, n) for p in parts]) for n in names)),
        Budgets(*(torch.cat([getattr(p.budgets, n) for p in parts]) for n in names)),
    )
