"""What users read: the paragraph of a verdict, a golden described, costs, public scores, tables of rates."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance import resources
from dsv4_conformance.accuracy import anchors
from dsv4_conformance.accuracy.cost import cost_of
from dsv4_conformance.accuracy.gate import judge
from dsv4_conformance.accuracy.golden_text import described
from dsv4_conformance.accuracy.power import Rates
from dsv4_conformance.accuracy.power_text import markdown, plain
from dsv4_conformance.accuracy.profiles import rule_of
from dsv4_conformance.accuracy.pytest_words import in_pytest
from dsv4_conformance.accuracy.records import Session
from dsv4_conformance.accuracy.verdict_text import lines, paragraph
from dsv4_conformance.errors import BadInput
from dsv4_conformance.texts import counted

from .made import golden, run_of

N = 1000
BEFORE = golden([[1] * 8] * N)


def told(lost: int = 0, passes: int = 1, **how: Any) -> str:
    right = [[1] * passes] * (N - lost) + [[0] * passes] * lost
    return paragraph(judge(BEFORE, run_of(right, **how), rule_of("pre-merge", "gsm8k"), "pre-merge"))


def test_a_pass_says_so_and_asks_for_nothing() -> None:
    text = told()
    assert text.startswith(
        "PASS: GSM8K is not worse than the golden by 1 point or more. 'candidate' answers 100.00 % of"
    )
    assert "1,000 questions right in 1 pass, the golden 'reference' 100.00 % in 8 passes" in text
    assert "a difference of +0.00 points, 95 % interval -0.10 to +0.10." in text
    assert "Lost: no question. Gained: no question." in text
    assert text.endswith("What to do: nothing; accuracy does not stand in the way.")


def test_a_failure_names_questions_and_says_what_to_do() -> None:
    text = told(lost=12, passes=2)
    assert text.startswith("FAIL: GSM8K is down 1.20 points.")
    assert "The drop is real: an unchanged engine fails at most 1 such gate in 100" in text
    assert "Lost: 12 questions (q988 8/8 to 0/2, " in text and ", and 4 more). Gained: no question." in text
    assert "What to do: do not merge; ask q988 and the other lost questions of both builds" in text
    assert "accuracy run ... --questions q988,q989,q990,q991,q992,q993,q994,q995` asks them alone" in text


def test_doubt_says_how_to_go_on_and_where_it_ends() -> None:
    assert "What to do: run on to 2 passes with the same command; answers so far are kept" in told(lost=7)
    last = told(lost=6, passes=4)
    assert last.startswith("INCONCLUSIVE:") and "this was the last look" in last


ONE = {"--endpoint": "http://a/v1", "--note commit": "a1", "the server's version": "0.9", "the server's owned_by": "x"}
TWO = {"--endpoint": "http://b/v1"}


def sessions(*builds: tuple[dict[str, str], int]) -> str:
    run = run_of([[1]] * N)
    given = tuple(Session("r", f"2026-11-30T0{n}:00", build, count, build) for n, (build, count) in enumerate(builds))
    return paragraph(judge(BEFORE, replace(run, sessions=given), rule_of("pre-merge", "gsm8k"), "pre-merge"))


def test_a_verdict_says_whose_answers_it_is_about() -> None:
    assert "Answered at http://a/v1 (commit a1, version 0.9), begun 2026-11-30T00:00." in sessions((ONE, N))
    resumed = sessions((ONE, N - 100), (ONE, 0), (ONE, 100))
    assert "begun 2026-11-30T00:00, the last 100 of them 2026-11-30T02:00." in resumed
    assert "Look at this: answers of 2 set-ups are pooled as of one build: http://a/v1 (commit a1, version 0.9); " in (
        sessions((ONE, N - 100), (TWO, 100))
    )
    assert "Answered" not in told() and "pooled" not in told()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("start it, or correct --endpoint.", "start it, or correct --dsv4-endpoint."),
        ("say which with --model.", "say which with --dsv4-model."),
        ("ask anew, with a --results folder of its own", "ask anew, with a --dsv4-answers folder of its own"),
        ("go on, with --same-build (pytest: --dsv4-same-build).", "go on, with --dsv4-same-build."),
        ("name one with --golden NAME (pytest: --dsv4-golden FILE).", "name one with --dsv4-golden FILE."),
        ("name a golden folder with --folder", "name a golden folder with --dsv4-golden"),
        (
            "run the same command again with --repeats 2: it asks only",
            "run again with --dsv4-answers and its folder: it asks only",
        ),
        (
            "start it, or run with --no-thinking.",
            "start it, or judge against a golden without thinking, with --dsv4-golden.",
        ),
        ("fetch it anew, or allow it with --unverified-data.", "fetch it anew."),
        (
            "record one: dsv4-conformance golden record --task gsm8k --endpoint URL. --model",
            "record one: dsv4-conformance golden record --task gsm8k --endpoint URL. --dsv4-model",
        ),
        (
            "(`dsv4-conformance accuracy run --note x.y`, --note)",
            "(`dsv4-conformance accuracy run --note x.y`, --dsv4-note)",
        ),
        ("Say it with --dsv4-model; it --models.", "Say it with --dsv4-model; it --models."),
    ],
)
def test_under_pytest_remedies_are_options_of_pytest(said: str, told: str) -> None:
    assert in_pytest(said) == told


def test_numbers_and_their_nouns() -> None:
    assert [counted(n, "answer") for n in (0, 1, 1319)] == ["0 answers", "1 answer", "1,319 answers"]
    assert [counted(n, "pass", "passes") for n in (1, 2)] == ["1 pass", "2 passes"]


def test_missing_passes_say_the_command_that_gets_them() -> None:
    run = run_of([[1]] * N)
    text = paragraph(judge(BEFORE, run, rule_of("release", "gsm8k"), "release"))
    assert text.startswith("INVALID: GSM8K of 'candidate' cannot be compared")
    assert "1,000 answers of the first 2 passes that this profile judges are missing" in text
    assert text.endswith("run the same command again with --repeats 2: it asks only for what is missing.")


@pytest.mark.parametrize(
    ("status", "named", "todo"),
    [
        ("truncated", "Replies cut off: q0 1/1, golden 0/8; q1 1/1", "raise --max-tokens for golden and run alike"),
        ("no_answer", "Replies without an answer: q0 1/1", "look for a broken chat template"),
        ("empty", "Replies without an answer: q0 1/1", "a reasoning parser that keeps the answer"),
        ("filtered", "Filtered or malformed replies: q0 1/1", "switch the server's filter off"),
        ("malformed", "Filtered or malformed replies: q0 1/1", "writes the content and the finish_reason"),
    ],
)
def test_replies_that_fail_a_gate_are_named_with_what_to_do(status: str, named: str, todo: str) -> None:
    for number in (6, 60):  # the score stands, the score falls
        text = told(statuses={(i, 0): status for i in range(number)})
        assert text.startswith("FAIL: ") and named in text
        action = text[text.index("What to do: ") :]
        assert todo in action and "`dsv4-conformance accuracy run ... --questions q0,q1,q2,q3,q4,q5" in action
    assert "; and 52 more." in text


def test_an_invalid_comparison_says_nothing_else() -> None:
    text = told(endpoint="completions", fingerprint={})
    assert text.startswith("INVALID: GSM8K of 'candidate' cannot be compared with the golden 'reference'")
    assert "endpoint is 'completions', in the golden 'chat'; fingerprint." in text and "%" not in text


def test_other_failures_and_warnings_are_told() -> None:
    cut = told(statuses={(i, 0): "truncated" for i in range(6)})
    assert cut.startswith("FAIL: on GSM8K, replies cut off got worse.")
    assert "6 of 1,000 replies cut off at the token limit (0.60 %; golden 0.00 %: surely above the golden" in cut
    long = told(tokens=150)
    assert "Look at this: mean length 150 tokens, 1.50 of the golden's 100 (allowed 0.9 to 1.1)." in long
    assert long.endswith("look at what is marked above.")


def test_a_broken_question_is_named_with_its_counts() -> None:
    before = golden([[1] * 64] * 30, task="aime25")
    run = run_of([[1] * 16] * 29 + [[0] * 16], task="aime25")
    text = paragraph(judge(before, run, rule_of("release", "aime25"), "release"))
    assert text.startswith("FAIL: AIME25 is down 3.33 points, and 1 question surely broke.")
    assert "Broken: q29 (0 of 16, golden 64 of 64)" in text


def test_a_simulated_golden_is_called_one() -> None:
    fake = replace(BEFORE, simulated=True)
    text = paragraph(judge(fake, run_of([[1]] * N), rule_of("pre-merge", "gsm8k"), "pre-merge"))
    assert "the golden 'reference', recorded from the simulated server, 100.00 %" in text
    assert "says nothing about any model" in "\n".join(described(fake))


def test_a_line_for_each_gate() -> None:
    found = lines(judge(BEFORE, run_of([[1]] * N, tokens=150), rule_of("pre-merge", "gsm8k"), "pre-merge"))
    gates = [line.split()[:2] for line in found]
    assert gates == [
        ["PASS", "score"],
        ["PASS", "truncated"],
        ["PASS", "no_answer"],
        ["PASS", "malformed"],
        ["PASS", "errors"],
        ["PASS", "form"],
        ["WARN", "tokens"],
    ]


def test_a_golden_is_described() -> None:
    text = "\n".join(described(BEFORE))
    assert "8 passes, 1,000 questions" in text and "mean length 100 tokens" in text
    assert "noise of a pass 0.00 points" in text and "release: margin 1 points" in text
    assert "release: too short, its gate needs 8 passes" in "\n".join(described(golden([[1] * 4] * N)))


def test_cost_is_told_before_anything_is_asked() -> None:
    aime = cost_of("aime25", 64, speed=6000)
    assert (aime.requests, aime.tokens) == (1920, 38_400_000)
    assert aime.sentence() == (
        "1,920 requests, about 38.4 million completion tokens: about 1.8 hours at 6,000 tokens per second"
    )
    assert "about 12 minutes at 3,000" in cost_of("gsm8k", 8).sentence()


def test_shipped_anchors_have_protocol_and_source_and_gate_nothing() -> None:
    found = anchors.load(resources.golden_dir())
    assert {anchor.task for anchor in found} == {"gsm8k", "aime25"} and len(found) >= 10
    assert all(anchor.protocol and anchor.source.startswith("https://") for anchor in found)
    assert anchors.remark(resources.golden_dir(), "gsm8k", 0.962) == ""
    far = anchors.remark(resources.golden_dir(), "gsm8k", 0.80)
    assert far.startswith("For orientation only") and "80.0 %" in far


def test_broken_anchors_are_refused(tmp_path: Path) -> None:
    assert anchors.load(tmp_path) == [] and anchors.remark(tmp_path, "gsm8k", 0.1) == ""
    (tmp_path / "accuracy").mkdir()
    entry = {"task": "gsm8k", "model": "m", "stack": "s", "score": 96.2, "protocol": "p", "source": "https://x/y"}
    (tmp_path / "accuracy/anchors.json").write_text(json.dumps({"about": "", "anchors": [entry]}))
    with pytest.raises(BadInput, match=r"anchors\.json cannot be used"):
        anchors.load(tmp_path)


def test_rates_are_shown_with_their_intervals() -> None:
    found = {"nothing changed": {"a gate": Rates(200, 190, 4, 1.25)}}
    text = "\n".join(plain(found))
    assert "nothing changed" in text
    row = next(line for line in text.splitlines() if "a gate" in line).split()
    assert row[2:] == ["95.00", "(91.0-97.6)", "2.00", "(0.5-5.0)", "3.00", "(1.1-6.4)", "1.2"]
    table = list(markdown(found))
    assert "| a gate | 95.00 (91.0-97.6) | 2.00 (0.5-5.0) | 3.00 (1.1-6.4) | 1.2 |" in table
