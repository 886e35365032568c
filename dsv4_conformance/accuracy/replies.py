"""What is in a server's reply. Nothing is guessed: what is not there is None or an error, never an empty answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from dsv4_conformance.accuracy.records import EndpointKind
from dsv4_conformance.accuracy.tasks import CUT

BROKEN_OFF = frozenset({"abort", "error", "cancelled", "timeout", "insufficient_system_resource"})
"""Finish reasons of engines that gave a request up; nothing the model said."""
MOST_TOKENS = 10**9
"""No reply is longer."""
ENDED = frozenset({"stop", "eos", "eos_token", "stop_sequence", "end_turn", *CUT})
"""Finish reasons of a reply that came to an end or to the token limit."""


@dataclass(frozen=True)
class Reply:
    """What came of a request. ``error`` is empty, or one sentence, and then nothing else of the reply counts.

    ``refused`` marks an error that is the request's own fault and would come again. ``odd``: how a reply that arrived
    is no answer of the model all the same, and ``told`` why; asking again would bring it again.
    """

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    served: str = ""
    system: str = ""
    odd: Literal["", "filtered", "malformed"] = ""
    told: str = ""
    error: str = ""
    refused: bool = False
    tries: int = 1
    seconds: float = 0.0


class Again(Exception):
    """This try failed and another may not; ``wait_s``: how long the server asked to wait."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


def reply_from(content: bytes, kind: EndpointKind) -> Reply:
    """The reply in the body of an HTTP 200. Raises Again where it holds none."""
    value = json_or_none(content)
    if not isinstance(value, dict):
        raise Again("the reply is no JSON object")
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Again(f"the reply has no choices: {message(content)}")
    choice = choices[0]
    said = choice.get("message") if kind == "chat" else choice
    if not isinstance(said, dict):
        raise Again("the reply's choice has no message")
    finish_reason, strange = _word(choice.get("finish_reason"))
    if finish_reason in BROKEN_OFF:
        raise Again(f"the server broke off the reply (finish_reason {finish_reason})")
    text, parts, problem = _text(said.get("content") if kind == "chat" else said.get("text"))
    reasoning = said.get("reasoning_content") or said.get("reasoning") or parts
    text, reasoning = _apart(text, reasoning if isinstance(reasoning, str) else "")
    odd: Literal["", "filtered", "malformed"] = ""
    if finish_reason == "content_filter":
        odd, problem = "filtered", "a content filter cut in (finish_reason content_filter)"
    elif problem and finish_reason not in CUT:
        odd = "malformed"
    elif finish_reason not in ENDED:
        said_so = strange or repr(finish_reason)
        odd, problem = "malformed", f"the reply does not say that it came to its end (finish_reason {said_so})"
    usage = _object(value.get("usage"))
    details = _object(usage.get("completion_tokens_details"))
    reasoning_tokens = _count(details.get("reasoning_tokens"))
    return Reply(
        text=clean(text),
        reasoning=clean(reasoning),
        finish_reason=finish_reason,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        reasoning_tokens=_count(usage.get("reasoning_tokens")) if reasoning_tokens is None else reasoning_tokens,
        served=clean(str(value.get("model") or "")),
        system=clean(str(value.get("system_fingerprint") or "")),
        odd=odd,
        told=clean(problem) if odd else "",
    )


def _word(value: Any) -> tuple[str | None, str]:
    """A finish reason that is a text or nothing, and what stands in its place where it is neither."""
    if value is None or isinstance(value, str):
        return None if value is None else clean(value), ""
    return None, json.dumps(value)[:60]


def _text(content: Any) -> tuple[str, str, str]:
    """(text, reasoning, what is wrong) of a message's content: a text, nothing, or a list of parts."""
    if content is None or isinstance(content, str):
        return content or "", "", ""
    if not isinstance(content, list):
        return "", "", f"the reply's content is no text but {json.dumps(content)[:60]}"
    texts, thoughts, problem = [], [], ""
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind in ("text", "output_text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind in ("thinking", "reasoning"):
            thoughts.append(_text(part.get(kind) or part.get("text"))[0])
        else:
            problem = problem or f"a part of the reply's content is no text but {json.dumps(part)[:60]}"
    return "".join(texts), "".join(thoughts), problem


def clean(text: str) -> str:
    """Half characters, which JSON can spell and UTF-8 cannot, as question marks."""
    return text.encode("utf-8", "replace").decode()


def _apart(text: str, reasoning: str) -> tuple[str, str]:
    """A server without a reasoning parser sends ``reasoning</think>answer``; the answer must not be sought in there."""
    before, mark, after = text.rpartition("</think>")
    if mark and not reasoning:
        return after, before.removeprefix("<think>")
    if text.startswith("<think>") and not reasoning:
        return "", text.removeprefix("<think>")  # cut off while thinking
    return text, reasoning


def json_or_none(content: bytes) -> Any:
    """The JSON value in ``content``; None if it is not JSON, or nested so deeply that no reply is."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    """A count that can be one; what cannot, such as -1, is not given."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= MOST_TOKENS else None


def message(content: bytes) -> str:
    """The server's own words, on one line."""
    value = json_or_none(content)
    found = value.get("error", value.get("message", value)) if isinstance(value, dict) else None
    found = found.get("message", found) if isinstance(found, dict) else found
    text = str(found) if found is not None else content[:400].decode("utf-8", "replace")
    return clean(" ".join(text.split())[:200]) or "no message"
