"""The float64 answer to a call with its budgets, computed chunk by chunk so that large calls fit."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.numerics.budgets import Budgets, logit_budgets, out_budget
from dsv4_conformance.numerics.reference import low_precision
from dsv4_conformance.oracle.attention import Answer, Problem, attend, join_rows


@dataclass(frozen=True)
class Truth:
    """What is right, and how far from it is still right."""

    answer: Answer
    budgets: Budgets

    def rows(self, chosen: Tensor | slice) -> "Truth":
        """The truth of some query rows."""
        return Truth(self.answer.at(chosen), self.budgets.at(chosen))

    def heads(self, chosen: Tensor | slice) -> "Truth":
        """The truth of some heads, in that order."""
        return Truth(self.answer.at((slice(None), chosen)), self.budgets.at((slice(None), chosen)))


def _truth_of_chunk(problem: Problem) -> Truth:
    """Answer and budgets of a problem small enough for one chunk."""
    keys, valid = problem.gather(zero=False)
    answer = attend(problem.q, keys, valid, problem.sink, problem.scale)
    sink = None if problem.sink is None else problem.sink.to(torch.float32)
    reference = low_precision(problem.q, keys, valid, sink, problem.scale, answer.max_logits)
    lse, top = logit_budgets(answer, reference.reach, valid.sum(-1))
    return Truth(answer, Budgets(out_budget(answer.out, reference.outs), lse, top))


def truth_of(problem: Problem, max_bytes: int = 1 << 30) -> Truth:
    """Answer and budgets of a whole problem, near ``max_bytes`` of scratch at a time."""
    parts = [_truth_of_chunk(part) for _, part in problem.chunks(max_bytes)]
    if len(parts) == 1:
        return parts[0]
    budgets = Budgets(*(torch.cat([getattr(p.budgets, n) for p in parts]) for n in ("out", "lse", "max_logits")))
    return Truth(join_rows([p.answer for p in parts]), budgets)
