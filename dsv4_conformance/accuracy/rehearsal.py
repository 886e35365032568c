"""The gate from end to end against the simulated server: real questions, real client, real files, known truth."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dsv4_conformance.accuracy.decision import Verdict
from dsv4_conformance.accuracy.gate import Judgement
from dsv4_conformance.accuracy.obtaining import judgement_of
from dsv4_conformance.accuracy.power import Rates
from dsv4_conformance.accuracy.simulator.behaviour import Behaviour
from dsv4_conformance.errors import BadInput

FIRST_STREAM = 1000
"""Streams of the trials start here; the shipped goldens were recorded from stream 1."""

SEED = 1000
"""Of the first pass: the draws of a trial are its stream's, the same every time."""


@dataclass(frozen=True)
class Scenario:
    """A way in which the simulated engine differs from the one that the golden was recorded from."""

    name: str
    behaviour: Behaviour


SCENARIOS: dict[str, tuple[Scenario, ...]] = {
    "gsm8k": (
        Scenario("unchanged", Behaviour()),
        Scenario("other numerics, same score", Behaviour(jitter=True)),
        Scenario("every question worse, -1 point", Behaviour(drop=1.0)),
        Scenario("undecided questions worse, -1 point", Behaviour(drop_unstable=1.0)),
        Scenario("13 questions broken", Behaviour(broken=13)),
    ),
    "aime25": (
        Scenario("unchanged", Behaviour()),
        Scenario("one question broken", Behaviour(broken=1)),
    ),
}


def scenarios(task: str, wanted: list[str]) -> tuple[Scenario, ...]:
    """Scenarios of a task whose names contain one of ``wanted``, all if it is empty. Raises BadInput for none."""
    if task not in SCENARIOS:
        raise BadInput(f"There is no rehearsal of {task!r}; there is one of {', '.join(SCENARIOS)}.")
    found = tuple(s for s in SCENARIOS[task] if not wanted or any(word in s.name for word in wanted))
    if not found:
        raise BadInput(f"No scenario is called {wanted[0]!r}; there are {', '.join(s.name for s in SCENARIOS[task])}.")
    return found


@dataclass(frozen=True)
class Trial:
    """One run from end to end and how long it took."""

    judgement: Judgement
    seconds: float


def trial(task: str, profile: str, scenario: Scenario, number: int, folder: Path) -> Trial:
    """Serve, run and judge once, with fresh draws. ``folder`` is the golden folder."""
    from dsv4_conformance.accuracy.simulator.loading import known_questions
    from dsv4_conformance.accuracy.simulator.server import Server, in_thread

    behaviour = replace(scenario.behaviour, stream=FIRST_STREAM + number)
    questions, _ = known_questions([task], behaviour)
    started = time.monotonic()
    with in_thread(Server(questions, behaviour)) as url, tempfile.TemporaryDirectory() as answers:
        judgement = judgement_of(url, behaviour.model, task, profile, folder, Path(answers), quiet=True, seed=SEED)
    return Trial(judgement, time.monotonic() - started)


def rehearse(task: str, profile: str, scenario: Scenario, trials: int, folder: Path) -> Iterator[Trial]:
    """``trials`` trials, one after the other."""
    for number in range(trials):
        yield trial(task, profile, scenario, number, folder)


def rates(found: list[Trial]) -> Rates:
    """How the trials ended. Raises BadInput if one could not be compared: the golden is of another version."""
    verdicts = [one.judgement.verdict for one in found]
    for one in found:
        if one.judgement.verdict == Verdict.INVALID:
            raise BadInput(f"A trial cannot be compared with the golden: {'; '.join(one.judgement.invalid)}.")
    passes = sum(one.judgement.passes for one in found) / len(found)
    return Rates(len(found), verdicts.count(Verdict.PASS), verdicts.count(Verdict.FAIL), passes)
