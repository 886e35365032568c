"""From a served model to a verdict: asked as the golden was, look by look, and what the suite makes of it."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.accuracy import golden_files, obtaining
from dsv4_conformance.accuracy.decision import Verdict
from dsv4_conformance.accuracy.gate import Judgement, judge
from dsv4_conformance.accuracy.golden_record import Golden, golden_of
from dsv4_conformance.accuracy.preflight import preflight
from dsv4_conformance.accuracy.profiles import Rule, read_rules, rule_of
from dsv4_conformance.accuracy.records import Session
from dsv4_conformance.accuracy.run import Settings, run_task
from dsv4_conformance.accuracy.simulator.behaviour import Behaviour
from dsv4_conformance.accuracy.verdict_text import paragraph
from dsv4_conformance.cli import main
from dsv4_conformance.errors import BadInput, HarnessError
from dsv4_conformance.runner.endpoint import Judged, outcome

from .made import golden as made_golden
from .made import run_of, written
from .served import endpoint, served

SOUND = Behaviour(broken_items=("gsm8k-test-3",), stream=1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Rule:
    """A rule for 24 questions."""
    rule = rule_of("pre-merge", "gsm8k").model_copy(
        update={"margin": 0.2, "floor": 0.5, "looks": (1, 2), "golden_runs": 2}
    )
    monkeypatch.setattr(obtaining, "rule_of", lambda profile, task: rule)
    return rule


def recorded(folder: Path, **settings: Any) -> Golden:
    with served(SOUND) as (url, _):
        run = run_task(
            Settings("gsm8k", endpoint(url), folder / "g", repeats=4, verify=False, quiet=True, seed=1000, **settings)
        ).run
    golden = golden_of(run, 4, "reference", {}, simulated=True)
    golden_files.save(folder, golden, None)
    return golden


def judged(behaviour: Behaviour, folder: Path, **other: Any) -> tuple[Judgement, Any]:
    with served(behaviour) as (url, server):
        found = obtaining.judgement_of(
            *(url, behaviour.model, "gsm8k", "pre-merge", folder, folder / "answers"),
            **{"quiet": True, "verify": False, "seed": 1000, **other},
        )
    return found, server


def test_an_unchanged_engine_passes_in_one_look(questions: Path, tmp_path: Path, small: Rule) -> None:
    recorded(tmp_path)
    found, server = judged(replace(SOUND, stream=2), tmp_path)
    assert (found.verdict, found.passes, sum(server.asked.values())) == (Verdict.PASS, 1, 24)


def test_a_broken_engine_fails(questions: Path, tmp_path: Path, small: Rule) -> None:
    recorded(tmp_path)
    found, _ = judged(replace(SOUND, stream=2, broken=14), tmp_path)
    assert found.verdict == Verdict.FAIL and found.score is not None and len(found.score.lost) >= 12


def test_doubt_asks_again_and_keeps_what_it_has(questions: Path, tmp_path: Path, small: Rule) -> None:
    recorded(tmp_path)
    found, server = judged(replace(SOUND, stream=2, broken=3), tmp_path)
    assert (found.verdict, found.passes, found.next_look) == (Verdict.INCONCLUSIVE, 2, None)
    assert max(server.asked.values()) == 1 and sum(server.asked.values()) == 48


def test_the_run_is_asked_as_the_golden_was(questions: Path, tmp_path: Path, small: Rule) -> None:
    made = recorded(tmp_path, generation={"temperature": 0.7, "max_gen_toks": 999, "reasoning_effort": "low"})
    assert (made.fingerprint["temperature"], made.fingerprint["max_tokens"]) == ("0.7", "999")
    found, _ = judged(replace(SOUND, stream=2), tmp_path)
    assert found.verdict == Verdict.PASS


def test_what_cannot_be_compared_is_found_before_anything_is_asked(
    questions: Path, tmp_path: Path, small: Rule
) -> None:
    recorded(tmp_path)
    found, server = judged(replace(SOUND, template="other"), tmp_path)
    assert found.verdict == Verdict.INVALID and "fingerprint.template is" in found.invalid[0]
    assert not server.asked and not list((tmp_path / "answers").glob("*.jsonl"))
    found, server = judged(SOUND, tmp_path, weights="fp8")
    assert any("fingerprint.weights is 'fp8', in the golden 'undeclared'" in reason for reason in found.invalid)


def test_overrides_are_those_that_differ() -> None:
    made = made_golden(
        [[1, 1]] * 3, fingerprint={"temperature": "0.5", "max_tokens": "9", "effort": "max", "weights": "x"}
    )
    defaults = {"temperature": 1.0, "max_tokens": 9, "top_p": 0.9}
    assert obtaining.asked_like(made, defaults) == {"temperature": 0.5, "effort": "max", "top_p": None}


def test_no_golden_is_no_verdict(tmp_path: Path) -> None:
    with pytest.raises(obtaining.NoGolden, match="There is no golden of 'm' for gsm8k"):
        obtaining.judgement_of("http://127.0.0.1:1/v1", "m", "gsm8k", "pre-merge", tmp_path, tmp_path)


N = 400
RIGHT = [[1] * 4] * N
RULE = rule_of("pre-merge", "gsm8k")


def record(run: Any, *gates: str, rule: Rule = RULE) -> dict[str, Any]:
    return outcome(Judged(judge(made_golden(RIGHT), run, rule, "pre-merge")), gates)


def test_what_requirements_make_of_a_run() -> None:
    good, bad = run_of([[1]] * N), run_of([[1]] * (N - 100) + [[0]] * 100)
    assert record(good, "score")["status_hint"] == "PASS"
    assert record(good, "score")["accuracy"]["paragraph"].startswith("PASS: GSM8K")
    failed = record(bad, "score")
    assert failed["status_hint"] == "FAIL" and failed["reason"].startswith("FAIL: GSM8K is down 25.00 points")
    assert record(bad, "tokens")["status_hint"] == "PASS", "each requirement has its own verdict"
    unsure = record(run_of([[1]] * (N - 3) + [[0]] * 3), "score")
    assert unsure["status_hint"] == "INCONCLUSIVE" and "run on to 2 passes" in unsure["reason"]
    long = record(run_of([[1]] * N, tokens=200), "tokens")
    assert long["status_hint"] == "WARN" and "2.00 of the golden's 100" in long["reason"]
    other = run_of([[1]] * N, task="aime25")
    assert record(other, "errors")["status_hint"] == record(other, "score")["status_hint"] == "INVALID"
    assert "task is 'aime25'" in record(other, "errors")["reason"] and "INV-133" in record(other, "score")["reason"]
    assert outcome(Judged(None, "no golden."), ("score",))["status_hint"] == "INVALID"


def test_answers_of_an_earlier_run_make_a_warning_that_counts_them() -> None:
    run = run_of([[1]] * N)
    for given, told in (
        (
            (Session("old", "T0", {}, N, {}),),
            "400 of the 400 answers are an earlier run's (begun T0), nothing was asked",
        ),
        (
            (Session("old", "T0", {}, 10), Session("new", "T1", {}, N - 10, {})),
            "10 of the 400 answers are an earlier",
        ),
    ):
        judgement = judge(made_golden(RIGHT), replace(run, sessions=given), RULE, "pre-merge")
        found = outcome(Judged(judgement, run="new"), ("errors",))
        assert found["status_hint"] == "WARN" and told in found["reason"]
        assert outcome(Judged(judgement, run="new"), ("score",))["status_hint"] == "PASS"
    fresh = judge(made_golden(RIGHT), replace(run, sessions=(Session("new", "T", {}, N, {}),)), RULE, "pre-merge")
    assert outcome(Judged(fresh, run="new"), ("errors",))["status_hint"] == "PASS"


def test_answers_of_another_build_are_not_judged(questions: Path, tmp_path: Path, small: Rule) -> None:
    recorded(tmp_path)
    judged(replace(SOUND, stream=2), tmp_path)
    with pytest.raises(BadInput, match="the server's version was simulated 1 and is simulated 2"):
        judged(replace(SOUND, stream=2, version="2", broken=14), tmp_path)
    found, server = judged(replace(SOUND, stream=2, version="2"), tmp_path, same_build=True, run="third")
    assert found.verdict == Verdict.PASS and not server.asked and Judged(found, run="third").reused == 24


def test_rules_are_complete_and_in_order() -> None:
    assert rule_of("soak", "gsm8k") == rule_of("pre-merge", "gsm8k")
    with pytest.raises(BadInput, match="no gate for the task 'mmlu'"):
        rule_of("release", "mmlu")
    text = "[p.t]\n" + "\n".join(
        f"{name} = {str(value).lower() if not isinstance(value, str) else repr(value)}"
        for name, value in RULE.model_dump(mode="json").items()
    )
    assert read_rules(text) == {"p": {"t": RULE}}
    for old, new in (("looks = [1, 2, 4]", "looks = [2, 1]"), ("margin = 0.01", "margin = 0.3"), ("errors", "erors")):
        with pytest.raises(HarnessError, match=r"profiles.toml, p\.t"):
            read_rules(text.replace(old, new, 1))


@pytest.mark.parametrize(
    "words",
    [
        ["golden", "show"],
        ["golden", "verify"],
        ["golden", "compare", "RUN", "--golden", "reference", "--folder", "FOLDER"],
        ["accuracy", "power", "--trials", "2", "--n", "100"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_judging_imports_neither_torch_nor_transformers(tmp_path: Path, words: list[str]) -> None:
    golden_files.save(tmp_path, made_golden(RIGHT), None)
    run = tmp_path / "run.jsonl"
    written(run_of([[1]] * N), run)
    program = (
        "import sys\n"
        "class No:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'transformers'):\n"
        "            raise RuntimeError(name)\n"
        "sys.meta_path.insert(0, No())\n"
        "from dsv4_conformance.cli import main\n"
        f"main({[str(run) if w == 'RUN' else str(tmp_path) if w == 'FOLDER' else w for w in words]!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("lost", "code"), [(0, 0), (100, 1), (3, 6)])
def test_compare_exits_with_its_verdict(
    tmp_path: Path, lost: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    golden_files.save(tmp_path, made_golden(RIGHT), None)
    run = run_of([[1]] * (N - lost) + [[0]] * lost)
    path = written(run, tmp_path / "run.jsonl")
    with pytest.raises(SystemExit) as ended:
        main(["golden", "compare", str(path), "--golden", "reference", "--folder", str(tmp_path)])
    assert ended.value.code == code
    assert capsys.readouterr().out.startswith({0: "PASS:", 1: "FAIL:", 6: "INCONCLUSIVE:"}[code])


def test_what_would_end_a_run_is_found_before_it_begins(questions: Path, tmp_path: Path) -> None:
    kept = tmp_path / "gsm8k.jsonl"
    golden_files.save(tmp_path, made_golden(RIGHT), None)
    with served(SOUND) as (url, server):

        def look(model: str = "simulated", **notes: str) -> None:
            preflight(url, model, notes, [kept, tmp_path / "aime25.jsonl"], tmp_path, None, ["gsm8k", "aime25"])

        look()
        settings = Settings("gsm8k", endpoint(url), tmp_path, verify=False, quiet=True, notes={"commit": "a1"})
        run_task(settings)
        asked = sum(server.asked.values())
        look(commit="a1")
        with pytest.raises(BadInput, match="--note commit was a1 and is b2"):
            look(commit="b2")
        with pytest.raises(BadInput, match="has no model 'other'"):
            look("other", commit="a1")
        assert sum(server.asked.values()) == asked
    with pytest.raises(BadInput, match="No server answers at"):
        look(commit="a1")


def test_passes_that_are_still_missing_have_a_sentence_of_their_own() -> None:
    rule = RULE.model_copy(update={"looks": (2, 4)})
    told = paragraph(judge(made_golden(RIGHT), run_of([[1]] * N), rule, "pre-merge"))
    assert "Too few passes yet: 400 answers of the first 2 passes" in told and "run the same command again" in told
