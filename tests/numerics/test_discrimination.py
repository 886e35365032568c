"""Margins of known mistakes by hand, what applies where, and what a requirement cannot see."""

import math
from dataclasses import replace

import pytest
import torch

from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase, ScopeShape
from dsv4_conformance.cases.problem import problem_of
from dsv4_conformance.numerics.discrimination import CAP, REQUIRED, Margins, blind_spots, case_margin, margins
from dsv4_conformance.numerics.mutants import MUTANTS
from dsv4_conformance.numerics.truth import truth_of
from dsv4_conformance.oracle.attention import Problem, Scope

PLAIN = AttentionCase("SparseDecode", 3, 1, 8, ScopeShape(130, 128, 64), ScopeShape(80, 64, 64), sink="finite")


def margins_of(case: AttentionCase, outputs: tuple[str, ...] = ("out", "lse", "max_logits")) -> Margins:
    p = problem_of(build(case, "cpu"))
    return margins(p, truth_of(p), outputs=outputs)


# Kills: mistakes lost from the list, or listed under another name.
def test_every_mistake_of_the_issue_is_there() -> None:
    assert set(MUTANTS) == {
        "zeros", "sink_dropped", "sink_of_another_rank", "sink_scaled", "sink_in_lse", "window_minus_one",
        "window_plus_one", "key_dropped", "minus_one_as_slot_0", "topk_length_ignored", "last_block_lost",
        "extra_scope_lost", "scale_exponent_plus_one", "scale_exponent_minus_one", "rope_pairing_wrong",
        "neighbours_keys", "lse_base_2", "softmax_scale_of_576",
    }  # fmt: skip


# Kills: mistakes that are counted where they change nothing, or not counted where they change something.
@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({}, set()),
        ({"sink": "none"}, {"sink_dropped", "sink_of_another_rank", "sink_scaled", "sink_in_lse"}),
        ({"sink": "zero"}, {"sink_of_another_rank", "sink_scaled"}),
        ({"sink": "minus_inf"}, {"sink_dropped", "sink_of_another_rank", "sink_scaled", "sink_in_lse"}),
        ({"extra": None}, {"extra_scope_lost"}),
        ({"holes": "none"}, {"minus_one_as_slot_0"}),
        ({"b": 1}, {"neighbours_keys"}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_mistake_applies_where_the_answer_changes(change: dict[str, object], missing: set[str]) -> None:
    assert set(MUTANTS) - set(margins_of(PLAIN.with_(**change))) == missing


def test_lengths_and_scales_apply_only_where_they_exist() -> None:
    full = PLAIN.with_(window=ScopeShape(130, 128, 64, "none"), extra=ScopeShape(80, 64, 64, "none"))
    assert "topk_length_ignored" not in margins_of(full)
    prefill = PLAIN.with_(surface="SparsePrefill", b=1, s_q=3, extra=None)
    found = margins_of(prefill)
    assert not {"scale_exponent_plus_one", "scale_exponent_minus_one", "extra_scope_lost"} & set(found)
    assert {"topk_length_ignored", "rope_pairing_wrong", "neighbours_keys"} <= set(found)


# Kills: the mean over rows, a budget of another row, a margin that is not in budgets.
def test_margin_is_the_best_row_s_error_in_its_budget() -> None:
    p = problem_of(build(PLAIN, "cpu"))
    truth = truth_of(p)
    found = margins(p, truth)
    rows = (truth.answer.lse * (1 / math.log(2) - 1)).abs() / truth.budgets.lse
    assert found["lse_base_2"] == {"lse": pytest.approx(float(rows.max()), rel=1e-9)}
    rows = truth.answer.out.abs().amax(-1) / truth.budgets.out
    assert found["zeros"]["out"] == pytest.approx(float(rows.max()), rel=1e-9)
    assert set(found["sink_dropped"]) == {"out"} and set(found["sink_in_lse"]) == {"lse"}


# Kills: margins through an output that the call does not return.
def test_outputs_that_are_not_returned_do_not_count() -> None:
    found = margins_of(PLAIN, outputs=("out", "lse"))
    assert found and not any("max_logits" in outputs for outputs in found.values())


# Kills: special values (an infinity that becomes finite) that overflow a margin, exact values without one.
def test_margins_are_cut_at_the_cap() -> None:
    found = margins_of(PLAIN.with_(sink="special", lonely=True))
    assert found["sink_dropped"]["out"] == CAP  # heads with a sink of +inf are exactly 0
    assert found["zeros"]["lse"] == CAP  # the lonely row's +inf
    assert all(math.isfinite(ratio) for outputs in found.values() for ratio in outputs.values())


# Kills: the first rows or heads only (the last row is the lonely one), more than asked for.
def test_first_and_last_rows_and_heads_are_looked_at() -> None:
    q = torch.randn(9, 40, 512, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    kv = torch.randn(30, 512, generator=torch.Generator().manual_seed(4)).to(torch.bfloat16)
    lists = torch.arange(27, dtype=torch.int32).view(9, 3)
    p = Problem(q, (Scope(lambda at: kv[at], lists, None, 30),), torch.zeros(40), 512**-0.5)
    truth = truth_of(p)
    for row, head in ((0, 0), (8, 39)):
        broken = truth.budgets.lse.clone()
        broken[row, head] = 1e-12
        one = margins(p, replace(truth, budgets=replace(truth.budgets, lse=broken)), rows=2, heads=2)
        assert one["sink_in_lse"]["lse"] == CAP


# Kills: an average where the worst mistake decides, outputs mixed up.
def test_case_margin_is_the_worst_mistake_per_output() -> None:
    found = {"a": {"out": 9.0, "lse": 50.0}, "b": {"out": 4.0}, "c": {"lse": CAP}}
    assert case_margin(found) == {"out": 4.0, "lse": 50.0}
    assert case_margin({}) == {}


# Kills: the last case instead of the best, one output instead of any, a limit other than 3 budgets.
def test_blind_spots_are_mistakes_that_no_case_rejects_by_3_budgets() -> None:
    cases = [
        {"a": {"out": 2.9, "lse": 0.5}, "b": {"out": 1.0}},
        {"a": {"lse": 3.0}, "b": {"out": 2.99}, "c": {"out": 0.0}},
        {"b": {"out": 0.5}},
    ]
    assert REQUIRED == 3.0
    assert blind_spots(cases) == {"b": 2.99, "c": 0.0}
    assert blind_spots([]) == {}


# Kills: data chosen without looking: an ignored sink of 0 among 640 keys stays inside the error budget.
def test_a_sink_of_0_is_invisible_among_640_keys_and_visible_among_few() -> None:
    generator = torch.Generator().manual_seed(5)
    kv = torch.randn(640, 512, generator=generator).to(torch.bfloat16)
    q = torch.randn(4, 64, 512, generator=generator).to(torch.bfloat16)

    def ignored(keys: int) -> float:
        lists = torch.arange(keys, dtype=torch.int32).expand(4, keys)
        p = Problem(q, (Scope(lambda at: kv[at], lists, None, 640),), torch.zeros(64), 512**-0.5)
        return margins(p, truth_of(p), rows=4, heads=64)["sink_dropped"]["out"]

    assert ignored(640) < REQUIRED
    assert ignored(4) > 10 * REQUIRED
