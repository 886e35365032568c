"""What a wrong output looks like: the nearest mutant, and which heads and keys explain the difference."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.numerics.budgets import logit_budget, ulp_bf16
from dsv4_conformance.numerics.compare import errors, in_budgets
from dsv4_conformance.numerics.mutants import MISTAKES, Setting, wrong_answers
from dsv4_conformance.numerics.truth import Truth
from dsv4_conformance.oracle.attention import Answer, Problem

NEAR = 3.0
"""A mutant explains a row if the output lies within this many budgets of the mutant's answer."""


@dataclass(frozen=True)
class Explanation:
    """``mutant``: the nearest one; ``distance``: worst output of the row in budgets from it."""

    mutant: str
    distance: float
    meaning: str

    @property
    def explains(self) -> bool:
        """Whether the output is the mutant's answer, up to rounding."""
        return self.distance <= NEAR


def _rounding(wrong: Answer, output: str) -> Tensor:
    """What rounding the wrong answer itself costs ``(R, H)``: where the right value is exact, its budget is 0."""
    value: Tensor = getattr(wrong, output)
    if output == "out":
        return 2 * ulp_bf16(value.abs().amax(-1))
    reach = wrong.max_logits.abs().nan_to_num(posinf=0.0)
    return logit_budget(value, reach, torch.ones(len(value), device=value.device))


def nearest_mutant(problem: Problem, truth: Truth, row: int, got: dict[str, Tensor]) -> Explanation | None:
    """The mutant nearest to what came out in query row ``row``.

    ``got``: output name -> tensor rows first, as in runner.execute.Outputs; absent outputs are not compared.
    """
    rows = torch.tensor([row], device=problem.q.device)
    part, right = problem.rows(rows), truth.rows(rows)
    setting = Setting.of(part, right.answer, problem.rows((rows + 1) % problem.q.shape[0]))
    best: Explanation | None = None
    for name, wrong in wrong_answers(setting).items():
        distance = 0.0
        for output, tensor in got.items():
            error = errors(tensor[rows], getattr(wrong, output))
            budget = torch.maximum(getattr(right.budgets, output), _rounding(wrong, output))
            distance = max(distance, float(in_budgets(error, budget).amax()))
        if best is None or distance < best.distance:
            best = Explanation(name, distance, (MISTAKES[name].__doc__ or "").strip().splitlines()[0])
    return best
