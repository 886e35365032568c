"""An accuracy run from beginning to end: probe the server, let lm-eval evaluate it, leave the records in a file."""

from __future__ import annotations

import contextlib
import platform
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from uuid import uuid4

from dsv4_conformance import __version__
from dsv4_conformance.accuracy import data
from dsv4_conformance.accuracy.bodies import overrides_of, settings_of
from dsv4_conformance.accuracy.client import Endpoint
from dsv4_conformance.accuracy.fingerprint import fingerprint
from dsv4_conformance.accuracy.harness import generation_of, lm_eval_without_torch
from dsv4_conformance.accuracy.journal import Journal
from dsv4_conformance.accuracy.probe import probe, says_now
from dsv4_conformance.accuracy.progress import Display, Score, Waiting
from dsv4_conformance.accuracy.reading import begun, load
from dsv4_conformance.accuracy.records import AccuracyRun, RunHeader
from dsv4_conformance.accuracy.tasks import TASK_FILES, Task, task, task_file
from dsv4_conformance.errors import BadInput, HarnessError

MOST_SEED = 2**53
"""Seeds are JSON numbers, and some readers of JSON keep them as floats."""
FRESH = 2**31 - 2**20
"""Seeds that nobody named are below this: every server takes them, with the repeats added."""


@dataclass(frozen=True)
class Settings:
    """What to run.

    ``generation`` overrides the task file's generation settings, under lm-eval's names; ``limit`` asks the first
    questions only. ``seed`` None: that of the run that is gone on with, else a fresh one, so that no cache before the
    server can answer with what another run was told. ``weights`` is the declared revision and accuracy class, part of
    the fingerprint; ``notes`` is what else to remember of the server. ``retry_errors`` asks again what got no usable
    reply in an earlier attempt.
    ``questions`` are the ids of those to ask, all if there are none; such a run has a file of its own. ``same_build``:
    answers from another address or under other notes are of the same build. ``run`` names the run for its sessions.
    ``check`` is shown the header before any question is asked, and may raise.
    """

    task: str
    endpoint: Endpoint
    results: Path
    model: str | None = None
    repeats: int = 1
    seed: int | None = None
    limit: int | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)
    weights: str = "undeclared"
    notes: Mapping[str, str] = field(default_factory=dict)
    verify: bool = True
    retry_errors: bool = False
    quiet: bool = False
    check: Callable[[RunHeader], None] | None = None
    questions: tuple[str, ...] = ()
    same_build: bool = False
    run: str = field(default_factory=lambda: uuid4().hex)

    def __post_init__(self) -> None:
        object.__setattr__(self, "generation", overrides_of(self.generation))
        if self.questions and self.limit:
            raise BadInput("--questions and --limit both say which questions to ask; give one of them.")
        for name in ("repeats", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"--{name} is {value}; give 1 or more.")
        if self.seed is not None and not 0 <= self.seed < MOST_SEED:
            raise BadInput(f"--seed is {self.seed}; give a whole number from 0 to 2**53 - 1, or leave it out.")


@dataclass(frozen=True)
class Finished:
    """A run that came to its end: its records (texts as short hashes), their file, and the counts."""

    run: AccuracyRun
    path: Path
    score: Score

    @property
    def asked(self) -> int:
        """Requests that were made in this process."""
        return self.score.new

    @property
    def reused(self) -> int:
        """Answers that stood in the file before."""
        return self.score.answered - self.score.new


def run_task(settings: Settings) -> Finished:
    """Run a task, or go on with it: answers that ``settings.results`` holds already are not asked for again.

    The file is ``<results>/<task>.jsonl``; that of chosen questions has a hash of their ids in its name.
    Raises BadInput for unusable settings, data or server, probe.NotAsAsked for
    a server that does not think as asked, pump.ServerGone when nothing is answered any more.
    """
    with lm_eval_without_torch():
        import lm_eval
        from lm_eval.tasks import TaskManager

        from dsv4_conformance.accuracy.model import EndpointLM, Prompts

        wanted = task(settings.task)
        file = task_file(wanted, settings.endpoint.kind)
        questions = data.load(wanted.questions, verify=settings.verify)
        shots = data.load(wanted.shots_from, verify=settings.verify).rows[: wanted.shots] if wanted.shots else ()
        manager = TaskManager(
            include_path=str(TASK_FILES), include_defaults=False, metadata={"verify": settings.verify}
        )
        evaluated = manager.load([file])["tasks"][file]
        evaluated.set_config("repeats", settings.repeats)
        generation = generation_of(file, settings.generation)
        evaluated.set_config("generation_kwargs", generation)
        body = settings_of(generation)
        path = settings.results / f"{_stem(settings)}.jsonl"
        chosen = _places(settings, [row.id for row in questions.rows])
        earlier = begun(path)
        seed = settings.seed if settings.seed is not None else earlier.seed if earlier else secrets.randbelow(FRESH)
        with Waiting(f"{wanted.name}: probing {settings.endpoint.address}", quiet=settings.quiet):
            found = probe(settings.endpoint, settings.model, body, seed)
        count = len(chosen) or min(settings.limit or len(questions.rows), len(questions.rows))

        def journal(prompts: Prompts) -> Journal:
            header = RunHeader(
                task=wanted.name,
                model=found.model,
                endpoint=settings.endpoint.kind,
                seed=seed,
                items=tuple(item for item, _ in prompts),
                fingerprint=fingerprint(
                    wanted,
                    questions,
                    data.canonical_sha256(shots),
                    prompts,
                    body,
                    found.server(),
                    settings.weights,
                ),
                started=datetime.now(UTC).isoformat(timespec="seconds"),
                versions=_versions(),
                observed={**found.observed(), "data": questions.note or questions.kind},
                notes=dict(settings.notes),
                url=settings.endpoint.address,
                server=found.says,
                of=len(questions.rows),
            )
            if settings.check is not None:
                settings.check(header)
            return Journal(path, header, settings.run, same_build=settings.same_build)

        with Display(wanted.name, count * settings.repeats, quiet=settings.quiet) as display:
            model = EndpointLM(
                settings.endpoint,
                wanted,
                found.model,
                seed,
                journal,
                display.add,
                settings.retry_errors,
                lambda: says_now(settings.endpoint, found),
            )
            results = lm_eval.simple_evaluate(
                model=model,
                tasks=[evaluated],
                task_manager=manager,
                apply_chat_template=settings.endpoint.kind == "chat",
                limit=settings.limit,
                samples={file: chosen} if chosen else None,
                bootstrap_iters=0,
                log_samples=False,
                random_seed=None,
                numpy_random_seed=None,
                torch_random_seed=None,
            )
        _agree(results["results"][file]["exact_match,all"], display.score, wanted)
        return Finished(load(path, texts=False), path, display.score)


def _places(settings: Settings, ids: list[str]) -> list[int]:
    """Where the chosen questions stand, in the set's order."""
    if unknown := [item for item in settings.questions if item not in ids]:
        raise BadInput(f"There is no question {unknown[0]!r} in {settings.task}; ids run from {ids[0]} to {ids[-1]}.")
    return [place for place, item in enumerate(ids) if item in settings.questions]


def _stem(settings: Settings) -> str:
    if not settings.questions:
        return settings.task
    return f"{settings.task}.{sha256(' '.join(sorted(set(settings.questions))).encode()).hexdigest()[:8]}"


def _agree(theirs: float, ours: Score, wanted: Task) -> None:
    """lm-eval scores what it was given, we score what we record; that they differ would be a fault of this suite."""
    mine = ours.correct / ours.answered
    if abs(theirs - mine) > 1e-9:
        raise HarnessError(f"lm-eval scores {wanted.name} as {theirs:.6f}, the records as {mine:.6f}.")


def _versions() -> dict[str, str]:
    found = {"dsv4-conformance": __version__, "python": platform.python_version()}
    for name in ("lm-eval", "datasets", "aiohttp"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
