"""What a server does before it is asked thousands of questions: its model, its seeds, its thinking, its template.

Five small requests. They cost a second and save the hours of a run that could not be used.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from dsv4_conformance.accuracy.bodies import body_bytes, request_body
from dsv4_conformance.accuracy.client import Client, Endpoint
from dsv4_conformance.accuracy.replies import Reply, clean
from dsv4_conformance.errors import BadInput

NUMBERS = "Write twelve random numbers between 1 and 1000, separated by commas, and nothing else."
TOLD_OF_A_MODEL = ("owned_by", "root", "max_model_len")
"""Fields of a model's entry in the server's list that say something of the build; others change at every request."""
DEADLINE_S = 120.0
"""For one request of a probe: a server that needs longer for a sum does not answer thousands of questions."""
SUM = "What is 17 + 25? Give only the number."


class NotAsAsked(BadInput):
    """The server does not do what the run asks of it; whatever it answered would be no measurement of that."""


@dataclass(frozen=True)
class Probe:
    """What was found.

    ``model``: the name to ask for. ``served``: the name in the replies. ``seeds``: "honoured", "no effect" (every reply
    is another) or "all the same" (no seed changes anything, so repeats are copies). ``thinking``: "on" or "off", as
    seen in a reply. ``template``: prompt tokens of two fixed messages, which change with the chat template. ``says``:
    what the server tells of itself, such as its version and the weights it loaded; empty where it tells nothing.
    """

    model: str
    served: str
    seeds: str
    thinking: str
    template: str
    says: dict[str, str] = field(default_factory=dict)

    def observed(self) -> dict[str, str]:
        """What goes into a run's header without having to match."""
        return {"seeds": self.seeds, "thinking": self.thinking}

    def server(self) -> dict[str, str]:
        """What goes into a run's fingerprint."""
        return {"model": self.served, "template": self.template}


def probe(endpoint: Endpoint, model: str | None, settings: dict[str, Any], seed: int) -> Probe:
    """Probe the server with the run's own ``settings``. ``model`` None takes the one it serves.

    Raises BadInput if it is not there, does not serve the model or refuses the settings, and NotAsAsked if it thinks
    where that is switched off or does not where it is switched on.
    """
    short = replace(endpoint, deadline_s=min(endpoint.deadline_s, DEADLINE_S))
    return asyncio.run(_probe(short, model, settings, seed))


def says_now(endpoint: Endpoint, before: Probe) -> dict[str, str] | None:
    """What the server says of itself now, to be held against what it said ``before``; None where it is gone."""
    return asyncio.run(_says_now(endpoint, before))


async def _says_now(endpoint: Endpoint, before: Probe) -> dict[str, str] | None:
    try:
        async with Client(endpoint) as client:
            return (await identity(client, before.model))[1]
    except BadInput:
        return None


async def identity(client: Client, wanted: str | None) -> tuple[str, dict[str, str]]:
    """The model to ask for, and what the server says of itself without being asked a question.

    Raises BadInput if it is not there or does not serve the model.
    """
    name, says = await _model(client, wanted)
    return name, dict(sorted((says | await _version(client)).items()))


async def _probe(endpoint: Endpoint, model: str | None, settings: dict[str, Any], seed: int) -> Probe:
    async with Client(endpoint) as client:
        name, says = await identity(client, model)

        async def ask(text: str, seed: int, **other: Any) -> Reply:
            prompt = json.dumps([{"role": "user", "content": text}]) if endpoint.kind == "chat" else text
            body = request_body(endpoint.kind, name, prompt, {**settings, **other}, seed)
            return await client.ask(body_bytes(body))

        short = {"max_tokens": 64, "temperature": 1.0, "top_p": 1.0}
        thought = await ask(SUM, seed)
        if thought.error:
            raise BadInput(f"{endpoint.path} does not answer the run's settings: {thought.error}.")
        if thought.odd:
            raise BadInput(f"{endpoint.path} answers in a form that cannot be used: {thought.told}; mend the server.")
        drawn = await asyncio.gather(*(ask(NUMBERS, seed + n, **short) for n in (0, 0, 1, 2)))
    for reply in drawn:
        if reply.error:
            raise BadInput(f"{endpoint.path} does not answer a small request: {reply.error}.")
    systems = {reply.system for reply in (thought, *drawn)}
    if len(systems) == 1 and "" not in systems:
        says["system_fingerprint"] = systems.pop()
    return Probe(
        model=name,
        served=thought.served or name,
        seeds=_seeds([reply.reasoning + reply.text for reply in drawn]),
        thinking=_thinking(thought, settings),
        template=f"{_tokens(thought)}, {_tokens(drawn[0])} prompt tokens",
        says=dict(sorted(says.items())),
    )


async def _model(client: Client, wanted: str | None) -> tuple[str, dict[str, str]]:
    """The model to ask for, and what its entry in the server's list says."""
    url, waited = f"{client.endpoint.root}/models", min(30.0, client.endpoint.deadline_s)
    try:
        status, content = await client.get(url)
    except (OSError, TimeoutError) as error:
        raise BadInput(
            f"No server answers at {url} ({clean(str(error)) or f'no reply within {waited:g} s'}); start it, or "
            "correct --endpoint."
        ) from None
    if status in (401, 403):
        raise BadInput(f"{url} wants a key (HTTP {status}); set OPENAI_API_KEY.")
    listed = content.get("data") if isinstance(content, dict) else None
    rows = listed if isinstance(listed, list) else []
    entries = {clean(str(row["id"])): row for row in rows if isinstance(row, dict) and "id" in row}
    names = list(entries)
    if wanted is None:
        if len(names) == 1:
            return names[0], _told(entries[names[0]], TOLD_OF_A_MODEL)
        raise BadInput(f"{url} lists {', '.join(names) or 'no model'}; say which with --model.")
    if names and wanted not in names:
        raise BadInput(f"The server has no model {wanted!r} but {', '.join(names)}; correct --model.")
    return wanted, _told(entries.get(wanted), TOLD_OF_A_MODEL)


async def _version(client: Client) -> dict[str, str]:
    """The engine's version as vLLM and TensorRT-LLM (/version) or SGLang (/get_server_info) tell it; else nothing."""
    base = client.endpoint.root.rpartition("/")[0]
    for path in ("version", "get_server_info"):
        with contextlib.suppress(OSError, TimeoutError):
            status, content = await client.get(f"{base}/{path}", timeout_s=5.0)
            if status == 200 and (told := _told(content, ("version", "model_path"))):
                return told
    return {}


def _told(value: Any, names: Iterable[str]) -> dict[str, str]:
    found = value if isinstance(value, dict) else {}
    return {name: clean(str(found[name]))[:200] for name in names if isinstance(found.get(name), str | int | float)}


def _seeds(replies: list[str]) -> str:
    """``replies``: two with one seed, then others with seeds of their own."""
    first, again, *others = replies
    if all(reply == first for reply in [again, *others]):
        return "all the same"
    # Thoughts open with the same words whatever the seed, and sums in another order make replies drift apart where the
    # seed is heeded: so what counts is whether one seed agrees for much longer than two do.
    apart = max(_agreeing(first, other) for other in others)
    together = _agreeing(first, again)
    return "honoured" if first == again or together > 2 * apart + 10 else "no effect"


def _agreeing(left: str, right: str) -> int:
    """Characters at the start that are the same."""
    pairs = zip(left, right, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def asked_thinking(settings: dict[str, Any]) -> bool | None:
    """Whether the settings ask for thinking; None where they leave it to the server."""
    switches = settings.get("chat_template_kwargs")
    wanted = switches.get("thinking", switches.get("enable_thinking")) if isinstance(switches, dict) else None
    return wanted if isinstance(wanted, bool) else None


def _thinking(reply: Reply, settings: dict[str, Any]) -> str:
    thinks = bool(reply.reasoning.strip() or reply.reasoning_tokens)
    wanted = asked_thinking(settings)
    if wanted and not thinks:
        raise NotAsAsked(
            "Thinking is asked for and the server's reply has no reasoning; switch thinking on in the server, and its "
            "reasoning parser, or run with --no-thinking."
        )
    if wanted is False and thinks:
        raise NotAsAsked(
            "Thinking is switched off and the server's reply has reasoning all the same; correct its template, "
            "or run with --thinking."
        )
    return "on" if thinks else "off"


def _tokens(reply: Reply) -> str:
    return "?" if reply.prompt_tokens is None else str(reply.prompt_tokens)
