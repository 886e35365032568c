"""Wrong answers: each is what an adapter with that mistake returns, and is named when it comes out."""

from itertools import islice

import pytest
import torch

from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase, ScopeShape
from dsv4_conformance.cases.families import family
from dsv4_conformance.cases.problem import problem_of
from dsv4_conformance.numerics.compare import compare_all
from dsv4_conformance.numerics.diagnose import nearest_mutant
from dsv4_conformance.numerics.mutants import MUTANTS, Setting, wrong_answers
from dsv4_conformance.numerics.truth import Truth, truth_of
from dsv4_conformance.runner.execute import Call, Outputs, run_guarded
from tests import miniatures

CASES = {
    "SparseDecode": AttentionCase(
        "SparseDecode", 3, 2, 8, ScopeShape(150, 128, 64), ScopeShape(300, 130, 64), holes="many", seed=7
    ),
    "SparsePrefill": AttentionCase("SparsePrefill", 1, 5, 8, ScopeShape(300, 200), holes="many", seed=7),
}
DECODE_ONLY = {"extra_scope_lost", "scale_exponent_plus_one", "scale_exponent_minus_one"}
BOTH = [(name, s) for name in MUTANTS for s in CASES if s == "SparseDecode" or name not in DECODE_ONLY]


def adapter(mutant: str) -> type[miniatures.Miniature]:
    found: type[miniatures.Miniature] = getattr(miniatures, "".join(word.capitalize() for word in mutant.split("_")))
    return found


def run(mutant: str, surface: str) -> tuple[Call, Truth, Outputs]:
    call = build(CASES[surface], "cpu")
    return call, truth_of(problem_of(call)), run_guarded(adapter(mutant)("cpu"), call)


def named(outputs: Outputs) -> dict[str, torch.Tensor]:
    found = {"out": outputs.out, "lse": outputs.lse}
    return found if outputs.max_logits is None else {**found, "max_logits": outputs.max_logits}


# Kills: a mistake that is modelled otherwise than it is made, on lists, bytes, sinks or outputs. The adapters make
# theirs by other means than numerics/mutants.py.
@pytest.mark.parametrize(("mutant", "surface"), BOTH)
def test_an_adapter_with_the_mistake_returns_the_wrong_answer(mutant: str, surface: str) -> None:
    call, truth, outputs = run(mutant, surface)
    p = problem_of(call)
    rows = torch.arange(p.q.shape[0])
    setting = Setting.of(p, truth.answer, p.rows((rows + 1) % len(rows)))
    wrong = MUTANTS[mutant](setting)
    assert wrong is not None
    for name, got in named(outputs).items():
        want = getattr(wrong, name)
        room = 3 * getattr(truth.budgets, name) + 2.0**-7 * want.abs().nan_to_num(posinf=0).reshape(
            *want.shape[:2], -1
        ).amax(-1)
        error = torch.where(got == want, 0.0, (got - want).abs()).reshape(*want.shape[:2], -1).amax(-1)
        assert (error <= room).all(), name


# Kills: an explanation that names another mistake, or none. (Where few keys are left, two mistakes can be the same.)
@pytest.mark.parametrize(("mutant", "surface"), BOTH)
def test_the_mistake_is_named(mutant: str, surface: str) -> None:
    call, truth, outputs = run(mutant, surface)
    got, names = named(outputs), []
    for row in range(len(outputs.out)):
        right = truth.rows(slice(row, row + 1))
        pairs = [(n, x[row : row + 1], getattr(right.answer, n), getattr(right.budgets, n)) for n, x in got.items()]
        if all(verdict.passed for verdict in compare_all(pairs)):
            continue
        near = nearest_mutant(problem_of(call), truth, row, got)
        assert near is not None and near.explains, (row, near)
        assert near.meaning and near.meaning in (MUTANTS[near.mutant].__doc__ or "")
        names.append(near.mutant)
    assert mutant in names


# Kills: an explanation for everything: noise is no known mistake.
def test_an_unknown_mistake_is_not_explained() -> None:
    call = build(CASES["SparseDecode"], "cpu")
    truth = truth_of(problem_of(call))
    outputs = run_guarded(miniatures.Kernel("cpu"), call)
    noisy = outputs.out.float() + torch.randn(outputs.out.shape, generator=torch.Generator().manual_seed(6))
    near = nearest_mutant(problem_of(call), truth, 3, {"out": noisy.to(torch.bfloat16), "lse": outputs.lse})
    assert near is not None and not near.explains


# Kills: wrong answers that depend on which others are computed with them.
@pytest.mark.parametrize("surface", CASES)
def test_mistakes_taken_together_or_alone_give_the_same(surface: str) -> None:
    for case in islice(family("core", surface, "laptop", 2), 6):
        assert isinstance(case, AttentionCase)
        p = problem_of(build(case.with_(h_q=min(case.h_q, 8)), "cpu"))
        rows = torch.arange(p.q.shape[0])
        setting = Setting.of(p, truth_of(p).answer, p.rows((rows + 1) % len(rows)))
        for name, together in wrong_answers(setting).items():
            alone = MUTANTS[name](setting)
            assert alone is not None
            for output in ("out", "lse", "max_logits"):
                one, other = getattr(together, output), getattr(alone, output)
                torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12, equal_nan=True)


# Kills: a setting whose logits or keys a mistake changes for the next one.
def test_mistakes_leave_their_setting_alone() -> None:
    p = problem_of(build(CASES["SparseDecode"], "cpu"))
    rows = torch.arange(p.q.shape[0])
    setting = Setting.of(p, truth_of(p).answer, p.rows((rows + 1) % len(rows)))
    before = [t.clone() for t in (setting.keys, setting.valid, setting.logits, setting.answer.out, setting.answer.lse)]
    wrong_answers(setting)
    after = (setting.keys, setting.valid, setting.logits, setting.answer.out, setting.answer.lse)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
