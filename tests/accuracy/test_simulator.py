import json
import urllib.request
from dataclasses import fields
from typing import Any

import pytest

from dsv4_conformance.accuracy import data
from dsv4_conformance.accuracy.simulator.answering import Model, Question, Questions
from dsv4_conformance.accuracy.simulator.behaviour import Behaviour, pass_probabilities, uniform
from dsv4_conformance.accuracy.simulator.loading import known_questions
from dsv4_conformance.accuracy.simulator.server import COUNTS
from dsv4_conformance.accuracy.tasks import TASKS, gsm8k_prompt
from dsv4_conformance.cli.simulate_server import simulate_server
from dsv4_conformance.errors import BadInput
from tests.accuracy.served import AIME, GSM8K, served

GSM8K_IDS = [f"gsm8k-test-{n}" for n in range(1319)]


def probabilities(**behaviour: Any) -> list[float]:
    return list(pass_probabilities("gsm8k", GSM8K_IDS, Behaviour(**behaviour)).values())


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_a_sound_engine_scores_as_public_runs_do() -> None:
    p = probabilities()
    assert mean(p) == pytest.approx(0.962, abs=1e-4)
    # Noise of one pass over the same questions, against that of coin tosses: 0.125 to 0.16 in public runs.
    assert 0.125 < mean([q * (1 - q) for q in p]) / (0.962 * 0.038) < 0.16


@pytest.mark.parametrize("change", ["drop", "drop_unstable"])
def test_a_point_less(change: str) -> None:
    assert mean(probabilities(**{change: 1.0})) == pytest.approx(0.952, abs=1e-4)


def test_a_drop_is_even_or_on_undecided_questions() -> None:
    before, even, unstable = probabilities(), probabilities(drop=1.0), probabilities(drop_unstable=1.0)
    sure = [n for n, p in enumerate(before) if p > 1 - 1e-9]
    assert len(sure) > 600
    assert all(before[n] - even[n] > 0.009 for n in sure)
    assert all(before[n] - unstable[n] < 1e-6 for n in sure)


def test_broken_questions_had_passed_and_never_do() -> None:
    before, after = probabilities(), probabilities(broken=13)
    changed = [n for n in range(1319) if before[n] != after[n]]
    assert len(changed) == 13
    assert all(before[n] >= 0.5 and after[n] == 0 for n in changed)
    named = pass_probabilities("gsm8k", GSM8K_IDS, Behaviour(broken_items=("gsm8k-test-7",)))
    assert [item for item in GSM8K_IDS if named[item] != before[GSM8K_IDS.index(item)]] == ["gsm8k-test-7"]


def test_other_numerics_keep_the_mean() -> None:
    before, after = probabilities(), probabilities(jitter=True)
    assert mean(after) == pytest.approx(mean(before), abs=1e-4)
    assert sum(abs(b - a) > 0.01 for b, a in zip(before, after, strict=True)) > 50


def test_draws_are_those_of_the_pass_probability() -> None:
    model = Model(Behaviour())
    question = Question("gsm8k", "gsm8k-test-0", "18", 0.3)
    replies = [model.answer(question, model.draw_of(seed, 1.0), False).text for seed in range(4000)]
    right = sum("#### 18" in (text or "") for text in replies)
    assert abs(right / 4000 - 0.3) < 4 * (0.3 * 0.7 / 4000) ** 0.5
    wrong = {text.rpartition("#### ")[2] for text in map(str, replies)} - {"18"}
    assert wrong and all(number.isdigit() for number in wrong)


def test_what_a_draw_depends_on() -> None:
    draw = Model(Behaviour()).draw_of
    assert draw(1, 1.0) == draw(1, 1.0) != draw(2, 1.0)
    assert draw(None, 1.0) != draw(None, 1.0)
    assert draw(1, 0.0) == draw(2, 0.0)
    assert Model(Behaviour(stream=1)).draw_of(1, 1.0) != draw(1, 1.0)
    ignoring = Model(Behaviour(ignore_seeds=True)).draw_of
    assert ignoring(1, 1.0) != ignoring(1, 1.0)
    assert Model(Behaviour(ignore_seeds=True)).draw_of(1, 1.0) not in (ignoring(1, 1.0), draw(1, 1.0))
    fixed = Model(Behaviour(one_seed=True)).draw_of
    assert fixed(1, 1.0) == fixed(2, 1.0)


def test_uniform_numbers() -> None:
    values = [uniform("x", n) for n in range(2000)]
    assert all(0 <= value < 1 for value in values)
    assert abs(mean(values) - 0.5) < 0.03


def test_questions_are_found_however_they_are_put() -> None:
    rows = (data.Row("gsm8k-test-0", "How many?", "#### 1"), data.Row("gsm8k-test-1", "How many? And then?", "#### 2"))
    find = Questions([(TASKS["gsm8k"], rows)], Behaviour()).find
    shots = "Solve.\n\nQuestion: How many?\nAnswer: 1\n#### 1\n\n"
    for prompt, item in (
        (gsm8k_prompt("How many?"), "gsm8k-test-0"),
        (shots + gsm8k_prompt("How many? And then?"), "gsm8k-test-1"),
        (shots + gsm8k_prompt("How many?") + " ", "gsm8k-test-0"),
        ("Please answer this: How many? And then?\n", "gsm8k-test-1"),
    ):
        found = find(prompt)
        assert found is not None and found.item == item, prompt
    assert find("What is 17 + 25?") is None


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [({"truncate": 1.5}, "--truncate is 1.5"), ({"error_500": -0.1}, "--error-500 is -0.1"), ({"drop": -1}, "--drop")],
)
def test_unusable_behaviour(behaviour: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        Behaviour(**behaviour)


def test_what_is_odd_is_told() -> None:
    assert Behaviour().told() == ""
    assert Behaviour(drop=1.0, ignore_seeds=True).told() == "drop 1.0, ignore-seeds True"


@pytest.mark.usefixtures("questions")
def test_which_questions_are_known() -> None:
    _, told = known_questions([], Behaviour(), verify=False)
    assert told == f"{GSM8K} questions of gsm8k, {AIME} questions of aime25"
    _, told = known_questions(["aime25"], Behaviour(), verify=False)
    assert told == f"{AIME} questions of aime25"
    with pytest.raises(BadInput, match="is not gsm8k-test as recorded"):
        known_questions([], Behaviour())
    with pytest.raises(BadInput, match="There is no question 'x'"):
        known_questions([], Behaviour(refuse=("x",)), verify=False)


@pytest.mark.usefixtures("questions")
def test_counts_and_unusable_requests() -> None:
    def post(body: Any) -> tuple[int, Any]:
        request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    asked = {
        "messages": [{"role": "user", "content": gsm8k_prompt("Ada has 3 pens and buys 1,200. How many has she?")}]
    }
    with served(Behaviour()) as (url, _):
        assert post(asked)[0] == post(asked)[0] == post({"messages": [{"role": "user", "content": "Hi"}]})[0] == 200
        parts = [{"type": "text", "text": asked["messages"][0]["content"]}]
        assert post({"messages": [{"role": "user", "content": parts}]})[0] == 200
        assert post({"messages": []})[0] == post({})[0] == 400
        assert post({**asked, "model": "other"}) == (
            404,
            {"error": {"message": "The model `other` does not exist.", "type": "simulated", "code": 404}},
        )
        with urllib.request.urlopen(url.removesuffix("/v1") + COUNTS, timeout=10) as response:
            counts = json.load(response)
    assert counts == {"asked": 3, "distinct": 2, "answered": 3, "answered_twice": 1, "other": 1}


def test_every_trait_has_an_option() -> None:
    options = set(simulate_server.__annotations__)
    renamed = {
        "broken_items": "broken_item",
        "stall_s": "stall_seconds",
        "latency_s": "latency",
        "version": "engine_version",
    }
    assert {renamed.get(f.name, f.name) for f in fields(Behaviour)} <= options


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"drop": float("nan")}, "--drop is nan"),
        ({"latency_s": float("nan")}, "--latency is nan"),
        ({"stall_s": -1}, "--stall-seconds is -1"),
        ({"mean_tokens": -3}, "--mean-tokens is -3"),
        ({"down_after": -1}, "--down-after is -1"),
        ({"filtered": 1.5}, "--filtered is 1.5; give a share from 0 to 1"),
        ({"truncate": float("nan")}, "--truncate is nan"),
    ],
)
def test_numbers_that_no_server_can_follow(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        Behaviour(**values)
