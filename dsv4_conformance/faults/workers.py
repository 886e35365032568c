"""Trials in processes of their own: a fault that crashes or hangs costs its own trial, and a new process goes on.

Each worker tries many faults one after the other, so that suites, cases and truths are made once per process.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from dsv4_conformance.faults.outcome import CONTROL, Detection, Outcome


class Task(NamedTuple):
    """A trial: id of a fault or CONTROL, profile, whether it ends when the requirement that it must break has failed,
    and the surfaces whose cases are run."""

    name: str
    profile: str
    stop: bool
    surfaces: tuple[str, ...]


def serve(pipe: Connection, modules: Sequence[str]) -> None:
    """A worker's life: take tasks until the pipe closes; send ("case", id), ("found", Detection), ("done", Outcome).

    ``modules`` are imported first: they may register faults of their own.
    """
    import importlib
    import logging

    import torch

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    for module in modules:
        importlib.import_module(module)
    try:
        for task in iter(pipe.recv, None):
            serve_one(pipe, task)
    except (EOFError, KeyboardInterrupt):
        return


def serve_one(pipe: Connection, task: Task) -> None:
    """One trial, told as ``serve`` says."""
    from dsv4_conformance.faults.catalogue import get_fault
    from dsv4_conformance.faults.trial import trial
    from dsv4_conformance.implementations.builtin import Builtin

    outcome = described(task.name)
    implementation = Builtin if task.name == CONTROL else get_fault(task.name).implementation
    began = time.perf_counter()

    def told(case_id: str) -> None:
        outcome.cases += 1
        pipe.send(("case", case_id))

    for failure in trial(implementation, task.surfaces, task.profile, told, outcome.breaks):
        found = Detection(**vars(failure))
        outcome.detections.append(found)
        pipe.send(("found", found))
        if task.stop and found.requirement == outcome.breaks:
            break
    outcome.seconds = time.perf_counter() - began
    pipe.send(("done", outcome))


def described(name: str) -> Outcome:
    """An outcome in which nothing has happened yet."""
    from dsv4_conformance.faults.catalogue import get_fault

    if name == CONTROL:
        return Outcome(id=CONTROL, title="the unchanged built-in implementation")
    fault = get_fault(name)
    return Outcome(
        id=fault.id,
        title=fault.entry.title,
        area=fault.area,
        mechanism=fault.mechanism,
        breaks=fault.breaks,
        symptom=fault.symptom,
    )


START_S = 300.0
"""Seconds until a process's first case: it imports torch and collects the suites."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    task: Task | None = None
    began: float = 0.0
    heard: float = 0.0
    at: str = ""
    found: list[Detection] | None = None


def run(tasks: Sequence[Task], workers: int, timeout_s: float, modules: Sequence[str] = ()) -> Iterator[Outcome]:
    """Outcomes as they arrive. A case that takes longer than ``timeout_s`` ends its process, and its trial.

    ``modules``: imported by each process before its first trial.
    """
    context: Any = multiprocessing.get_context("spawn")
    todo, crew = deque(tasks), [_hire(context, modules) for _ in range(min(workers, len(tasks)))]
    try:
        for worker in crew:
            _give(worker, todo)
        while busy := [worker for worker in crew if worker.task is not None]:
            ready = wait([worker.pipe for worker in busy], timeout=1.0)
            for place, worker in enumerate(crew):
                if worker.task is None:
                    continue
                outcome = _hear(worker) if worker.pipe in ready else _overdue(worker, timeout_s)
                if outcome is None:
                    continue
                if outcome.lost:
                    _dismiss(worker)
                    worker = crew[place] = _hire(context, modules)
                worker.task = None
                _give(worker, todo)
                yield outcome
    finally:
        for worker in crew:
            _dismiss(worker)


def _hire(context: Any, modules: Sequence[str]) -> _Worker:
    mine, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, modules), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, mine)


def _give(worker: _Worker, todo: deque[Task]) -> None:
    if todo:
        worker.task, worker.at, worker.found = todo.popleft(), "", []
        worker.began = worker.heard = time.monotonic()
        worker.pipe.send(worker.task)


def _hear(worker: _Worker) -> Outcome | None:
    """The outcome, if the worker's next message ends its trial; its end counts as one."""
    assert worker.task is not None and worker.found is not None
    worker.heard = time.monotonic()
    try:
        kind, content = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(timeout=10)
        code = worker.process.exitcode
        return _lost(worker, f"signal {-code} ended the process" if code and code < 0 else f"it exited with {code}")
    if kind == "case":
        worker.at = content
    elif kind == "found":
        worker.found.append(content)
    else:
        outcome: Outcome = content
        return outcome
    return None


def _overdue(worker: _Worker, timeout_s: float) -> Outcome | None:
    quiet = time.monotonic() - worker.heard
    if worker.at:
        return _lost(worker, f"a case took more than {timeout_s:g} s") if quiet > timeout_s else None
    return _lost(worker, f"nothing began within {START_S:g} s") if quiet > START_S else None


def _lost(worker: _Worker, why: str) -> Outcome:
    assert worker.task is not None
    outcome = described(worker.task.name)
    outcome.detections, outcome.lost, outcome.at = list(worker.found or ()), why, worker.at
    outcome.seconds = time.monotonic() - worker.began
    return outcome


def _dismiss(worker: _Worker) -> None:
    worker.pipe.close()
    if worker.process.is_alive():
        worker.process.terminate()
    worker.process.join(timeout=10)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join(timeout=10)
