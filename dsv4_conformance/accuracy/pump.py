"""Asking many requests at once, scoring each reply as it comes, and noticing when the server is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dsv4_conformance.accuracy.client import Client, Endpoint
from dsv4_conformance.accuracy.fingerprint import sha256
from dsv4_conformance.accuracy.records import Answer
from dsv4_conformance.accuracy.replies import Reply
from dsv4_conformance.accuracy.tasks import Scored, Task

FEWEST_FAILURES = 16
"""So many errors in a row, or as many as are asked at once if that is more, mean that asking on makes no sense."""


class ServerGone(Exception):
    """Too many requests in a row got no usable reply; those answers are not recorded, so that they are asked again."""


@dataclass(frozen=True)
class Job:
    """One request to come: the question, the repeat, the right answer, and the body, built when it is needed."""

    item: str
    repeat: int
    seed: int
    prompt: str
    target: str
    body: Callable[[], bytes]


def pump(endpoint: Endpoint, task: Task, jobs: Iterable[Job], record: Callable[[Answer], None]) -> None:
    """Ask all ``jobs``, ``endpoint.concurrency`` at a time, and ``record`` each answer as it comes, in any order.

    Raises ServerGone, with the last error, when everything fails; what ``record`` was given stays given.
    """
    asyncio.run(_pump(endpoint, task, iter(jobs), record))


async def _pump(endpoint: Endpoint, task: Task, jobs: Iterator[Job], record: Callable[[Answer], None]) -> None:
    limit = max(FEWEST_FAILURES, endpoint.concurrency)
    failed: list[Answer] = []  # errors since the last usable reply, kept back until one comes

    async def work() -> None:
        for job in jobs:
            body = job.body()
            answer = answer_of(task, job, body, await client.ask(body))
            if answer.status == "error":
                failed.append(answer)
                if len(failed) >= limit:
                    raise ServerGone(answer.error)
                continue
            for earlier in failed:
                record(earlier)
            failed.clear()
            record(answer)

    async with Client(endpoint) as client:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(endpoint.concurrency):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            # The first failure cancels the others; it alone says what happened.
            raise errors.exceptions[0] from None
    for answer in failed:
        record(answer)


def answer_of(task: Task, job: Job, body: bytes, reply: Reply) -> Answer:
    """The record of one reply."""
    if reply.error:
        scored = Scored("error", None, -1, False)
    elif reply.odd:
        scored = Scored(reply.odd, None, -1, False)
    else:
        scored = task.score(reply.text, job.target, finish_reason=reply.finish_reason)
    return Answer(
        task=task.name,
        item=job.item,
        repeat=job.repeat,
        request=sha256(body.decode()),
        status=scored.status,
        correct=scored.correct,
        answer=scored.answer,
        fallback=scored.fallback,
        finish_reason=reply.finish_reason,
        seed=job.seed,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        reasoning_tokens=reply.reasoning_tokens,
        text=reply.text,
        reasoning=reply.reasoning,
        error=reply.error or reply.told,
        prompt=job.prompt,
        expected=job.target,
        served=reply.served,
        tries=reply.tries,
        seconds=round(reply.seconds, 6),
        system=reply.system,
    )
