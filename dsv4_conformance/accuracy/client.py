"""Asking an OpenAI-compatible server: one request in, one reply or one error out, never an exception, never a guess.

The transport is aiohttp: lm-eval's own API client needs it too, so the extra stays small, and the simulated server is
made of the same.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from dsv4_conformance.accuracy.records import EndpointKind
from dsv4_conformance.accuracy.replies import Again, Reply, json_or_none, message, reply_from
from dsv4_conformance.errors import BadInput
from dsv4_conformance.texts import counted

API_KEY = "OPENAI_API_KEY"
RETRIED = frozenset({408, 409, 425, 429, *range(500, 600)})
"""HTTP statuses after which the same request may succeed; other 4xx are the request's own fault."""

LONGEST_WAIT_S = 30.0


@dataclass(frozen=True)
class Endpoint:
    """Where and how to ask. ``deadline_s`` is for one request with all its ``tries``, waits included."""

    url: str
    kind: EndpointKind = "chat"
    concurrency: int = 64
    tries: int = 5
    deadline_s: float = 600.0
    backoff_s: float = 0.5

    def __post_init__(self) -> None:
        for name in ("concurrency", "tries", "deadline_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:  # false for nan
                raise BadInput(f"--{name.removesuffix('_s')} is {value}; give a number above 0.")

    @property
    def root(self) -> str:
        """The server's address up to and including its version, as in http://host:8000/v1."""
        url = self.url.rstrip("/")
        for tail in ("/chat/completions", "/completions", "/models"):
            url = url.removesuffix(tail)
        if not url.startswith(("http://", "https://")):
            raise BadInput(f"--endpoint is {self.url!r}; give an address like http://127.0.0.1:8000/v1.")
        return url if url.rsplit("/", 1)[-1].startswith("v") and url.count("/") > 2 else f"{url}/v1"

    @property
    def address(self) -> str:
        """The root without a user's name and password, to be written down."""
        scheme, _, rest = self.root.partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"

    @property
    def path(self) -> str:
        """Where requests of this kind go."""
        return f"{self.root}/chat/completions" if self.kind == "chat" else f"{self.root}/completions"


class Client:
    """Connections to one endpoint; an async context manager."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        key = os.environ.get(API_KEY)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.endpoint.concurrency),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
            headers={"Authorization": f"Bearer {key}"} if key else None,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, body: bytes) -> Reply:
        """Send ``body``, JSON, again while that may help, until the deadline. Never raises for a bad server."""
        started = time.monotonic()
        tries, reason = 0, "no reply"
        try:
            async with asyncio.timeout(self.endpoint.deadline_s):
                while True:
                    tries += 1
                    try:
                        reply = await self._try(body)
                        return replace(reply, tries=tries, seconds=time.monotonic() - started)
                    except Again as again:
                        reason = str(again)
                        if tries >= self.endpoint.tries:
                            break
                        await asyncio.sleep(self._wait(tries, again.wait_s))
            error = f"{reason} ({counted(tries, 'try', 'tries')})"
        except TimeoutError:
            error = f"no reply within the deadline of {self.endpoint.deadline_s:g} s (try {tries}; before: {reason})"
        return Reply(error=error, tries=tries, seconds=time.monotonic() - started)

    async def get(self, url: str, *, timeout_s: float = 30.0) -> tuple[int, Any]:
        """(HTTP status, JSON body or None) of a GET. Raises OSError or TimeoutError if the server is not there."""
        assert self._session is not None
        async with asyncio.timeout(min(timeout_s, self.endpoint.deadline_s)):
            try:
                async with self._session.get(url) as response:
                    content = await response.read()
            except aiohttp.ClientError as error:
                raise OSError(_told(error)) from None
        return response.status, json_or_none(content)

    def _wait(self, tries: int, asked_s: float | None) -> float:
        if asked_s is not None:
            return min(asked_s, LONGEST_WAIT_S)
        # Spread out, or all the requests that failed together come back together.
        return min(self.endpoint.backoff_s * 2.0 ** (tries - 1), LONGEST_WAIT_S) * random.uniform(0.5, 1.0)

    async def _try(self, body: bytes) -> Reply:
        assert self._session is not None
        try:
            async with self._session.post(
                self.endpoint.path, data=body, headers={"Content-Type": "application/json"}
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, ConnectionError, aiohttp.http.HttpProcessingError) as error:
            raise Again(f"connection failed: {_told(error)}") from None
        if response.status in RETRIED:
            raise Again(f"HTTP {response.status}: {message(content)}", _retry_after(response.headers))
        if response.status != 200:
            return Reply(error=f"HTTP {response.status}: {message(content)}", refused=True)
        return reply_from(content, self.endpoint.kind)


def _told(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _retry_after(headers: Any) -> float | None:
    value = headers.get("Retry-After")
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError, OSError):  # no date, or one that no clock can show
        return None
