"""What came of a fault's trial, and what a matrix of trials says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from pydantic import BaseModel, ConfigDict

from dsv4_conformance.faults.fault import Symptom

CONTROL = "control"
"""Id of the trial of the unchanged built-in implementation."""


class Detection(BaseModel):
    """The first failing case of one requirement. ``raised``: the implementation raised, which was all that was seen."""

    model_config = ConfigDict(frozen=True)
    requirement: str
    case_id: str
    surface: str
    folder: str
    reason: str
    raised: bool
    seconds: float


class Outcome(BaseModel):
    """One trial. ``lost``: why the process that ran it is gone ("" if it ended), ``at``: the case it was in."""

    id: str
    title: str = ""
    area: str = ""
    mechanism: str = ""
    breaks: str = ""
    symptom: Symptom = "wrong"
    detections: list[Detection] = []
    seconds: float = 0.0
    cases: int = 0
    lost: str = ""
    at: str = ""

    @property
    def requirements(self) -> list[str]:
        """Requirements that failed, as they were found."""
        return [found.requirement for found in self.detections]

    @property
    def first(self) -> Detection | None:
        """The first failing case of the requirement that the fault must break."""
        return next((found for found in self.detections if found.requirement == self.breaks), None)

    @property
    def problem(self) -> str:
        """Why this outcome is none to be content with, "" if it is one."""
        if self.id == CONTROL:
            broken = f"{self.requirements[0]}: {self.detections[0].reason}" if self.detections else self.lost
            return f"the unchanged implementation fails {broken}" if broken else ""
        if self.lost:
            return f"it was caught by a crash only: {self.lost} in case {self.at or '?'}"
        if not self.detections:
            return "it survives"
        if self.first is None:
            return f"{self.breaks}, which it must break, holds; {', '.join(self.requirements)} failed"
        if self.symptom == "wrong" and self.first.raised:
            return f"{self.breaks} was broken by an exception only, and the public bug gave wrong answers"
        return ""

    @property
    def reproducer(self) -> str:
        """The command that re-runs the first failing case alone."""
        return "" if self.first is None else f"dsv4-conformance repro {self.first.case_id} --impl fault:{self.id}"


class Matrix(BaseModel):
    """All trials of one run under one profile. ``stopped``: each ended when the requirement to be broken had failed, so
    that nothing is known of the others."""

    profile: str
    stopped: bool = False
    outcomes: list[Outcome]
    seconds: float
    workers: int
    started: str
    version: str
    packages: dict[str, str]
    command: str

    @property
    def faults(self) -> list[Outcome]:
        """Trials of faults, the control left out."""
        return [outcome for outcome in self.outcomes if outcome.id != CONTROL]

    @property
    def problems(self) -> list[str]:
        """What fails the matrix, a sentence each."""
        return [f"{outcome.id}: {outcome.problem}." for outcome in self.outcomes if outcome.problem]

    @property
    def median_seconds(self) -> float:
        """Median time from the start of a trial to the first failing case of the requirement that must break."""
        return median([o.first.seconds for o in self.faults if o.first is not None] or [0.0])

    def only_by_requirement(self) -> dict[str, list[str]]:
        """Requirement -> faults that no other requirement rejects."""
        return _only(self.faults, lambda found: found.requirement)

    def only_by_folder(self) -> dict[str, list[str]]:
        """Suite folder -> faults that no other folder rejects."""
        return _only(self.faults, lambda found: found.folder)

    def caught_by_folder(self) -> dict[str, int]:
        """Suite folder -> number of faults that it rejects."""
        counts: dict[str, int] = {}
        for outcome in self.faults:
            for folder in {found.folder for found in outcome.detections}:
                counts[folder] = counts.get(folder, 0) + 1
        return counts


def _only(outcomes: Sequence[Outcome], part: Callable[[Detection], str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for outcome in outcomes:
        places = {part(detection) for detection in outcome.detections}
        if len(places) == 1:
            found.setdefault(places.pop(), []).append(outcome.id)
    return found
