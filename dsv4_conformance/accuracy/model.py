"""The model that lm-eval evaluates: lm-eval renders the prompts and scores, this asks the server and keeps the records.

lm-eval's own API client sends one seed for all repeats, drops the finish reason, turns a missing reply into an empty
answer, ends the whole run at one refused request, and caches by prompt alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from lm_eval.api.model import LM

from dsv4_conformance.accuracy.bodies import body_bytes, request_body, settings_of
from dsv4_conformance.accuracy.client import Endpoint
from dsv4_conformance.accuracy.fingerprint import sha256
from dsv4_conformance.accuracy.journal import Journal
from dsv4_conformance.accuracy.pump import Job, pump
from dsv4_conformance.accuracy.reading import Edited
from dsv4_conformance.accuracy.records import Answer
from dsv4_conformance.accuracy.tasks import Task
from dsv4_conformance.errors import HarnessError

Prompts = list[tuple[str, str]]
"""(item, hash of the rendered prompt) in the items' order."""


class EndpointLM(LM):  # type: ignore[misc]
    """An OpenAI-compatible server as lm-eval's model, for one task.

    ``open_journal`` is called once with all prompts, when they are known, and gives the file to write; ``watch`` is
    called with every answer, whether it was just given (True) or stood in the file already (False); ``says_now`` gives
    what the server says of itself when all is asked, None where it says nothing.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        task: Task,
        model: str,
        seed: int,
        open_journal: Callable[[Prompts], Journal],
        watch: Callable[[Answer, bool], None],
        retry_errors: bool = False,
        says_now: Callable[[], dict[str, str] | None] = lambda: None,
    ) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._task = task
        self._model = model
        self._seed = seed
        self._open_journal = open_journal
        self._watch = watch
        self._retry_errors = retry_errors
        self._says_now = says_now

    @property
    def tokenizer_name(self) -> str:
        """The template is the server's; lm-eval wants a name for its cache, which is not used."""
        return "server"

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The messages as JSON, for the server to apply its template to."""
        messages = [{"role": message["role"], "content": message["content"]} for message in chat_history]
        return json.dumps(messages, ensure_ascii=False)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The text of each reply, in order; empty where it may not be scored. ``requests``: lm-eval's instances.

        Raises ServerGone, and Edited where the file holds answers to other requests.
        """
        jobs = list(self._jobs(requests))
        first = [job for job in jobs if job.repeat == 0]
        texts: dict[tuple[str, int], str] = {}
        with self._open_journal([(job.item, job.prompt) for job in first]) as journal:
            for answer in journal.kept.answers:
                if answer.status != "error" or not self._retry_errors:
                    texts[answer.key] = _scorable(answer)
            wanted = {(job.item, job.repeat) for job in jobs}
            self._check(jobs, journal)
            for answer in journal.kept.answers:
                if answer.key in texts and answer.key in wanted:
                    self._watch(answer, False)

            def record(answer: Answer) -> None:
                journal.append(answer)
                texts[answer.key] = _scorable(answer)
                self._watch(answer, True)

            # Whole passes one after the other: what a stopped run leaves is complete as far as it goes.
            missing = sorted((job for job in jobs if (job.item, job.repeat) not in texts), key=lambda job: job.repeat)
            if missing:
                pump(self._endpoint, self._task, missing, record)
            # A file whose closing line was lost is closed by running again, so this is done where nothing is asked too.
            journal.visited()
            if (server := self._says_now()) is not None:
                journal.end(server)
        return [texts[job.item, job.repeat] for job in jobs]

    def _jobs(self, requests: list[Any]) -> Iterator[Job]:
        repeats: Counter[str] = Counter()
        for request in requests:
            prompt, generation = request.args
            item = request.doc["id"]
            repeat = repeats[item]
            repeats[item] += 1
            seed = self._seed + repeat
            yield Job(
                item=item,
                repeat=repeat,
                seed=seed,
                prompt=sha256(prompt),
                target=request.doc["target"],
                body=partial(self._body, prompt, generation, seed),
            )

    def _body(self, prompt: str, generation: dict[str, Any], seed: int) -> bytes:
        return body_bytes(request_body(self._endpoint.kind, self._model, prompt, settings_of(generation), seed))

    def _check(self, jobs: list[Job], journal: Journal) -> None:
        """The header matched; that single requests do not is possible only if the file or this program was altered."""
        known = {answer.key: answer.request for answer in journal.kept.answers}
        for job in jobs:
            request = known.get((job.item, job.repeat))
            if request is not None and request != sha256(job.body().decode()):
                raise Edited(
                    f"{journal.path} answers another request for {job.item}, repeat {job.repeat}, than this run would "
                    "send; use another --results folder."
                )

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """Not offered: chat servers give no likelihoods."""
        raise HarnessError("No task of this suite asks for likelihoods.")

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        """Not offered: chat servers give no likelihoods."""
        raise HarnessError("No task of this suite asks for likelihoods.")


def _scorable(answer: Answer) -> str:
    # lm-eval sees texts only; what is no whole answer must not be scored there either.
    return answer.text if answer.status in ("ok", "no_answer") else ""
