import pytest

from dsv4_conformance.accuracy.bodies import body_bytes, request_body, settings_of
from dsv4_conformance.accuracy.data import Row
from dsv4_conformance.accuracy.harness import generation_of
from dsv4_conformance.accuracy.records import EndpointKind
from dsv4_conformance.accuracy.tasks import TASKS, gsm8k_worked, task, task_file
from dsv4_conformance.errors import BadInput


@pytest.mark.parametrize(
    ("text", "finish_reason", "status", "correct"),
    [
        ("#### 18", "stop", "ok", True),
        ("#### 18", None, "ok", True),
        ("#### 19", "stop", "ok", False),
        # Cut off is wrong even where the right number happens to stand in it.
        ("#### 18", "length", "truncated", False),
        ("", "length", "truncated", False),
        ("", "stop", "empty", False),
        (" \n", "stop", "empty", False),
        ("I cannot tell.", "stop", "no_answer", False),
    ],
)
def test_how_a_reply_ended(text: str, finish_reason: str | None, status: str, correct: bool) -> None:
    scored = TASKS["gsm8k"].score(text, "18", finish_reason=finish_reason)
    assert (scored.status, scored.correct) == (status, correct)
    assert (scored.answer is None) == (scored.fallback == -1) == (status != "ok")


def test_targets() -> None:
    worked = "He has 3*400=<<3*400=1200>>1200.\n#### 1,200"
    assert TASKS["gsm8k"].target(Row("x", "?", worked)) == "1200"
    assert TASKS["aime25"].target(Row("x", "?", "070")) == "70"
    with pytest.raises(BadInput, match="answer of x has no number"):
        TASKS["aime25"].target(Row("x", "?", "none"))


def test_worked_examples_show_no_calculator_marks() -> None:
    assert gsm8k_worked("3*4=<<3*4=12>>12 and <<1+1=2>>2\n#### 12") == "3*4=12 and 2\n#### 12"


@pytest.mark.parametrize("name", TASKS)
def test_no_stop_string_in_chat(name: str) -> None:
    body = settings_of(generation_of(task_file(task(name), "chat"), {}))
    assert "stop" not in body
    assert body["max_tokens"] >= 16_000


def test_the_only_stop_string_is_the_separator_of_the_examples() -> None:
    body = settings_of(generation_of("dsv4_gsm8k_completions", {}))
    assert body["stop"] == ["\n\nQuestion:"]
    assert "chat_template_kwargs" not in body


def test_thinking_is_asked_for_where_the_task_needs_it() -> None:
    switches = {name: generation_of(f"dsv4_{name}", {})["chat_template_kwargs"]["thinking"] for name in TASKS}
    assert switches == {"gsm8k": False, "aime25": True}


def test_overrides_of_generation_settings() -> None:
    changed = generation_of(
        "dsv4_gsm8k", {"temperature": 0.0, "chat_template_kwargs": {"effort": 1}, "top_p": None, "top_k": 5}
    )
    assert changed["temperature"] == 0.0
    assert changed["chat_template_kwargs"] == {"thinking": False, "effort": 1}
    assert "top_p" not in changed
    assert changed["top_k"] == 5


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [("mmlu", "chat", "no task 'mmlu'; use gsm8k or aime25"), ("aime25", "completions", "through chat endpoints only")],
)
def test_what_cannot_be_asked(name: str, kind: EndpointKind, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        task_file(task(name), kind)


def test_bodies() -> None:
    settings = settings_of({"until": [], "do_sample": True, "max_gen_toks": 9, "temperature": 1.0, "x": None})
    assert settings == {"max_tokens": 9, "temperature": 1.0}
    chat = request_body("chat", "m", '[{"role": "user", "content": "é"}]', settings, 5)
    assert chat["messages"] == [{"role": "user", "content": "é"}]
    assert (chat["seed"], chat["model"], chat["stream"]) == (5, "m", False)
    assert request_body("completions", "m", "é", settings, 5)["prompt"] == "é"
    assert body_bytes({"b": 1, "a": "é"}) == body_bytes({"a": "é", "b": 1}) == '{"a":"é","b":1}'.encode()
