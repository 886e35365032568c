"""Discrimination: by how many budgets each semantic mutant is rejected on a case."""

import math
from dataclasses import dataclass

import torch

from dsv4_conformance.numerics.compare import errors, in_budgets
from dsv4_conformance.numerics.mutants import MUTANTS, Setting
from dsv4_conformance.numerics.truth import Truth
from dsv4_conformance.oracle.attention import Problem

REQUIRED = 3.0
"""A mutant counts as rejected from this many budgets on."""

CAP = 1e6
"""Margins are cut here: special values that differ, and budgets of 0."""

Margins = dict[str, dict[str, float]]
"""mutant -> output that it changes -> budgets by which the best row rejects it."""


@dataclass(frozen=True)
class _Sample:
    rows: torch.Tensor
    neighbours: torch.Tensor


def _sample(total: int, wanted: int, device: torch.device) -> _Sample:
    """Some rows, the first and the last among them: first rows have few keys, last rows may have none."""
    rows = torch.linspace(0, total - 1, min(total, wanted), device=device).round().to(torch.int64).unique()
    return _Sample(rows, (rows + 1) % total)


def margins(problem: Problem, truth: Truth, rows: int = 4) -> Margins:
    """Margins of every applicable mutant on up to ``rows`` query rows of a call.

    A mutant is applicable where the float64 answer changes. The result is a lower bound: more rows can only raise it.
    """
    sample = _sample(problem.q.shape[0], rows, problem.q.device)
    part, right = problem.rows(sample.rows), truth.rows(sample.rows)
    keys, valid = part.gather()
    setting = Setting(part, keys, valid, right.answer, problem.rows(sample.neighbours))
    found: Margins = {}
    for name, mutant in MUTANTS.items():
        wrong = mutant(setting)
        if wrong is None:
            continue
        for output in ("out", "lse", "max_logits"):
            got, want = getattr(wrong, output), getattr(right.answer, output)
            error = errors(got, want)
            scale = want.abs().nan_to_num(posinf=0.0).amax().clamp(min=1e-300)
            if not bool((error.nan_to_num(nan=torch.inf) > 1e-9 * scale).any()):
                continue
            ratio = float(in_budgets(error, getattr(right.budgets, output)).amax())
            found.setdefault(name, {})[output] = CAP if math.isnan(ratio) else min(ratio, CAP)
    return found


def case_margin(found: Margins) -> dict[str, float]:
    """Per output, the worst mutant that changes it: the discrimination margin of a case."""
    worst: dict[str, float] = {}
    for outputs in found.values():
        for output, ratio in outputs.items():
            worst[output] = min(worst.get(output, CAP), ratio)
    return worst


def blind_spots(all_margins: list[Margins]) -> dict[str, float]:
    """Mutants that apply to some case of a requirement and reach REQUIRED on none, with their best margin."""
    best: dict[str, float] = {}
    for found in all_margins:
        for mutant, outputs in found.items():
            best[mutant] = max(best.get(mutant, 0.0), *outputs.values())
    return {mutant: ratio for mutant, ratio in best.items() if ratio < REQUIRED}
