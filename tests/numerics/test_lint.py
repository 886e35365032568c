"""Lint of profiles: the shipped ones have no blind spot, useless data and tests that measure nothing are reported."""

from collections.abc import Iterator
from typing import Any

import pytest

from dsv4_conformance.cases.case import AttentionCase, ScopeShape
from dsv4_conformance.cases.plan import PlannedCase, expand
from dsv4_conformance.cases.profiles import get_profile
from dsv4_conformance.cli import main
from dsv4_conformance.cli.suite_functions import suite_functions
from dsv4_conformance.numerics.discrimination import REQUIRED
from dsv4_conformance.numerics.lint import Lint, SuiteTest, lint_plan
from dsv4_conformance.numerics.mutants import MUTANTS
from dsv4_conformance.suite import ATTENTION


def plan_of(profile: str) -> Iterator[tuple[SuiteTest, PlannedCase]]:
    for f in suite_functions():
        for case in expand(f.spec, f.name, get_profile(profile), 0):
            yield f.function, case


def judge(subject: Any, case: Any) -> None:
    subject.judge(subject.build(case))


def by_hand(cases: list[AttentionCase], test: SuiteTest = judge) -> Lint:
    return lint_plan([(test, PlannedCase(f"INV-01-{i}", "INV-01", c.surface, c)) for i, c in enumerate(cases)], "cpu")


# 640 keys in every row, a sink of 0 and rows that no length shortens.
USELESS = [
    AttentionCase("SparsePrefill", 1, 4, 64, ScopeShape(2000, 640, 64, "full"), sink="zero", holes="none", seed=seed)
    for seed in range(3)
]


# Kills: a profile whose counts or families no longer show some mistake, mistakes that apply nowhere.
@pytest.mark.parametrize("profile", ["smoke", "kill"])
def test_shipped_profiles_have_no_blind_spot(profile: str) -> None:
    found = lint_plan(plan_of(profile), "cpu")
    assert found.passed, (found.blind(), found.unmeasured())
    seen = {mistake for cases in found.margins.values() for margins in cases for mistake in margins}
    assert seen >= set(MUTANTS)
    measured = {requirement for (requirement, surface), cases in found.margins.items() if cases}
    weakest = found.weakest()
    assert weakest is not None and weakest[0] >= REQUIRED
    if profile == "kill":
        assert found.cases > 300
        attention = {r for r, surface in found.margins if surface in ATTENTION}
        assert measured == attention | {"INV-60"} and len(attention) >= 20


# Kills: lint that looks at the mistakes of other cases, or takes any margin for enough.
def test_a_profile_of_useless_data_is_reported() -> None:
    found = by_hand(USELESS)
    assert not found.passed
    assert set(found.blind()) == {"INV-01"} and "sink_dropped" in found.blind()["INV-01"]
    assert found.blind()["INV-01"]["sink_dropped"] < REQUIRED
    assert "zeros" not in found.blind()["INV-01"]


# Kills: one case that shows a mistake not enough to clear the requirement.
def test_one_telling_case_is_enough() -> None:
    few = USELESS[0].with_(window=ScopeShape(2000, 640, 64, "mixed"))
    found = by_hand([*USELESS, few])
    assert "sink_dropped" not in found.blind().get("INV-01", {})


# Kills: a surface that is blind unnoticed because another one is not.
def test_a_surface_that_leans_on_another_is_remarked() -> None:
    decode = AttentionCase("SparseDecode", 3, 1, 16, ScopeShape(130, 128, 64), sink="zero")
    found = by_hand([*USELESS, decode])
    assert "sink_dropped" not in found.blind().get("INV-01", {})
    assert "sink_dropped" in found.blind_on_one_surface()[("INV-01", "SparsePrefill")]
    assert ("INV-01", "SparseDecode") not in found.blind_on_one_surface()


# Kills: a test that never judges, taken for one that rejects everything.
def test_a_test_that_measures_nothing_is_reported() -> None:
    def looks_only(subject: Any, case: Any) -> None:
        subject.expect(subject.run(subject.build(case)).out.isfinite().all(), "not finite")

    found = by_hand(USELESS[:1], looks_only)
    assert found.unmeasured() == [("INV-01", "SparsePrefill")] and not found.passed
    assert found.blind() == {} and found.weakest() is None


# Kills: margins of something else than what a run records.
def test_margins_are_those_that_a_run_records() -> None:
    import torch

    from dsv4_conformance.implementations.builtin import Builtin
    from dsv4_conformance.runner.subject import Subject

    subject = Subject(Builtin("cpu"), torch.device("cpu"), "INV-01")
    judge(subject, USELESS[0])
    recorded = subject.record()["margins"]
    assert by_hand(USELESS[:1]).margins[("INV-01", "SparsePrefill")] == [recorded] and recorded


# Kills: an exit code that does not tell, a registry that is not looked at, problems without their mistake in words.
def test_the_command_says_what_is_blind(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as passed:
        main(["lint", "--profile", "smoke", "--device", "cpu"])
    said = capsys.readouterr().out
    assert passed.value.code == 0 and said.splitlines()[-2].startswith("smoke: ")
    monkeypatch.setattr("dsv4_conformance.numerics.lint.lint_plan", lambda plan, device: by_hand(USELESS))
    with pytest.raises(SystemExit) as failed:
        main(["lint", "--profile", "smoke", "--quiet"])
    said = capsys.readouterr().out
    assert failed.value.code == 1
    assert "INV-01: sink_dropped (The sink ignored.) is rejected by " in said


def test_the_command_lints_the_registry(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from dsv4_conformance.cli import suite_functions as room

    kept = [f for f in suite_functions() if f.spec.requirement != "INV-52"]
    monkeypatch.setattr(room, "suite_functions", lambda: kept)
    with pytest.raises(SystemExit) as failed:
        main(["lint", "--profile", "smoke", "--quiet"])
    assert failed.value.code == 1 and "INV-52 has no test." in capsys.readouterr().out


# Kills: a traceback for a word that is wrong.
@pytest.mark.parametrize("words", [["--profile", "smok"], ["--device", "tpu"], ["--seed", "x"]])
def test_bad_input_is_one_sentence(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["lint", *words])
    said = capsys.readouterr()
    assert refused.value.code == 2 and said.out == "" and len(said.err.strip().splitlines()) == 1
