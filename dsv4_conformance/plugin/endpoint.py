"""The served model of a run: where its answers are kept, and its judgements, made once. No torch, no lm-eval."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.process import Process
from dsv4_conformance.runner.endpoint import Judged, Tasks

RUN = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex[:8]}"
"""This run, also in children that are forked later."""
PREFIX = "answers-"


def answers_folder(process: Process) -> Path:
    """Where this run keeps its answers: the user's folder; that of the run it resumes; else one of its own, since
    answers of an earlier build say nothing about this one."""
    options = process.settings.options
    if options.endpoint.answers is not None:
        return options.endpoint.answers
    earlier = sorted(process.results.glob(f"{PREFIX}*"), key=lambda path: path.stat().st_mtime)
    if getattr(options, "resume", False) and earlier:
        return earlier[-1]
    return process.results / f"{PREFIX}{run_id(process)}"


def run_id(process: Process) -> str:
    """The name of this run, the same in all its workers."""
    workerinput: dict[str, Any] = getattr(process.config, "workerinput", {})
    return str(workerinput.get("testrunuid", RUN))


def tasks_of(process: Process) -> Tasks:
    """The judgements of this process's run."""
    return Tasks(lambda task: _judged(process, task))


def _judged(process: Process, task: str) -> Judged:
    """Ask the server and judge. What keeps a comparison from being made is told, not raised; BadInput is."""
    from filelock import FileLock

    from dsv4_conformance import resources
    from dsv4_conformance.accuracy.obtaining import NoGolden, judgement_of
    from dsv4_conformance.accuracy.pytest_words import in_pytest
    from dsv4_conformance.accuracy.reading import Invalid
    from dsv4_conformance.cases.accuracy_case import TASKS

    folder, name = process.settings.options.endpoint.golden_place
    asked, profile = process.settings.options.endpoint, process.settings.profile.name
    answers = answers_folder(process)
    answers.mkdir(parents=True, exist_ok=True)
    with _unhurried(process), FileLock(answers / f"{task}.judging"):
        try:
            return Judged(
                judgement_of(
                    asked.url,
                    asked.model,
                    task,
                    profile,
                    folder or resources.golden_dir(),
                    answers,
                    weights=asked.weights,
                    quiet=process.role == "worker",
                    notes=dict(note.split("=", 1) for note in asked.notes),
                    same_build=asked.same_build,
                    run=run_id(process),
                    name=name,
                ),
                run=run_id(process),
            )
        except NoGolden as error:
            others = " or ".join(other for other in TASKS if other != task)
            return Judged(None, f"{in_pytest(str(error)).rstrip('.')}; to judge {others} alone, add -k {others}.")
        except Invalid as error:
            return Judged(None, in_pytest(str(error)))
        except Exception as error:
            if _server_failed(error):
                kept = f"what was answered is kept: go on with --dsv4-answers {answers}"
                return Judged(None, f"{task}: {in_pytest(str(error)).rstrip('.')}; {kept}.")
            if isinstance(error, BadInput):
                raise BadInput(in_pytest(str(error))) from None
            raise


def _server_failed(error: Exception) -> bool:
    from dsv4_conformance.accuracy.probe import NotAsAsked
    from dsv4_conformance.accuracy.pump import ServerGone

    return isinstance(error, NotAsAsked | ServerGone)


@contextmanager
def _unhurried(process: Process) -> Iterator[None]:
    """No time limit of a case holds for a run of hours, and its progress is shown where somebody can see it."""
    watchdog = getattr(process, "watchdog", None)
    capture = process.config.pluginmanager.getplugin("capturemanager")
    if watchdog is not None:
        watchdog.disarm()
    try:
        if capture is None or process.role == "worker":
            yield
        else:
            with capture.global_and_fixture_disabled():
                yield
    finally:
        if watchdog is not None:
            watchdog.arm()
