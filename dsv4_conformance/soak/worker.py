"""A process that judges cases of a soak: it is told numbers, and tells what became of each."""

from __future__ import annotations

import logging
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsv4_conformance.cases.case import Case
    from dsv4_conformance.soak.drawing import Drawn
    from dsv4_conformance.soak.judging import Judged

KEPT_PER_TEST = 3
"""Failures of one suite function that are shrunk and kept in files; the others are counted."""
FATAL_EXIT = 70


@dataclass(frozen=True)
class Setup:
    """What a worker needs to draw and judge any case."""

    impl: str
    device: str
    size: str
    seed: int
    surfaces: tuple[str, ...]
    gpu: str | None


def work(setup: Setup, pipe: Connection) -> None:
    """Judge chunks of case numbers as they come, until None comes or the other side is gone.

    Tells ("ready",), or ("bad", sentence) if the implementation cannot be made; then ("start", number, data) before
    each case, ("failed", number, data) after one that failed, ("judged", status, surface) after each, and ("done",)
    after the last one of a chunk.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Cases make engines warn by the thousand; what they must say is judged where it is returned.
    logging.getLogger().addHandler(logging.NullHandler())
    if setup.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = setup.gpu
    from dsv4_conformance.errors import BadInput

    try:
        judge = _Judge(setup, pipe)
    except BadInput as error:
        pipe.send(("bad", str(error)))
        return
    pipe.send(("ready",))
    try:
        while (told := pipe.recv()) is not None:
            judge.chunk(*told)
    except (EOFError, BrokenPipeError):
        return


class _Judge:
    def __init__(self, setup: Setup, pipe: Connection) -> None:
        from dsv4_conformance.cli.suite_functions import suite_functions
        from dsv4_conformance.implementations.registry import load
        from dsv4_conformance.runner.session import Session
        from dsv4_conformance.soak.drawing import Deck

        self._pipe = pipe
        implementation = load(setup.impl)
        self._session = Session(implementation, setup.device)
        self._deck = Deck(suite_functions(), implementation.surfaces, setup.size, setup.seed, setup.surfaces)  # type: ignore[arg-type]
        self._known_right = None if setup.impl == "builtin" else Session(load("builtin"), setup.device)
        self._kept: Counter[str] = Counter()

    def chunk(self, numbers: range, kept: Counter[str]) -> None:
        """Judge the cases of these numbers; ``kept``: failures that have files by now, per test."""
        self._kept = kept
        for number in numbers:
            drawn = self._deck.draw(number)
            self._pipe.send(("start", number, _described(drawn)))
            judged = self._judged(drawn)
            if judged.failed or judged.status == "HARNESS_ERROR":
                self._tell(drawn, judged)
            self._pipe.send(("judged", str(judged.status), drawn.kind.surface))
            if judged.fatal:
                os._exit(FATAL_EXIT)
        self._pipe.send(("done",))

    def _judged(self, drawn: Drawn, case: Case | None = None) -> Judged:
        from dataclasses import replace

        from dsv4_conformance.soak.judging import judge

        planned = drawn.planned if case is None else replace(drawn.planned, case=case)
        return judge(self._session, drawn.kind.function.function, planned)

    def _tell(self, drawn: Drawn, judged: Judged) -> None:
        data = _described(drawn) | {"status": str(judged.status), "sentence": judged.sentence}
        if judged.status == "FAIL" and self._kept[drawn.kind.function.name] < KEPT_PER_TEST:
            self._kept[drawn.kind.function.name] += 1
            data |= self._shrunk(drawn, judged)
        self._pipe.send(("failed", drawn.number, data))

    def _shrunk(self, drawn: Drawn, judged: Judged) -> dict[str, Any]:
        from dsv4_conformance.cases.codec import to_data
        from dsv4_conformance.cases.identity import case_id
        from dsv4_conformance.soak.shrink import shrink

        sentences = {drawn.planned.case.canonical(): judged.sentence}
        case, tried = shrink(drawn.planned.case, self._fails_likewise(drawn, judged, sentences))
        identifier = case_id(drawn.kind.function.name, drawn.planned.requirement, case)
        shown = {"case_id": identifier, "case": to_data(case), "sentence": sentences[case.canonical()]}
        return {**shown, "drawn": to_data(drawn.planned.case), "tried": tried}

    def _fails_likewise(self, drawn: Drawn, judged: Judged, sentences: dict[str, str]) -> Callable[[Case], bool]:
        """Whether a simpler case fails with the same words, and is right on the built-in implementation: one that is
        none at all, since its parameters contradict each other, is not taken for a small failure."""
        from dataclasses import replace

        from dsv4_conformance.soak.judging import judge

        def fails(case: Case) -> bool:
            self._pipe.send(("start", drawn.number, _described(drawn)))  # a case's time begins anew
            again = self._judged(drawn, case)
            if again.status != "FAIL" or stem(again.sentence) != stem(judged.sentence):
                return False
            if self._known_right is not None:
                planned = replace(drawn.planned, case=case)
                if judge(self._known_right, drawn.kind.function.function, planned).status not in ("PASS", "WARN"):
                    return False
            sentences[case.canonical()] = again.sentence
            return True

        return fails


def stem(sentence: str) -> str:
    """The words that a failure's sentence begins with, up to the first number."""
    return re.split(r"[-+]?\d", sentence, maxsplit=1)[0][:60]


def _described(drawn: Drawn) -> dict[str, Any]:
    from dsv4_conformance.cases.codec import to_data

    kind, planned = drawn.kind, drawn.planned
    return {
        "case_id": planned.case_id,
        "test": kind.function.name,
        "path": str(kind.function.path),
        "requirement": planned.requirement,
        "surface": kind.surface,
        "case": to_data(planned.case),
    }
