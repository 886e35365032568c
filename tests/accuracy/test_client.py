import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.accuracy.client import Client, Endpoint, _retry_after
from dsv4_conformance.accuracy.records import json_line
from dsv4_conformance.accuracy.replies import Again, Reply, message, reply_from
from dsv4_conformance.accuracy.simulator.behaviour import Behaviour
from dsv4_conformance.accuracy.tasks import gsm8k_prompt
from dsv4_conformance.errors import BadInput
from tests.accuracy.served import endpoint, served


@pytest.mark.parametrize(
    "url",
    ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/chat/completions", "http://h:1/v1/completions/"],
)
def test_addresses_that_mean_the_same(url: str) -> None:
    assert Endpoint(url).path == "http://h:1/v1/chat/completions"
    assert Endpoint(url, "completions").path == "http://h:1/v1/completions"


def test_addresses_that_are_kept_or_refused() -> None:
    assert Endpoint("https://h/proxy/v2").root == "https://h/proxy/v2"
    assert Endpoint("https://me:secret@h:1/p/v1").address == "https://h:1/p/v1"
    assert Endpoint("http://vhost:1").root == "http://vhost:1/v1"
    with pytest.raises(BadInput, match="give an address like"):
        _ = Endpoint("h:8000").root
    for name, value in (("concurrency", 0), ("deadline_s", float("nan")), ("deadline_s", float("inf")), ("tries", -1)):
        with pytest.raises(BadInput, match=f"--{name.removesuffix('_s')} is {value}; give a number above 0"):
            Endpoint("http://h", **{name: value})  # type: ignore[arg-type]


def content(message: Any, **choice: Any) -> bytes:
    return json.dumps({"model": "m", "choices": [{"message": message, "finish_reason": "stop", **choice}]}).encode()


@pytest.mark.parametrize(
    ("message", "text", "reasoning"),
    [
        ({"content": "a", "reasoning_content": "b"}, "a", "b"),
        ({"content": "a", "reasoning": "b"}, "a", "b"),
        ({"content": None}, "", ""),
        ({}, "", ""),
        ({"content": None, "reasoning_content": "b"}, "", "b"),
        # Without a reasoning parser the answer stands after the thoughts, and must not be sought in them.
        ({"content": "b #### 1</think>a #### 2"}, "a #### 2", "b #### 1"),
        ({"content": "<think>b</think>a"}, "a", "b"),
        ({"content": "<think>b #### 1"}, "", "b #### 1"),
    ],
)
def test_text_and_reasoning(message: dict[str, Any], text: str, reasoning: str) -> None:
    reply = reply_from(content(message), "chat")
    assert (reply.text, reply.reasoning, reply.served, reply.error) == (text, reasoning, "m", "")


@pytest.mark.parametrize(
    ("content_of", "text", "reasoning"),
    [
        ([{"type": "text", "text": "so "}, {"type": "text", "text": "#### 1"}], "so #### 1", ""),
        ([{"type": "output_text", "text": "a"}, "b"], "ab", ""),
        (
            [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "a"}],
            "a",
            "hm",
        ),
        ([{"type": "reasoning", "text": "hm"}], "", "hm"),
        ([], "", ""),
    ],
)
def test_contents_in_parts_are_joined(content_of: list[Any], text: str, reasoning: str) -> None:
    reply = reply_from(content({"content": content_of}), "chat")
    assert (reply.text, reply.reasoning, reply.odd) == (text, reasoning, "")


@pytest.mark.parametrize(
    ("said", "choice", "odd", "told"),
    [
        ({"content": 42}, {}, "malformed", "the reply's content is no text but 42"),
        ({"content": {"a": 1}}, {}, "malformed", "no text but {"),
        ({"content": [{"type": "image_url"}]}, {}, "malformed", "a part of the reply's content is no text"),
        ({"content": [3]}, {}, "malformed", "a part of the reply's content is no text but 3"),
        ({"content": "a"}, {"finish_reason": None}, "malformed", "came to its end (finish_reason None)"),
        ({"content": "a"}, {"finish_reason": "tool_calls"}, "malformed", "finish_reason 'tool_calls'"),
        ({"content": "a"}, {"finish_reason": "content_filter"}, "filtered", "a content filter cut in"),
        ({"content": None}, {"finish_reason": "content_filter"}, "filtered", "a content filter cut in"),
        ({"content": 42}, {"finish_reason": "length"}, "", ""),
        ({"content": None}, {"finish_reason": "eos_token"}, "", ""),
    ],
)
def test_replies_that_are_no_answer_of_the_model_are_called_so(
    said: dict[str, Any], choice: dict[str, Any], odd: str, told: str
) -> None:
    reply = reply_from(content(said, **choice), "chat")
    assert reply.odd == odd and told in reply.told and bool(reply.told) == bool(odd)


def test_half_characters_can_be_written_down() -> None:
    reply = reply_from(content({"content": "a\ud800b"}), "chat")
    assert reply.text == "a?b"


def test_token_counts_are_the_servers_or_none() -> None:
    value = json.loads(content({"content": "a"}))
    assert reply_from(json.dumps(value).encode(), "chat").completion_tokens is None
    value["usage"] = {"prompt_tokens": 3, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 2}}
    reply = reply_from(json.dumps(value).encode(), "chat")
    assert (reply.prompt_tokens, reply.completion_tokens, reply.reasoning_tokens) == (3, 4, 2)
    value["usage"] = {"prompt_tokens": "3", "completion_tokens": True, "reasoning_tokens": 0}
    reply = reply_from(json.dumps(value).encode(), "chat")
    assert (reply.prompt_tokens, reply.completion_tokens, reply.reasoning_tokens) == (None, None, 0)


def test_completions_have_their_text_elsewhere() -> None:
    raw = b'{"choices": [{"text": "a", "finish_reason": "length"}]}'
    assert reply_from(raw, "completions") == Reply(text="a", finish_reason="length")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "no JSON object"),
        (b'{"choices": [{"mess', "no JSON object"),
        (b"[]", "no JSON object"),
        (b'{"error": {"message": "out of memory"}}', "no choices: out of memory"),
        (b'{"choices": []}', "no choices"),
        (b'{"choices": [{"message": null}]}', "has no message"),
        (b'{"choices": [{"message": {"content": ""}, "finish_reason": "abort"}]}', "broke off"),
    ],
)
def test_what_is_no_reply_is_asked_again_and_never_an_empty_answer(raw: bytes, reason: str) -> None:
    with pytest.raises(Again, match=reason):
        reply_from(raw, "chat")


def ask(asked: Endpoint, number: int = 0, **other: Any) -> Reply:
    prompt = gsm8k_prompt(f"Ada has {number} pens and buys 1,200. How many has she?")
    body = json.dumps({"messages": [{"role": "user", "content": prompt}], "seed": 1, **other}).encode()

    async def run() -> Reply:
        async with Client(asked) as client:
            return await client.ask(body)

    return asyncio.run(run())


@pytest.mark.parametrize("fault", ["error_500", "malformed", "error_body", "hang_up"])
@pytest.mark.usefixtures("questions")
def test_passing_faults_are_asked_again(fault: str) -> None:
    with served(Behaviour(**{fault: 0.5})) as (url, server):  # type: ignore[arg-type]
        replies = [ask(endpoint(url, tries=20), number) for number in range(8)]
        assert not [reply.error for reply in replies if reply.error]
        assert max(reply.tries for reply in replies) > 1
        assert sum(server.asked.values()) == sum(reply.tries for reply in replies)


@pytest.mark.usefixtures("questions")
def test_a_fault_that_stays_is_an_error_after_the_last_try() -> None:
    with served(Behaviour(error_500=1.0)) as (url, _):
        reply = ask(endpoint(url, tries=3))
    assert (reply.error, reply.tries, reply.refused) == ("HTTP 500: The engine failed. (3 tries)", 3, False)


@pytest.mark.usefixtures("questions")
def test_a_refusal_is_not_asked_again() -> None:
    with served(Behaviour(refuse=("gsm8k-test-0",))) as (url, _):
        reply = ask(endpoint(url))
    assert (reply.error, reply.tries, reply.refused) == ("HTTP 400: This prompt cannot be served.", 1, True)


@pytest.mark.usefixtures("questions")
def test_the_deadline_is_for_all_tries_together() -> None:
    with served(Behaviour(stall=1.0, stall_s=30.0)) as (url, _):
        started = time.monotonic()
        reply = ask(endpoint(url, deadline_s=0.3))
        assert time.monotonic() - started < 5
    assert "no reply within the deadline of 0.3 s" in reply.error
    with served(Behaviour(error_500=1.0)) as (url, _):
        reply = ask(endpoint(url, deadline_s=0.3, tries=1000, backoff_s=0.05))
    assert "deadline" in reply.error and "HTTP 500" in reply.error
    assert reply.tries < 20


def test_nobody_there() -> None:
    reply = ask(endpoint("http://127.0.0.1:9", tries=2))
    assert reply.error.startswith("connection failed") and reply.tries == 2


@pytest.mark.usefixtures("questions")
def test_null_content_is_an_empty_reply_and_not_asked_again() -> None:
    with served(Behaviour(empty=1.0)) as (url, server):
        reply = ask(endpoint(url))
        assert (reply.text, reply.error, reply.finish_reason, reply.tries) == ("", "", "stop", 1)
        assert sum(server.asked.values()) == 1


def test_how_long_the_server_asks_to_wait() -> None:
    assert _retry_after({"Retry-After": "2.5"}) == 2.5
    assert _retry_after({}) is None
    assert _retry_after({"Retry-After": "soon"}) is None
    assert _retry_after({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    assert Client(Endpoint("http://h"))._wait(1, 2.5) == 2.5
    assert Client(Endpoint("http://h"))._wait(1, 1e9) == 30
    assert 4 <= Client(Endpoint("http://h"))._wait(5, None) <= 8


@pytest.mark.usefixtures("questions")
def test_the_key_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")

    async def run() -> Any:
        async with Client(Endpoint("http://127.0.0.1:9")) as client:
            assert client._session is not None
            return client._session.headers["Authorization"]

    assert asyncio.run(run()) == "Bearer secret"


def test_one_bad_reply_ends_no_run() -> None:
    """Each of these once ended a run with a traceback, or made its file unreadable."""
    for reason, told in (({"type": "stop"}, '{"type": "stop"}'), (["stop"], '["stop"]'), (7, "7")):
        reply = reply_from(content({"content": "#### 1"}, finish_reason=reason), "chat")
        assert (reply.odd, reply.finish_reason) == ("malformed", None) and told in reply.told
    for raw in (
        content({"content": "a"}).replace(b'"stop"', b'"\\ud800"'),
        content({"content": "a\ud800"}).replace(b'"m"', b'"\\udc00"'),
        b'{"choices": [{"message": {"content": [{"\\ud800": 1}]}, "finish_reason": "stop"}]}',
    ):
        reply = reply_from(raw, "chat")
        json_line([reply.text, reply.served, reply.finish_reason, reply.told]).encode()
    message(b'{"error": {"message": "bad \\ud83d text"}}').encode()
    with pytest.raises(Again, match="no JSON object"):
        reply_from(b"[" * 200_000, "chat")
    with pytest.raises(Again, match="broke off the reply"):
        reply_from(content({"content": "3 + "}, finish_reason="insufficient_system_resource"), "chat")


@pytest.mark.parametrize("count", [-1, 10**30, True, "7", 1.5])
def test_a_count_that_cannot_be_is_not_given(count: Any) -> None:
    raw = json.loads(content({"content": "a"})) | {"usage": {"completion_tokens": count, "prompt_tokens": count}}
    reply = reply_from(json.dumps(raw).encode(), "chat")
    assert (reply.completion_tokens, reply.prompt_tokens) == (None, None)


def test_dates_that_no_clock_shows() -> None:
    assert _retry_after({"Retry-After": "Mon, 01 Jan 0001 00:00:00 -0000"}) in (None, 0.0)
