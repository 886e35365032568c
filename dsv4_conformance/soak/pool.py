"""Workers of a soak: started, given chunks, watched, replaced when they die. The parent runs no case. Torch-free."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.deaths import death
from dsv4_conformance.soak.files import Log
from dsv4_conformance.soak.worker import FATAL_EXIT, KEPT_PER_TEST, Setup, work

CHUNK = 20
FAILURES = ("FAIL", "CRASH", "TIMEOUT", "OUT_OF_MEMORY", "HARNESS_ERROR")
STARTING_S = 600.0
"""Seconds that a worker may take until it is ready."""
DEATHS_BETWEEN = 3
"""Workers that may end between cases, one after another with no case judged, before the soak ends too."""


@dataclass
class Limits:
    """When to stop. ``cases``: judged ones; ``seconds``: of the whole; ``timeout_s``: of one case; ``failures``: when
    so many cases have failed."""

    cases: int
    seconds: float | None = None
    timeout_s: float = 300.0
    failures: int = 100


@dataclass
class _Chunk:
    """Cases of consecutive numbers, and what became of those before ``at``."""

    number: int
    at: int
    statuses: Counter[str] = field(default_factory=Counter)
    surfaces: Counter[str] = field(default_factory=Counter)

    @property
    def left(self) -> range:
        """The numbers that are still to be drawn."""
        return range(self.at, (self.number + 1) * CHUNK)

    @property
    def failed(self) -> bool:
        """Whether a case failed that has been told of."""
        return any(self.statuses[status] for status in FAILURES)

    def give_up(self) -> None:
        """What is left is not run."""
        self.statuses += Counter(NOT_RUN=len(self.left))
        self.at = (self.number + 1) * CHUNK

    def judged(self, status: str, surface: str) -> None:
        """The next case is over."""
        self.at += 1
        self.statuses[status] += 1
        self.surfaces[surface] += 1


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    ready: bool = False
    chunk: _Chunk | None = None
    case: dict[str, Any] | None = None
    over: bool = False
    since: float = 0.0


class Pool:
    """Runs a soak on ``workers`` processes; ``setups``: one Setup per worker. ``tell`` is called after every chunk."""

    def __init__(self, setups: list[Setup], log: Log, limits: Limits, tell: Callable[[], None]) -> None:
        self._setups, self._log, self._limits, self._tell = setups, log, limits, tell
        self._context = multiprocessing.get_context("spawn")
        self._workers: dict[int, _Worker] = {}
        self._next = 0
        self._begun: list[_Chunk] = []
        self._between = 0
        self._kept: Counter[str] = Counter(test for _, test, _ in log.progress.files)
        self._deadline = None if limits.seconds is None else time.monotonic() + limits.seconds

    def run(self) -> None:
        """Judge until a limit is met. Raises BadInput if no worker can be made; Ctrl-C passes through."""
        try:
            for place in range(len(self._setups)):
                self._start(place)
            while self._workers:
                self._wait()
        finally:
            for worker in self._workers.values():
                worker.process.kill()
            under_way = [worker.chunk for worker in self._workers.values() if worker.chunk is not None]
            for chunk in [*self._begun, *(chunk for chunk in under_way if chunk.failed)]:
                # Its failures are in the log: it must not be drawn again.
                chunk.give_up()
                self._log.chunk_done(chunk.number, chunk.statuses, chunk.surfaces)

    @property
    def _enough(self) -> bool:
        progress = self._log.progress
        under_way = sum(CHUNK for worker in self._workers.values() if worker.chunk is not None)
        under_way += sum(chunk.statuses.total() for chunk in self._begun)
        return (
            progress.judged + under_way >= self._limits.cases
            or self._next * CHUNK > 20 * self._limits.cases + 1000  # nearly nothing applies
            or progress.failed >= self._limits.failures
            or (self._deadline is not None and time.monotonic() >= self._deadline)
        )

    def _start(self, place: int) -> None:
        mine, theirs = self._context.Pipe()
        process = self._context.Process(target=work, args=(self._setups[place], theirs), daemon=True)
        process.start()
        theirs.close()
        self._workers[place] = _Worker(process, mine, since=time.monotonic())

    def _wait(self) -> None:
        pipes = {worker.pipe: place for place, worker in self._workers.items()}
        for pipe in wait(list(pipes), timeout=1.0):
            place = pipes[pipe]  # type: ignore[index]
            try:
                self._take(place, self._workers[place].pipe.recv())
            except (EOFError, OSError):
                self._died(place)
        now = time.monotonic()
        late = self._deadline is not None and now >= self._deadline
        for place, worker in list(self._workers.items()):
            limit = self._limits.timeout_s if worker.ready else STARTING_S
            if (worker.chunk is not None or not worker.ready) and now - worker.since > limit:
                worker.process.kill()
                worker.process.join()
                self._died(place, late=True)
            elif late:
                worker.process.kill()
                del self._workers[place]
                if worker.chunk is not None and worker.chunk.failed:
                    self._begun.append(worker.chunk)

    def _take(self, place: int, message: tuple[Any, ...]) -> None:
        worker = self._workers[place]
        what, *told = message
        worker.since = time.monotonic()
        if what == "bad":
            raise BadInput(told[0])
        if what == "start":
            worker.case, worker.over = told[1], False
        elif what == "failed":
            self._failed(told[1])
        elif what == "judged":
            assert worker.chunk is not None
            worker.chunk.judged(*told)
            worker.over, self._between = True, 0
        else:
            if what == "done":
                self._done(worker)
            worker.ready, worker.chunk, worker.case = True, None, None
            self._give(place)

    def _give(self, place: int) -> None:
        worker = self._workers[place]
        if self._enough:
            worker.pipe.send(None)
            worker.process.join(10)
            del self._workers[place]
            return
        if self._begun:
            worker.chunk = self._begun.pop()
        else:
            while self._next in self._log.progress.chunks:
                self._next += 1
            worker.chunk = _Chunk(self._next, self._next * CHUNK)
            self._next += 1
        worker.pipe.send((worker.chunk.left, Counter(self._kept)))

    def _done(self, worker: _Worker) -> None:
        assert worker.chunk is not None
        self._log.chunk_done(worker.chunk.number, worker.chunk.statuses, worker.chunk.surfaces)
        self._tell()

    def _failed(self, data: dict[str, Any]) -> None:
        file = ""
        if self._kept[data["test"]] < KEPT_PER_TEST:
            self._kept[data["test"]] += 1
            file = self._log.keep(data, data["case_id"])
        self._log.failed(data["test"], data["sentence"], file)

    def _died(self, place: int, late: bool = False) -> None:
        worker = self._workers.pop(place)
        worker.process.join(10)
        unready = not worker.ready and worker.case is None
        if unready and not self._log.progress.statuses and not self._begun:
            raise BadInput(
                f"A worker of the soak ended (exit code {worker.process.exitcode}) before it could judge anything; try "
                "`dsv4-conformance smoke` with this implementation."
            )
        if worker.case is not None and worker.process.exitcode != FATAL_EXIT:
            how = death(worker.process.exitcode, "", killed_late=late)
            sentence = how.sentence("while it ran this case", self._limits.timeout_s)
            self._failed(worker.case | {"status": str(how.status), "sentence": sentence})
            if worker.chunk is not None and not worker.over:
                worker.chunk.judged(str(how.status), worker.case["surface"])
        if worker.chunk is not None:
            if worker.case is None:  # before it began any of these: another process might do the same, for ever
                worker.chunk.give_up()
                self._between += 1
            if worker.chunk.left:
                self._begun.append(worker.chunk)
            else:
                self._done(worker)
        self._between += unready  # one that takes the place of another
        if self._between >= DEATHS_BETWEEN:
            raise BadInput(
                f"{self._between} workers of the soak ended one after another before they could begin a case "
                f"(exit code {worker.process.exitcode}); try `dsv4-conformance smoke` with this implementation."
            )
        if not self._enough:
            self._start(place)
