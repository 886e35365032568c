"""What a user may set of a request: honoured, or refused with a sentence, never dropped."""

from typing import Any

import pytest

from dsv4_conformance.accuracy.bodies import NOT_YOURS, overrides_of, request_body, settings_of
from dsv4_conformance.accuracy.harness import generation_of
from dsv4_conformance.errors import BadInput


def sent(generation: dict[str, Any]) -> dict[str, Any]:
    """The body of a question of GSM8K under these overrides."""
    settings = settings_of(generation_of("dsv4_gsm8k", overrides_of(generation)))
    return request_body("chat", "m", "[]", settings, 1000)


@pytest.mark.parametrize(
    ("generation", "field", "value"),
    [
        ({"stop": ["\n\n"]}, "stop", ["\n\n"]),
        ({"stop": "END"}, "stop", ["END"]),
        ({"until": ["x"]}, "stop", ["x"]),
        ({"max_tokens": 7}, "max_tokens", 7),
        ({"max_gen_toks": 7}, "max_tokens", 7),
        ({"top_k": -1}, "top_k", -1),
        ({"min_p": 0.1}, "min_p", 0.1),
        ({"repetition_penalty": 1.1}, "repetition_penalty", 1.1),
        ({"chat_template_kwargs": {"style": "a"}}, "chat_template_kwargs", {"thinking": False, "style": "a"}),
    ],
)
def test_what_is_set_is_sent(generation: dict[str, Any], field: str, value: object) -> None:
    assert sent(generation)[field] == value


def test_null_removes_a_setting() -> None:
    assert "top_p" in sent({}) and "top_p" not in sent({"top_p": None})


@pytest.mark.parametrize("name", sorted(NOT_YOURS))
def test_what_is_not_for_the_user_to_set_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=f"--generation sets {name}, which is not sent from there: {NOT_YOURS[name]}"):
        overrides_of({name: 1})
    assert {"seed", "stream", "model", "n", "messages", "prompt"} <= set(NOT_YOURS)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("generation", "sentence"),
    [
        ({"temperature": -1}, "--temperature is -1; give a number from 0 on"),
        ({"temperature": NAN}, "--temperature is nan"),
        ({"temperature": INF}, "--temperature is inf"),
        ({"temperature": "hot"}, "--temperature is hot"),
        ({"temperature": True}, "--temperature is True"),
        ({"top_p": 7}, "--top-p is 7; give a share above 0, 1 at most"),
        ({"top_p": 0}, "--top-p is 0"),
        ({"min_p": 2}, "--min-p is 2"),
        ({"top_k": 1.5}, "--top-k is 1.5"),
        ({"max_tokens": 0}, "--max-tokens is 0; give a whole number from 1 on"),
        ({"max_tokens": "many"}, "--max-tokens is many"),
        ({"stop": 3}, "--generation stop is 3; give a list of texts"),
        ({"stop": [""]}, "--generation stop is"),
        ({"max_tokens": 3, "max_gen_toks": 4}, "--generation sets max_gen_toks under two names"),
        ({"frequency_penalty": NAN}, "--generation holds NaN or Infinity"),
    ],
)
def test_values_that_no_server_should_be_sent(generation: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput) as error:
        overrides_of(generation)
    assert sentence in str(error.value)


def test_overrides_may_be_read_twice() -> None:
    once = overrides_of({"stop": "x", "max_tokens": 3, "temperature": 0})
    assert overrides_of(once) == once == {"until": ["x"], "max_gen_toks": 3, "temperature": 0}
