"""Bodies of requests: lm-eval's generation settings under OpenAI's names, the prompt, and the bytes that are sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dsv4_conformance.accuracy.records import EndpointKind, json_line


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
