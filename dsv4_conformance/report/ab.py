"""Two builds of one kernel on the same cases: which bits differ, how far each is from float64, which is faster.

Each build answers in a process of its own; a third one, this, judges both with the same oracle. Times are taken in the
order A B B A, so that a clock which drifts favours neither.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase
from dsv4_conformance.cases.plan import PlannedCase, expand
from dsv4_conformance.cases.problem import problem_of
from dsv4_conformance.cases.profiles import get_profile
from dsv4_conformance.cli.suite_functions import suite_functions
from dsv4_conformance.numerics.compare import compare_all
from dsv4_conformance.numerics.truth import truth_of
from dsv4_conformance.report.ab_process import SideProcess
from dsv4_conformance.runner.subject import SCRATCH

SURFACES = ("SparseDecode", "SparsePrefill")


@dataclass(frozen=True)
class Bits:
    """How one output differs between the builds. ``far``: largest difference in absolute terms, NaN and infinities
    apart; ``ulps``: largest distance in representable numbers of the output's type."""

    differing: int
    total: int
    far: float
    ulps: int


@dataclass
class Compared:
    """One case. ``statuses``, ``reasons``, ``errors`` (output -> budgets) and ``seconds`` are those of A and B."""

    id: str
    surface: str
    label: str
    statuses: tuple[str, str]
    reasons: tuple[str, str] = ("", "")
    errors: tuple[dict[str, float], dict[str, float]] = field(default_factory=lambda: ({}, {}))
    bits: dict[str, Bits] = field(default_factory=dict)
    seconds: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    @property
    def both(self) -> bool:
        """Whether both builds answered."""
        return bool(self.errors[0]) and bool(self.errors[1])

    @property
    def differing(self) -> int:
        """Elements of all outputs whose bits differ."""
        return sum(found.differing for found in self.bits.values())

    @property
    def ratio(self) -> float | None:
        """Time of B over time of A, medians; None if it was not taken."""
        one, other = self.seconds
        return statistics.median(other) / statistics.median(one) if one and other else None

    @property
    def noise(self) -> tuple[float, float] | None:
        """The same of the quartiles, against each other: the ratio is hardly known better than this."""
        one, other = self.seconds
        if len(one) < 2 or len(other) < 2:
            return None
        (low, _, high), (least, _, most) = (statistics.quantiles(times, n=4) for times in (one, other))
        return least / high, most / low

    @property
    def faster(self) -> bool | None:
        """Whether B is faster beyond noise; None if nobody can tell."""
        noise = self.noise
        if noise is None or noise[0] <= 1 <= noise[1]:
            return None
        return noise[1] < 1


def attention_cases(profile: str, seed: int, surfaces: Sequence[str]) -> list[PlannedCase]:
    """The different attention cases of a profile, each under the first id that has it. Raises BadInput."""
    chosen = get_profile(profile)
    found: dict[str, PlannedCase] = {}
    for function in suite_functions():
        wanted = any(surface in surfaces for surface in function.spec.surfaces)
        for planned in expand(function.spec, function.name, chosen, seed) if wanted else ():
            if planned.surface in surfaces and isinstance(planned.case, AttentionCase):
                found.setdefault(f"{planned.surface} {planned.case.canonical()}", planned)
    return list(found.values())


def compare(
    sides: tuple[SideProcess, SideProcess],
    cases: Sequence[PlannedCase],
    repeats: int,
    told: Callable[[int, Compared], None] = lambda number, found: None,
) -> Iterator[Compared]:
    """Run every case on both builds and judge the answers. ``repeats``: timed calls of each build, 0 for none."""
    device = torch.device("cuda" if all(side.hello["kind"] == "cuda" for side in sides) else "cpu")
    with tempfile.TemporaryDirectory(prefix="dsv4-ab-") as folder:
        for number, planned in enumerate(cases, 1):
            found = _compare(sides, planned, repeats, device, Path(folder))
            told(number, found)
            yield found


def _compare(
    sides: tuple[SideProcess, SideProcess], planned: PlannedCase, repeats: int, device: torch.device, folder: Path
) -> Compared:
    case = planned.case.canonical()
    paths = [folder / side.mark for side in sides]
    answers = [
        side.ask({"do": "run", "case": case, "path": str(path)}) for side, path in zip(sides, paths, strict=True)
    ]
    outputs: list[dict[str, Tensor]] = [
        torch.load(path, weights_only=True) if answer["status"] == "ok" else {}
        for path, answer in zip(paths, answers, strict=True)
    ]
    errors, failures = _judge(planned.case, outputs, device)
    statuses = [
        str(answer["status"]) if answer["status"] != "ok" else "FAIL" if wrong else "PASS"
        for answer, wrong in zip(answers, failures, strict=True)
    ]
    reasons = [str(answer.get("reason", "")) or wrong for answer, wrong in zip(answers, failures, strict=True)]
    found = Compared(
        id=planned.case_id,
        surface=planned.surface,
        label=planned.case.label(),
        statuses=(statuses[0], statuses[1]),
        reasons=(reasons[0], reasons[1]),
        errors=(errors[0], errors[1]),
        bits=_bits(*outputs),
    )
    if found.both and repeats:
        for place in (0, 1, 1, 0):
            answer = sides[place].ask({"do": "time", "case": case, "repeats": max(1, repeats // 2)})
            found.seconds[place].extend(answer.get("seconds", ()))
    return found


def _judge(
    case: Any, outputs: Sequence[dict[str, Tensor]], device: torch.device
) -> tuple[list[dict[str, float]], list[str]]:
    """Errors in budgets and the sentence of what is wrong, for each build."""
    if not any(outputs):
        return [{} for _ in outputs], ["" for _ in outputs]
    truth = truth_of(problem_of(build(case, device)), SCRATCH[device.type])
    errors, failures = [], []
    for given in outputs:
        right = [
            (name, tensor.to(device), getattr(truth.answer, name), getattr(truth.budgets, name))
            for name, tensor in given.items()
        ]
        verdicts = compare_all(right) if right else []
        errors.append({verdict.output: verdict.ratio for verdict in verdicts})
        failures.append("; ".join(verdict.sentence() for verdict in verdicts if not verdict.passed))
    return errors, failures


def _bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, Bits]:
    return {name: bits_between(one[name], other[name]) for name in one if name in other}


def bits_between(one: Tensor, other: Tensor) -> Bits:
    """How two tensors of equal shape and type (bf16 or fp32) differ, bit for bit; equal NaNs are equal."""
    kind = torch.int16 if one.element_size() == 2 else torch.int32
    a, b = (tensor.contiguous().view(kind).to(torch.int64) for tensor in (one, other))
    differs = a != b
    count = int(differs.sum())
    if not count:
        return Bits(0, one.numel(), 0.0, 0)
    finite = differs & one.isfinite() & other.isfinite()
    distance = (one.double() - other.double()).abs()[finite]
    # Sign and magnitude become one scale, on which neighbours are 1 apart and -0 is 0.
    sign = 1 << (8 * one.element_size() - 1)
    a, b = (torch.where(x < 0, -(x + sign), x) for x in (a, b))
    ulps = (a - b).abs()[finite]
    far = float(distance.max()) if distance.numel() else math.inf
    return Bits(count, one.numel(), far, int(ulps.max()) if ulps.numel() else -1)
