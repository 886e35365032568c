"""Common tolerances against the error budgets on common data; docs/discrimination.md prints the same table."""

from functools import cache
from pathlib import Path

import pytest

from dsv4_conformance.numerics.mutants import MUTANTS
from tests.numerics.tolerances import DATA, RULES, rejected, table

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "discrimination.md"
WITHOUT_MEANING = {"sink_of_another_rank", "sink_scaled"}  # every sink is 0


@cache
def found(name: str) -> dict[str, set[str]]:
    return rejected(DATA[name])


# Kills: budgets that see no more than a loose tolerance does; numbers in the document that nobody has measured.
def test_on_randn_data_8e_2_accepts_mistakes_that_budgets_reject() -> None:
    seen = found("randn")
    assert seen["all"] == set(MUTANTS) - WITHOUT_MEANING
    assert seen["all"] - seen["8e-2 on out"] == {
        "lse_base_2", "sink_dropped", "sink_in_lse", "softmax_scale_of_576", "window_minus_one", "window_plus_one",
    }  # fmt: skip
    assert seen["1e-1 on out"] == seen["8e-2 on out"]
    for rule in ("error budget", "3 error budgets"):
        assert seen["all"] - seen[rule] == {"sink_dropped"}


# Kills: a comparison that passes because the outputs are small.
def test_on_a_tenth_of_it_8e_2_accepts_everything_and_flashmla_s_rule_does_not() -> None:
    seen = found("N/10")
    assert seen["8e-2 on out"] == seen["1e-1 on out"] == set()
    assert seen["8e-2 on out and lse"] == {"extra_scope_lost", "lse_base_2", "zeros"}
    assert seen["all"] - seen["FlashMLA's own"] == {"sink_dropped", "softmax_scale_of_576"}
    assert seen["all"] - seen["3 error budgets"] == {"sink_dropped"}


# Kills: counts that belong to one lucky draw.
@pytest.mark.parametrize("seed", [1, 2])
def test_other_draws_say_the_same_of_the_extremes(seed: int) -> None:
    one, tenth = rejected(1.0, seed), rejected(0.1, seed)
    assert tenth["8e-2 on out"] == set() and len(tenth["FlashMLA's own"]) >= 13
    for seen in (one, tenth):
        assert seen["all"] - seen["3 error budgets"] <= {"sink_dropped"}
    assert len(one["error budget"] - one["8e-2 on out"]) >= 4


# Kills: a document that drifts from what is measured.
def test_the_document_prints_the_measured_table() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert table() in text
    assert all(rule in text for rule in RULES)
