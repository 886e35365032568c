"""The simulated server's HTTP side, with its faults."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from dsv4_conformance.accuracy.simulator.answering import Model, Question, Questions, Said
from dsv4_conformance.accuracy.simulator.behaviour import Behaviour, uniform
from dsv4_conformance.errors import HarnessError

COUNTS = "/simulated/counts"


class Server:
    """An OpenAI-compatible application. ``asked`` counts arrivals of each question's request, ``answered`` whole
    replies, both by the SHA-256 of the body; ``other`` counts requests that ask none of the questions, as a probe's.
    """

    def __init__(self, questions: Questions, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.other = 0
        self._questions = questions
        self._model = Model(behaviour)

    def application(self) -> web.Application:
        """The routes."""
        application = web.Application(client_max_size=64 * 2**20)
        application.router.add_get("/v1/models", self._models)
        application.router.add_get("/version", self._version)
        application.router.add_get(COUNTS, self._counts)
        application.router.add_post("/v1/chat/completions", self._chat)
        application.router.add_post("/v1/completions", self._completions)
        return application

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._entry()]})

    def _entry(self) -> dict[str, str]:
        return {"id": self.behaviour.model, "object": "model", "owned_by": "dsv4-conformance"}

    async def _version(self, request: web.Request) -> web.Response:
        behaviour = self.behaviour
        upgraded = behaviour.upgrade_after is not None and sum(self.answered.values()) >= behaviour.upgrade_after
        return web.json_response({"version": f"simulated {behaviour.version}{'.1' if upgraded else ''}"})

    async def _counts(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "asked": sum(self.asked.values()),
                "distinct": len(self.asked),
                "answered": sum(self.answered.values()),
                "answered_twice": sum(count > 1 for count in self.answered.values()),
                "other": self.other,
            }
        )

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, chat=True)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, chat=False)

    async def _serve(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        raw = await request.read()
        try:
            body = json.loads(raw)
            prompt = _text(body["messages"][-1]["content"]) if chat else body["prompt"]
            length = sum(len(_text(message["content"])) for message in body["messages"]) if chat else len(prompt)
        except (ValueError, KeyError, IndexError, TypeError):
            return _error(400, "The request is not understood.")
        if body.get("model") not in (None, self.behaviour.model):
            return _error(404, f"The model `{body.get('model')}` does not exist.")
        key = hashlib.sha256(raw).hexdigest()
        question = self._questions.find(prompt)
        if question is None:
            self.other += 1
        else:
            self.asked[key] += 1
            if (fault := await self._fault(question, key, request)) is not None:
                return fault
        draw = self._model.draw_of(body.get("seed"), float(body.get("temperature", 1.0)))
        thinking = chat and self._thinks(body)
        if question is None:
            said = self._model.chat(prompt, draw, thinking, int(body.get("max_tokens") or 1 << 30))
        else:
            said = self._model.answer(question, draw, thinking)
            self.answered[key] += 1
        return web.json_response(self._reply(said, length, chat, thinking))

    def _thinks(self, body: dict[str, Any]) -> bool:
        if self.behaviour.ignore_thinking or self.behaviour.always_thinking:
            return self.behaviour.always_thinking
        switches = body.get("chat_template_kwargs")
        return isinstance(switches, dict) and bool(switches.get("thinking", switches.get("enable_thinking", False)))

    async def _fault(self, question: Question, key: str, request: web.Request) -> web.StreamResponse | None:
        behaviour, attempt = self.behaviour, self.asked[key]

        def happens(what: str) -> bool:
            rate: float = getattr(behaviour, what)
            return rate > 0 and uniform(what, key, attempt, behaviour.stream) < rate

        if behaviour.latency_s:
            await asyncio.sleep(behaviour.latency_s * (0.5 + uniform("latency", key, attempt)))
        if behaviour.down_after is not None and sum(self.answered.values()) >= behaviour.down_after:
            return _error(503, "The engine is down.")
        if question.item in behaviour.refuse:
            return _error(400, "This prompt cannot be served.")
        if happens("stall"):
            await asyncio.sleep(behaviour.stall_s)
        if happens("error_500"):
            return _error(500, "The engine failed.")
        if happens("error_body"):
            return web.json_response({"error": {"message": "The engine failed.", "code": 500}})
        if happens("malformed"):
            return web.Response(text='{"id": "cut", "choices": [{"mess', content_type="application/json")
        if happens("hang_up") and request.transport is not None:
            request.transport.close()
        return None

    def _reply(self, said: Said, length: int, chat: bool, thinking: bool) -> dict[str, Any]:
        template = int(200 * uniform(self.behaviour.template)) + (3 if thinking else 0)
        prompt_tokens = length // 4 + (template if chat else 0)
        message: dict[str, Any] = {"role": "assistant", "content": self._content(said.text, chat)}
        if said.reasoning is not None:
            message["reasoning_content"] = said.reasoning
        content = {"message": message} if chat else {"text": said.text}
        return {
            "id": "simulated",
            "object": "chat.completion" if chat else "text_completion",
            "model": self._name(),
            "choices": [{"index": 0, **content, "finish_reason": said.finish_reason}],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": said.completion_tokens,
                "total_tokens": prompt_tokens + said.completion_tokens,
                "completion_tokens_details": {"reasoning_tokens": said.reasoning_tokens},
            },
        }

    def _content(self, text: str | None, chat: bool) -> Any:
        if text is None or not (chat and self.behaviour.parts):
            return text
        half = len(text) // 2
        return [{"type": "text", "text": text[:half]}, {"type": "text", "text": text[half:]}]

    def _name(self) -> str:
        """The model's name in a reply; another one once a restart with other weights is played."""
        behaviour = self.behaviour
        renamed = behaviour.rename_after is not None and sum(self.answered.values()) > behaviour.rename_after
        return f"{behaviour.model}-2" if renamed else behaviour.model


@contextlib.asynccontextmanager
async def listening(server: Server, host: str, port: int) -> Any:
    """Serve while this lasts; gives the address with the port that was taken (``port`` 0: any free one)."""
    runner = web.AppRunner(server.application(), access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=4096)
        await site.start()
        yield f"http://{host}:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@contextlib.contextmanager
def in_thread(server: Server) -> Iterator[str]:
    """Serve from a thread of this process while this lasts; gives the address."""
    ready = threading.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        found["loop"], found["stop"] = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with listening(server, "127.0.0.1", 0) as url:
                found["url"] = url
                ready.set()
                await found["stop"].wait()
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    ready.wait()
    if "url" not in found:
        raise HarnessError("The simulated server did not start.")
    try:
        yield found["url"]
    finally:
        found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join()


def _text(content: Any) -> str:
    """A message's content as one text; it may come in parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": {"message": text, "type": "simulated", "code": status}}, status=status)
