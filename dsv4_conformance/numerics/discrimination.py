"""Discrimination: by how many budgets each semantic mutant is rejected on a case."""

from collections.abc import Callable

import torch
from torch import Tensor

from dsv4_conformance.numerics.mutants import Setting, wrong_answers
from dsv4_conformance.numerics.truth import Truth
from dsv4_conformance.oracle.attention import Answer, Problem

REQUIRED = 3.0
"""A mutant counts as rejected from this many budgets on."""

CAP = 1e6
"""Margins are cut here: special values that differ, and budgets of 0."""

Margins = dict[str, dict[str, float]]
"""mutant -> output that it changes -> budgets by which the best row rejects it."""


OUTPUTS = ("out", "lse", "max_logits")
_CHANGED = 1e-9
"""An answer counts as changed from this fraction of the output's largest value on."""


def _spread(total: int, wanted: int, device: torch.device) -> Tensor:
    """Up to ``wanted`` of ``total`` positions, evenly, the first and the last among them."""
    count = min(total, wanted)
    if count == 1:
        return torch.zeros(1, dtype=torch.int64, device=device)
    return torch.arange(count, device=device) * (total - 1) // (count - 1)


def margins(
    problem: Problem, truth: Truth, rows: int = 4, heads: int = 16, outputs: tuple[str, ...] = OUTPUTS
) -> Margins:
    """Margins of every applicable mutant on up to ``rows`` query rows and ``heads`` heads of a call.

    First rows have few keys, last rows may have none, so both are among them. A mutant is applicable where the float64
    answer changes. The result is a lower bound: more rows and heads can only raise it. ``outputs``: what the call
    returns, since a mistake that shows elsewhere alone is not rejected (decode has no max_logits).
    """
    return start_margins(problem, truth, rows, heads, outputs)()


def start_margins(
    problem: Problem, truth: Truth, rows: int = 4, heads: int = 16, outputs: tuple[str, ...] = OUTPUTS
) -> Callable[[], Margins]:
    """margins in two steps: the work is queued on the device at once, the returned function waits for it."""
    device, total = problem.q.device, problem.q.shape[0]
    chosen, kept = _spread(total, rows, device), _spread(problem.q.shape[1], heads, device)
    right = truth.rows(chosen).heads(kept)
    setting = Setting.of(problem.rows(chosen).heads(kept), right.answer, problem.rows((chosen + 1) % total))
    wrongs = wrong_answers(setting)
    table = torch.stack([_rejection(right, output, list(wrongs.values())) for output in outputs])

    def read() -> Margins:
        found: Margins = {}
        columns = zip(wrongs, *table.tolist(), strict=True)
        for name, *ratios in columns:
            told = {output: ratio for output, ratio in zip(outputs, ratios, strict=True) if ratio >= 0}
            if told:
                found[name] = told
        return found

    return read


def _rejection(right: Truth, output: str, wrongs: list[Answer]) -> Tensor:
    """Per wrong answer, the best row's error in budgets, capped; -1 where ``output`` does not change. No sync."""
    want, budget = getattr(right.answer, output), getattr(right.budgets, output)
    got = torch.stack([getattr(wrong, output) for wrong in wrongs])
    error = torch.where(got == want, 0.0, (got - want).abs()).nan_to_num(nan=torch.inf)
    if error.dim() == 4:
        error = error.amax(-1)
    ratio = torch.where(error == 0, 0.0, error / budget).clamp(max=CAP).amax((-2, -1))
    largest = want.abs().nan_to_num(posinf=0.0).amax().clamp(min=1e-300)
    return torch.where(error.amax((-2, -1)) > _CHANGED * largest, ratio, -1.0)


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
