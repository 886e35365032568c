"""The gate's verdicts on runs made by hand: each ground for each verdict, and none without its ground."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dsv4_conformance.accuracy.decision import Verdict, decide, detectable
from dsv4_conformance.accuracy.gate import Judgement, judge
from dsv4_conformance.accuracy.golden_record import Golden, golden_of
from dsv4_conformance.accuracy.item_model import MODELS, Change
from dsv4_conformance.accuracy.profiles import Rule, rule_of
from dsv4_conformance.accuracy.records import AccuracyRun
from dsv4_conformance.errors import ExitCode

from .made import FINGERPRINT, changed, golden, run_of

N = 400
RULE = rule_of("pre-merge", "gsm8k")
ALL = np.ones((N, 8), dtype=np.int64)


def reference(**how: Any) -> Golden:
    """390 questions always right, 10 never."""
    right = ALL.copy()
    right[390:] = 0
    return golden(right, **how)


REFERENCE = reference()


def candidate(lost: int = 0, passes: int = 1, **how: Any) -> AccuracyRun:
    right = np.ones((N, passes), dtype=np.int64)
    right[390 - lost :] = 0
    return run_of(right, **how)


def verdict(run: AccuracyRun, rule: Rule = RULE, golden: Golden | None = None) -> Judgement:
    return judge(golden or REFERENCE, run, rule, "pre-merge")


def test_the_same_answers_pass() -> None:
    found = verdict(candidate())
    assert (found.verdict, found.exit_code, found.passes, found.next_look) == (Verdict.PASS, ExitCode.QUALIFIES, 1, 2)
    assert found.score is not None and found.score.difference == 0 and not found.warns
    assert not found.score.lost and not found.score.gained


def test_a_real_drop_fails() -> None:
    found = verdict(candidate(lost=12))
    assert (found.verdict, found.exit_code) == (Verdict.FAIL, ExitCode.FAILED)
    assert found.score is not None and len(found.score.lost) == 12 and found.score.lost[0].golden == 8


def test_a_drop_that_may_be_noise_is_inconclusive() -> None:
    found = verdict(candidate(lost=3))
    assert (found.verdict, found.exit_code) == (Verdict.INCONCLUSIVE, ExitCode.INCONCLUSIVE)


def test_a_sure_drop_below_half_the_margin_does_not_fail() -> None:
    wide = RULE.model_copy(update={"margin": 0.08})
    found = verdict(candidate(lost=12), wide)
    assert found.verdict == Verdict.PASS
    assert found.finding("score") in found.warns, "it is really lower, and that is said"


def test_the_floor_needs_no_statistics() -> None:
    wide = RULE.model_copy(update={"margin": 0.2, "floor": 0.05})
    noisy = np.zeros((20, 8), dtype=np.int64)
    noisy[:, ::2] = 1
    half = np.zeros((20, 1), dtype=np.int64)
    half[:9] = 1
    rule = wide.model_copy(update={"golden_runs": 2})
    assert verdict(run_of(half), rule, golden(noisy)).verdict == Verdict.FAIL
    half[:10] = 1
    assert verdict(run_of(half), rule, golden(noisy)).verdict != Verdict.FAIL


def test_later_looks_use_every_pass_and_none_beyond_the_last() -> None:
    good, bad = np.ones((N, 1), dtype=np.int64), np.ones((N, 1), dtype=np.int64)
    good[390:], bad[370:] = 0, 0
    for columns, used in (([good], 1), ([good, bad], 2), ([good, bad, bad], 2), ([good] * 4 + [bad] * 3, 4)):
        found = verdict(run_of(np.hstack(columns)))
        assert found.passes == used
        wanted = 390 if used != 2 else 380
        assert found.score is not None and found.score.candidate == pytest.approx(wanted / N)
    assert verdict(run_of(np.hstack([good] * 4))).next_look is None


def test_looks_share_the_alphas() -> None:
    assert RULE.pass_confidence == pytest.approx(1 - 0.05 / 3)
    assert RULE.fail_confidence == pytest.approx(1 - 0.01 / 3)


@pytest.mark.parametrize("field", sorted(FINGERPRINT))
def test_every_field_of_the_fingerprint_is_compared_and_named(field: str) -> None:
    for other in ({**FINGERPRINT, field: "other"}, {k: v for k, v in FINGERPRINT.items() if k != field}):
        found = verdict(candidate(fingerprint=other))
        assert (found.verdict, found.exit_code, found.score) == (
            Verdict.INVALID,
            ExitCode.INVALID_COMPARISON,
            None,
        )
        assert any(reason.startswith(f"fingerprint.{field} is ") for reason in found.invalid), found.invalid


def test_model_and_seed_are_free() -> None:
    assert verdict(candidate(model="other", seed=7, versions={"engine": "2"})).verdict == Verdict.PASS


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (candidate(task="aime25"), "task is 'aime25', in the golden 'gsm8k'"),
        (candidate(endpoint="completions"), "endpoint is 'completions'"),
        (run_of(np.ones((N - 1, 1))), "items: 1 question of the golden is not in the run, 0 are new"),
        (changed(candidate(), "q3", 0, prompt="x"), "prompt of 1 question is another than in the golden, q3 first"),
        (changed(candidate(), "q3", 0, expected="9"), "expected of 1 question is another"),
        (
            replace(candidate(), answers=candidate().answers[:-1]),
            "1 answer of the first 1 pass that this profile judges is missing",
        ),
        (replace(candidate(), answers=()), "400 answers of the first 1 pass that this profile judges are missing"),
        (candidate(statuses={(i, 0): "error" for i in range(3)}), "errors: 3 of 400 requests got no usable reply"),
    ],
    ids=["task", "endpoint", "items", "prompt", "expected", "one answer missing", "nothing", "errors"],
)
def test_what_cannot_be_compared_is_invalid_and_says_why(run: AccuracyRun, named: str) -> None:
    found = verdict(run)
    assert found.verdict == Verdict.INVALID
    assert any(named in reason for reason in found.invalid), found.invalid


def test_prompts_that_differ_between_passes_are_invalid() -> None:
    run = changed(candidate(passes=2), "q3", 1, prompt="x")
    assert any("prompt of 1 question" in reason for reason in verdict(run).invalid)


def test_a_golden_with_too_few_passes_is_invalid() -> None:
    short = golden(ALL[:, :3])
    assert "the golden has 3 passes and this profile needs 4" in verdict(candidate(), golden=short).invalid[0]


def test_an_engine_that_does_not_think_is_no_match_for_one_that_does() -> None:
    thinking = golden(ALL)
    thinking = replace(thinking, rows=tuple(replace(row, reasoned=8) for row in thinking.rows))
    found = verdict(candidate(), golden=thinking)
    assert any(reason.startswith("thinking: 0 % of the replies") for reason in found.invalid)
    run = candidate()
    run = replace(run, answers=tuple(replace(a, reasoning="hm", reasoning_tokens=1) for a in run.answers))
    assert verdict(run, golden=thinking).verdict == Verdict.FAIL, "390 of 400, golden all: compared"


def test_copies_of_one_pass_are_invalid_unless_it_is_greedy() -> None:
    run = candidate(passes=2)
    copied = replace(run, answers=tuple(replace(a, text="same") for a in run.answers))
    assert any(reason.startswith("seed: 100 % of the questions") for reason in verdict(copied).invalid)
    greedy = {**FINGERPRINT, "temperature": "0.0"}
    copied = replace(copied, header=replace(copied.header, fingerprint=greedy))
    assert verdict(copied, golden=reference(fingerprint=greedy)).verdict == Verdict.PASS


def test_a_golden_is_not_compared_with_its_own_answers() -> None:
    run = candidate(passes=4)
    own = golden_of(run, 4, "own", {}, simulated=False)
    found = verdict(run, golden=own)
    assert (found.verdict, found.exit_code) == (Verdict.INVALID, ExitCode.INVALID_COMPARISON)
    assert "answers: pass 1, 2, 3, 4 of this run is the golden's own" in found.invalid[0]
    again = replace(run, answers=tuple(replace(a, seconds=a.seconds + 1) for a in run.answers))
    found = verdict(again, golden=own)
    assert found.verdict == Verdict.INVALID, "a cache gives the same words at another time"
    assert "1,600 of 1,600 replies are byte for byte the golden's, where chance makes 0 %" in found.invalid[0]
    few = replace(run, answers=tuple(replace(a, text=a.text + "." * (a.item > "q12")) for a in again.answers))
    assert verdict(few, golden=own).verdict == Verdict.PASS, "3 % of the words again, none of the times"
    mixed = replace(run, answers=(*run.answers[:N], *again.answers[N:]))
    assert "pass 1 of this run" in verdict(mixed, golden=own).invalid[0]
    one = replace(run, answers=tuple(a for a in run.answers if a.repeat == 0))
    assert verdict(one, golden=own).verdict == Verdict.INVALID
    removed = {("q7", r): a for r, a in enumerate(again.answers[7::N])}
    filled = tuple(removed.get(a.key, a) for a in run.answers)
    found = verdict(replace(run, answers=filled), golden=own)
    assert "answers: 1,596 of 1,600 are the golden's own, to the time they took" in found.invalid[0]


def test_replies_of_several_models_are_no_run_of_one() -> None:
    named = {**FINGERPRINT, "model": "m"}
    run = candidate(fingerprint=named)
    run = replace(run, answers=tuple(replace(a, served="m") for a in run.answers))
    assert verdict(run, golden=reference(fingerprint=named)).verdict == Verdict.PASS
    for served in ("m-2", ""):
        found = verdict(changed(run, "q7", 0, served=served), golden=reference(fingerprint=named))
        assert found.verdict == Verdict.INVALID
        assert f"the replies name 'm' in 399, '{served or 'none'}' in 1 of 400" in found.invalid[0]
        assert "another one at q7 of pass 1 first" in found.invalid[0]


@pytest.mark.parametrize("status", ["filtered", "malformed"])
def test_filtered_and_malformed_replies_have_a_gate_and_are_named(status: str) -> None:
    generous = RULE.model_copy(update={"margin": 0.2, "floor": 0.3})
    one, many = (verdict(candidate(statuses={(i, 0): status for i in range(n)}), generous) for n in (1, 6))
    assert one.verdict == Verdict.PASS and [f.gate for f in one.warns] == ["malformed"]
    finding = many.finding("malformed")
    assert many.verdict == Verdict.FAIL and finding is not None and finding.verdict == Verdict.FAIL
    assert finding.items[0] == "q0 1/1, golden 0/8" and len(finding.items) == 6


def test_no_interval_reaches_beyond_all_questions() -> None:
    before, after = golden([[1] * 8] * 3), run_of([[1], [1], [0]])
    score = verdict(after, golden=before).score
    assert score is not None and score.low == -1.0 and score.high <= 1.0


def test_errors_are_neither_wrong_nor_right() -> None:
    # 2 of 400: as wrong they leave doubt, as right they do not.
    errors = verdict(candidate(statuses={(0, 0): "error", (1, 0): "error"}))
    assert errors.verdict == Verdict.INCONCLUSIVE
    assert errors.score is not None and not errors.score.lost, "an error is no lost question"
    narrow = RULE.model_copy(update={"margin": 0.02})
    assert verdict(candidate(statuses={(0, 0): "error", (1, 0): "error"}), narrow).verdict == Verdict.PASS
    # 9 lost would fail: a drop that is one only if the errors count as wrong is none.
    assert verdict(candidate(lost=11, statuses={(0, 0): "error"})).verdict == Verdict.FAIL
    assert verdict(candidate(lost=7, statuses={(0, 0): "error", (1, 0): "error"})).verdict == Verdict.INCONCLUSIVE


@pytest.mark.parametrize("status", ["truncated", "no_answer", "empty"])
def test_the_separate_gates_fail_by_themselves(status: str) -> None:
    generous = RULE.model_copy(update={"margin": 0.2, "floor": 0.3})
    gate = "truncated" if status == "truncated" else "no_answer"
    for number, wanted in ((2, Verdict.PASS), (6, Verdict.FAIL)):
        found = verdict(candidate(statuses={(i, 0): status for i in range(number)}), generous)
        finding = found.finding(gate)
        assert finding is not None and finding.verdict == wanted, (number, finding)
        assert found.verdict == wanted
        others = [f for f in found.findings if f.gate not in (gate, "score")]
        assert all(f.verdict == Verdict.PASS for f in others)


def test_a_golden_above_the_cap_does_not_fail_an_unchanged_engine() -> None:
    statuses = {(i, r): "truncated" for i in range(12) for r in range(8)}
    high = golden(ALL, statuses=statuses)
    found = verdict(candidate(lost=-10, statuses={(i, 0): "truncated" for i in range(12)}), golden=high)
    truncated = found.finding("truncated")
    assert truncated is not None and truncated.verdict == Verdict.PASS and truncated.warns


def test_length_warns_or_fails_as_the_profile_says() -> None:
    strict = RULE.model_copy(update={"tokens_do": "fail"})
    for tokens, warns, fails in ((100, False, False), (109, False, False), (112, True, True), (88, True, True)):
        soft, hard = verdict(candidate(tokens=tokens)), verdict(candidate(tokens=tokens), strict)
        assert (soft.verdict == Verdict.PASS, bool(soft.warns)) == (True, warns), tokens
        assert (hard.verdict == Verdict.FAIL) == fails, tokens
    uncounted = verdict(candidate(tokens=None))
    assert uncounted.verdict == Verdict.PASS and uncounted.warns[0].gate == "tokens"
    uncounted = verdict(candidate(tokens=None), strict)
    assert uncounted.verdict == Verdict.INVALID and "replies come without completion_tokens" in uncounted.invalid[0]
    one = changed(candidate(tokens=112), "q0", 0, completion_tokens=None)
    assert verdict(one, strict).verdict == Verdict.FAIL, "one reply without a count hides nothing"
    assert verdict(changed(candidate(), "q0", 0, completion_tokens=None), strict).verdict == Verdict.PASS


def test_length_that_may_be_noise_warns_only() -> None:
    strict = RULE.model_copy(update={"tokens_do": "fail"})
    run = candidate()
    longer = [replace(a, completion_tokens=100 + (4900 if i == 7 else 0)) for i, a in enumerate(run.answers)]
    found = verdict(replace(run, answers=tuple(longer)), strict)
    assert found.verdict == Verdict.PASS and [f.gate for f in found.warns] == ["tokens"]


def test_a_change_of_form_warns() -> None:
    run = candidate()
    other = [replace(a, fallback=3) if i < 9 else a for i, a in enumerate(run.answers)]
    assert [f.gate for f in verdict(replace(run, answers=tuple(other))).warns] == ["form"]


def test_one_broken_question_of_thirty_fails_by_its_own_test_alone() -> None:
    rule = rule_of("release", "aime25")
    before = golden(np.ones((30, 64)), task="aime25")
    right = np.ones((30, 16))
    right[4] = 0
    found = judge(before, run_of(right, task="aime25"), rule, "release")
    assert found.verdict == Verdict.FAIL
    assert found.score is not None and [m.item for m in found.score.broken] == ["q4"]
    without = judge(before, run_of(right, task="aime25"), rule.model_copy(update={"item_rate": 0.0}), "release")
    assert without.verdict == Verdict.INCONCLUSIVE, "no test of the mean can say it"


def test_a_broken_question_that_others_make_up_for_does_not_fail() -> None:
    rule = rule_of("release", "aime25")
    before = np.ones((30, 64))
    before[5] = 0
    right = np.ones((30, 16))
    right[4] = 0
    found = judge(golden(before, task="aime25"), run_of(right, task="aime25"), rule, "release")
    assert found.verdict == Verdict.INCONCLUSIVE


def test_order_of_questions_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.integers(0, 2, (N, 8)), rng.integers(0, 2, (N, 1))
    run = run_of(after)
    turned = replace(run, header=replace(run.header, items=run.header.items[::-1]), answers=run.answers[::-1])
    ours, theirs = verdict(run, golden=golden(before)), verdict(turned, golden=golden(before))
    assert ours.score == theirs.score and ours.findings == theirs.findings


def test_the_numbers_are_json() -> None:

    for run in (candidate(lost=12), candidate(task="aime25")):
        numbers = json.loads(json.dumps(verdict(run).numbers()))
        assert numbers["verdict"] in ("FAIL", "INVALID") and numbers["golden"]["name"] == "reference"


@pytest.mark.parametrize(("task", "runs", "passes"), [("gsm8k", 8, 1), ("gsm8k", 8, 4), ("aime25", 64, 16)])
def test_a_detectable_drop_is_failed_four_times_in_five(task: str, runs: int, passes: int) -> None:
    rule = rule_of("release" if task == "aime25" else "pre-merge", task)
    rng = np.random.default_rng(5)
    failed = []
    for p in MODELS[task].draw(rng, 40):
        drop = detectable(rng.binomial(runs, p), runs, passes, rule)
        q = Change("", "uniform", drop).apply(p[None], rng)
        before, after = rng.binomial(runs, np.repeat(p[None], 25, 0)), rng.binomial(passes, np.repeat(q, 25, 0))
        failed.append((decide(before, runs, after, passes, rule).verdict == Verdict.FAIL).mean())
    assert 0.74 <= np.mean(failed) <= 0.92
