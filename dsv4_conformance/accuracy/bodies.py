"""Bodies of requests: lm-eval's generation settings under OpenAI's names, the prompt, and the bytes that are sent."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from dsv4_conformance.accuracy.records import EndpointKind, json_line
from dsv4_conformance.errors import BadInput

NOT_YOURS = {
    "model": "say which model with --model",
    "seed": "each repeat has a seed of its own; say which is the first with --seed",
    "stream": "replies are never streamed, since a broken stream looks like a whole reply",
    "stream_options": "replies are never streamed",
    "messages": "the prompts are the task's",
    "prompt": "the prompts are the task's",
    "n": "ask for more replies with --repeats, each with a seed of its own",
    "do_sample": "say --temperature 0 for greedy replies",
    "max_completion_tokens": "say --max-tokens, so that the limit stands in the fingerprint once",
}
"""Fields of a request that no override may set, and what to do instead."""


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda v: _number(v) and v >= 0, "a number from 0 on"),
    "top_p": (lambda v: _number(v) and 0 < v <= 1, "a share above 0, 1 at most"),
    "min_p": (lambda v: _number(v) and 0 <= v <= 1, "a share from 0 to 1"),
    "top_k": (lambda v: _whole(v) and v >= -1, "a whole number from 1 on, or -1 for all"),
    "max_gen_toks": (lambda v: _whole(v) and v >= 1, "a whole number from 1 on"),
    "until": (lambda v: isinstance(v, list) and all(isinstance(w, str) and w for w in v), "a list of texts"),
}
"""What a setting may be. Servers take some of the rest as no limit at all."""


def overrides_of(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides under lm-eval's names, from OpenAI's or lm-eval's.

    Raises BadInput for what is not for the user to set, for a setting named twice, and for a value it cannot have.
    """
    found: dict[str, Any] = {}
    for name, value in generation.items():
        if name in NOT_YOURS:
            raise BadInput(f"--generation sets {name}, which is not sent from there: {NOT_YOURS[name]}.")
        theirs = {"max_tokens": "max_gen_toks", "stop": "until"}.get(name, name)
        if theirs in found:
            raise BadInput(f"--generation sets {name} under two names; keep one.")
        found[theirs] = [value] if theirs == "until" and isinstance(value, str) else value
    for name, (holds, wanted) in RANGES.items():
        value = found.get(name)
        if value is not None and not holds(value):
            option = {"max_gen_toks": "max-tokens", "until": "generation stop"}.get(name, name.replace("_", "-"))
            raise BadInput(f"--{option} is {value}; give {wanted}.")
    try:
        json.dumps(found, allow_nan=False)
    except ValueError:
        raise BadInput("--generation holds NaN or Infinity, which JSON has no word for; give numbers.") from None
    return found


def settings_of(generation: dict[str, Any]) -> dict[str, Any]:
    """Fields of a request's body from lm-eval's ``generation_kwargs``, under OpenAI's names where those differ."""
    settings = dict(generation)
    settings.pop("do_sample", None)
    for theirs, ours in (("max_gen_toks", "max_tokens"), ("until", "stop")):
        if theirs in settings:
            settings[ours] = settings.pop(theirs)
    if not settings.get("stop"):
        settings.pop("stop", None)
    return {name: value for name, value in settings.items() if value is not None}


def request_body(kind: EndpointKind, model: str, prompt: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """The body of one request. ``prompt`` is what lm-eval rendered: for chat, the messages as JSON."""
    asked = {"messages": json.loads(prompt)} if kind == "chat" else {"prompt": prompt}
    return {**settings, **asked, "model": model, "seed": seed, "stream": False}


def body_bytes(body: Mapping[str, Any]) -> bytes:
    """The body of a request as sent: the same bytes for the same request in every process."""
    return json_line(dict(sorted(body.items()))).encode()
