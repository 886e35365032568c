"""Budgets belong to their row: neither other rows nor chunking reach them."""

import pytest
import torch

from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase, ScopeShape
from dsv4_conformance.cases.problem import problem_of
from dsv4_conformance.numerics.truth import truth_of

# Its middle row has an extra scope of length 0, whose places another row's key fills while gathering.
SPARE = AttentionCase(
    "SparseDecode", 3, 1, 8, ScopeShape(8, 6, 2), ScopeShape(20, 1, 3), data="edge", scale_bits=3, seed=0
)


# Kills: max |logit| taken over places that name no key (the budget was up to 6.9 times too wide).
@pytest.mark.parametrize("case", [SPARE, SPARE.with_(surface="SparsePrefill", b=1, s_q=4, extra=None)])
def test_budgets_of_a_row_are_those_of_the_row_alone(case: AttentionCase) -> None:
    problem = problem_of(build(case, "cpu"))
    together = truth_of(problem)
    for row in range(problem.q.shape[0]):
        alone = truth_of(problem.rows(slice(row, row + 1)))
        for name in ("lse", "max_logits"):
            mine = getattr(together.budgets, name)[row : row + 1]
            torch.testing.assert_close(mine, getattr(alone.budgets, name), rtol=1e-6, atol=0)


# Kills: chunks joined in another order, or budgets that depend on where a chunk ends.
def test_chunks_give_the_whole() -> None:
    problem = problem_of(build(SPARE.with_(b=7), "cpu"))
    whole, chunked = truth_of(problem), truth_of(problem, max_bytes=1)
    for part in ("answer", "budgets"):
        for name in ("out", "lse", "max_logits"):
            one, other = (getattr(getattr(truth, part), name) for truth in (whole, chunked))
            torch.testing.assert_close(one, other, rtol=1e-9 if part == "answer" else 0.1, atol=0)
