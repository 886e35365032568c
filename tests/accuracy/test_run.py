import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.accuracy import data
from dsv4_conformance.accuracy.client import Endpoint
from dsv4_conformance.accuracy.golden_record import golden_of
from dsv4_conformance.accuracy.harness import lm_eval_without_torch
from dsv4_conformance.accuracy.probe import NotAsAsked
from dsv4_conformance.accuracy.pump import ServerGone
from dsv4_conformance.accuracy.reading import Edited, load
from dsv4_conformance.accuracy.records import fingerprint_hash
from dsv4_conformance.accuracy.run import Finished, Settings, run_task
from dsv4_conformance.accuracy.simulator.behaviour import Behaviour
from dsv4_conformance.accuracy.soundness import problems
from dsv4_conformance.errors import BadInput
from tests.accuracy.served import AIME, GSM8K, endpoint, served

pytestmark = pytest.mark.usefixtures("questions")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def run(asked: Endpoint, results: Path, task: str = "gsm8k", **other: Any) -> Finished:
    settings = Settings(task=task, endpoint=asked, results=results, verify=False, quiet=True, seed=1000)
    return run_task(replace(settings, **other))


def test_every_question_is_asked_once_and_recorded(results: Path) -> None:
    with served(Behaviour()) as (url, server):
        finished = run(endpoint(url), results, notes={"gpu": "none"})
        assert sum(server.asked.values()) == len(server.asked) == GSM8K
    answers = {answer.item: answer for answer in finished.run.answers}
    assert list(finished.run.header.items) == [f"gsm8k-test-{n}" for n in range(GSM8K)]
    assert set(answers) == set(finished.run.header.items)
    first = load(finished.path).answers[0]
    number = str(int(first.item.rpartition("-")[2]) + 1200)
    assert first.expected == number
    assert first.correct == (first.answer == number)
    assert (first.status, first.seed, first.finish_reason, first.served) == ("ok", 1000, "stop", "simulated")
    assert f"#### {first.answer}" in first.text
    assert first.prompt_tokens and first.completion_tokens
    assert finished.run.header.notes == {"gpu": "none"}
    assert finished.run.header.observed == {
        "seeds": "honoured",
        "thinking": "off",
        "data": "The questions are not verified.",
    }


def test_the_fingerprint_has_what_must_match_and_not_what_is_under_test(results: Path) -> None:
    with served(Behaviour()) as (url, _):
        header = run(endpoint(url), results, "aime25", weights="r1 fp4").run.header
        again = run(endpoint(url, concurrency=3, tries=2), results / "2", "aime25", weights="r1 fp4").run.header
    assert header.fingerprint == again.fingerprint
    assert set(header.fingerprint) == {
        *("task", "task_version", "dataset", "items", "fewshot", "prompts", "parser", "seeds", "weights", "model"),
        *("template", "temperature", "top_p", "max_tokens", "chat_template_kwargs"),
    }
    assert header.fingerprint["weights"] == "r1 fp4"
    assert header.fingerprint["items"] == str(AIME)


@pytest.mark.parametrize(
    ("behaviour", "settings", "field"),
    [
        (Behaviour(), {"generation": {"temperature": 0.7}}, "temperature"),
        (Behaviour(), {"generation": {"reasoning_effort": "max"}}, "reasoning_effort"),
        (Behaviour(), {"limit": 5}, "prompts"),
        (Behaviour(), {"weights": "other"}, "weights"),
        (Behaviour(model="other"), {}, "model"),
        (Behaviour(template="v2"), {}, "template"),
    ],
)
def test_a_run_that_is_set_up_otherwise_is_not_mixed_in(
    results: Path, behaviour: Behaviour, settings: dict[str, Any], field: str
) -> None:
    with served(Behaviour()) as (url, _):
        run(endpoint(url), results)
    with served(behaviour) as (url, server), pytest.raises(BadInput, match=f"fingerprint.{field} was"):
        run(endpoint(url), results, "gsm8k", **settings)
    assert not server.asked


def test_questions_that_changed_are_not_mixed_in(results: Path, questions: Path) -> None:
    with served(Behaviour()) as (url, _):
        run(endpoint(url), results)
        file = questions / "gsm8k_train.jsonl"
        file.write_text(file.read_text().replace("pens", "pencils"))
        with pytest.raises(BadInput, match=r"fingerprint.fewshot was .* fingerprint.prompts was"):
            run(endpoint(url), results)


def test_repeats_have_seeds_of_their_own_and_are_added_to_what_is_there(results: Path) -> None:
    with served(Behaviour()) as (url, server):
        run(endpoint(url), results)
        finished = run(endpoint(url), results, repeats=3)
        assert set(server.asked.values()) == {1}
    assert len(finished.run.answers) == 3 * GSM8K
    assert finished.run.missing(3) == []
    assert {(answer.repeat, answer.seed) for answer in finished.run.answers} == {(0, 1000), (1, 1001), (2, 1002)}
    texts = Counter(answer.text for answer in finished.run.answers)
    assert len(texts) == 3 * GSM8K, "every repeat is a draw of its own"


def test_a_run_again_asks_nothing(results: Path) -> None:
    with served(Behaviour(empty=0.2, truncate=0.2)) as (url, server):
        first = run(endpoint(url), results, "aime25", repeats=4)
        asked = sum(server.asked.values())
        assert run(endpoint(url), results, "aime25", repeats=4).run == first.run
        assert sum(server.asked.values()) == asked == 4 * AIME


def test_kinds_of_replies_are_counted_apart(results: Path) -> None:
    shares = {name: 0.15 for name in ("truncate", "empty", "no_answer", "filtered", "unfinished")}
    behaviour = Behaviour(refuse=("gsm8k-test-3",), **shares)  # type: ignore[arg-type]
    with served(behaviour) as (url, _):
        finished = run(endpoint(url), results, repeats=4)
    statuses = Counter(answer.status for answer in finished.run.answers)
    assert set(statuses) == {"ok", "truncated", "empty", "no_answer", "filtered", "malformed", "error"}
    odd = {answer.error for answer in finished.run.answers if answer.status in ("filtered", "malformed")}
    assert odd == {
        "a content filter cut in (finish_reason content_filter)",
        "the reply does not say that it came to its end (finish_reason None)",
    }
    assert statuses == finished.score.statuses
    assert statuses["error"] == 4
    assert all(answer.status == "ok" for answer in finished.run.answers if answer.correct)


def test_contents_in_parts_are_scored_as_texts(results: Path) -> None:
    found = []
    for parts in (False, True):
        with served(Behaviour(parts=parts)) as (url, _):
            found.append({a.key: (a.status, a.text) for a in run(endpoint(url), results / str(parts)).run.answers})
    assert found[0] == found[1]


def test_a_refused_question_is_one_error_and_can_be_asked_again(results: Path) -> None:
    with served(Behaviour(refuse=("gsm8k-test-3",))) as (url, _):
        finished = run(endpoint(url), results)
    (error,) = [answer for answer in finished.run.answers if answer.status == "error"]
    assert (error.item, error.correct, error.error) == (
        "gsm8k-test-3",
        False,
        "HTTP 400: This prompt cannot be served.",
    )
    with served(Behaviour()) as (url, server):
        assert run(endpoint(url), results, same_build=True).score.statuses["error"] == 1
        assert not server.asked
        assert run(endpoint(url), results, retry_errors=True, same_build=True).score.statuses["error"] == 0
        assert sum(server.asked.values()) == 1


def test_a_server_that_goes_down_ends_the_run_and_costs_no_answer(results: Path) -> None:
    with served(Behaviour(down_after=40)) as (url, server):
        with pytest.raises(ServerGone, match="HTTP 503"):
            run(endpoint(url, concurrency=16, tries=2), results, repeats=4)
        answered = dict(server.answered)
    kept = load(results / "gsm8k.jsonl").answers
    assert {answer.request for answer in kept} == set(answered)
    assert {answer.status for answer in kept} == {"ok"}
    assert load(results / "gsm8k.jsonl").missing(1) == [], "passes are asked one after the other"
    with served(Behaviour()) as (url, server):
        finished = run(endpoint(url), results, repeats=4, same_build=True)
        assert not set(server.asked) & set(answered), "what was answered is not asked again"
    with served(Behaviour()) as (url, _):
        whole = run(endpoint(url), results / "whole", repeats=4)
    assert sorted(answer.key for answer in finished.run.answers) == sorted(answer.key for answer in whole.run.answers)
    assert finished.score.correct == whole.score.correct


def test_passing_faults_change_nothing(results: Path) -> None:
    with served(Behaviour()) as (url, _):
        sound = run(endpoint(url), results)
    faults = Behaviour(error_500=0.2, malformed=0.1, error_body=0.1, hang_up=0.1)
    with served(faults) as (url, _):
        finished = run(endpoint(url, tries=50), results / "faults")
    kept = {answer.key: answer.answer for answer in finished.run.answers}
    assert kept == {answer.key: answer.answer for answer in sound.run.answers}
    assert max(answer.tries for answer in finished.run.answers) > 1


def test_errors_at_the_very_end_are_recorded(results: Path) -> None:
    last = f"gsm8k-test-{GSM8K - 1}"
    with served(Behaviour(refuse=(last,))) as (url, _):
        finished = run(endpoint(url, concurrency=1), results)
    assert [answer.item for answer in finished.run.answers if answer.status == "error"] == [last]


def test_the_worked_examples_are_the_first_five(results: Path) -> None:
    with lm_eval_without_torch():
        from dsv4_conformance.accuracy.lm_tasks import gsm8k_dataset

        shots = gsm8k_dataset(verify=False)["shots"]
    assert shots["id"] == [f"gsm8k-train-{n}" for n in range(5)]
    with served(Behaviour()) as (url, _):
        fingerprint = run(endpoint(url), results, limit=1).run.header.fingerprint
    rows = data.load("gsm8k-train", verify=False).rows[:5]
    assert fingerprint["fewshot"] == f"5 {data.canonical_sha256(rows)}"


@pytest.mark.parametrize(
    ("behaviour", "task", "reason"),
    [
        (Behaviour(ignore_thinking=True), "aime25", "Thinking is asked for"),
        (Behaviour(always_thinking=True), "gsm8k", "Thinking is switched off"),
    ],
)
def test_thinking_that_is_not_as_asked_ends_the_run_before_it_begins(
    results: Path, behaviour: Behaviour, task: str, reason: str
) -> None:
    with served(behaviour) as (url, server), pytest.raises(NotAsAsked, match=reason):
        run(endpoint(url), results, task)
    assert not server.asked
    assert not results.exists()


def test_completions(results: Path) -> None:
    with served(Behaviour()) as (url, server):
        finished = run(endpoint(url, kind="completions"), results)
        assert len(server.asked) == GSM8K
    assert finished.run.header.fingerprint["stop"] == '["\\n\\nQuestion:"]'
    assert finished.run.header.endpoint == "completions"


def test_thoughts_are_kept_and_not_scored(results: Path) -> None:
    with served(Behaviour()) as (url, _):
        finished = run(endpoint(url), results, "aime25")
    answers = load(finished.path).answers
    assert all(answer.reasoning.startswith("Let me think") for answer in answers)
    assert all((answer.reasoning_tokens or 0) > 1000 for answer in answers)


def test_an_altered_file_is_noticed(results: Path) -> None:
    with served(Behaviour()) as (url, _):
        finished = run(endpoint(url), results)
        lines = finished.path.read_text().splitlines()
        lines[2] = json.dumps(json.loads(lines[2]) | {"request": "0" * 64})
        finished.path.write_text("\n".join(lines) + "\n")
        with pytest.raises(Edited, match="line 3 was edited"):
            run(endpoint(url), results)


def test_every_run_has_seeds_of_its_own_and_keeps_them_when_it_goes_on(results: Path) -> None:
    with served(Behaviour()) as (url, server):
        first = run(endpoint(url), results / "1", seed=None).run
        other = run(endpoint(url), results / "2", seed=None).run
        assert len(server.asked) == 2 * GSM8K, "no two runs send a request twice, which a cache could answer"
        again = run(endpoint(url), results / "1", seed=None, repeats=2).run
        assert len(server.asked) == 3 * GSM8K and set(server.asked.values()) == {1}
    assert first.header.seed == again.header.seed != other.header.seed
    assert {a.seed for a in again.answers} == {first.header.seed, first.header.seed + 1}
    assert fingerprint_hash(first.header.fingerprint) == fingerprint_hash(other.header.fingerprint)


def test_a_server_that_is_exchanged_in_mid_run_is_found_at_its_end(results: Path) -> None:
    with served(Behaviour(upgrade_after=10)) as (url, _):
        made = run(endpoint(url), results, repeats=2).run
    (told,) = problems(made)
    assert (
        "the server's version was simulated 1 when asking began" in told and "was simulated 1.1 when it ended" in told
    )
    with pytest.raises(BadInput, match="a golden is of one model and build"):
        golden_of(made, 2, "g", {}, simulated=True)


def test_a_run_of_some_questions_is_no_golden(results: Path) -> None:
    with served(Behaviour()) as (url, _):
        some = run(endpoint(url), results, limit=5, repeats=2).run
    assert some.partial and list(problems(some)) == []
    with pytest.raises(BadInput, match="asked 5 of the 24 questions of gsm8k"):
        golden_of(some, 2, "g", {}, simulated=True)


def test_a_file_of_something_else_is_left_as_it_is(results: Path) -> None:
    results.mkdir()
    path = results / "gsm8k.jsonl"
    with served(Behaviour()) as (url, server):
        for content in ('{"my":"precious"}', '{"problem": "1 + 1"}\n{"problem": "torn', "\n"):
            path.write_text(content)
            with pytest.raises(BadInput, match=r"holds no accuracy run.*; name another|is not JSON; restore"):
                run(endpoint(url), results)
            assert path.read_text() == content and not server.asked


def test_unusable_settings(results: Path) -> None:
    for seed in (-5, 10**22):
        with pytest.raises(BadInput, match=f"--seed is {seed}; give a whole number"):
            run(Endpoint("http://h"), results, seed=seed)
    for name in ("repeats", "limit"):
        with pytest.raises(BadInput, match=f"--{name} is 0"):
            run(Endpoint("http://h"), results, "gsm8k", **{name: 0})
