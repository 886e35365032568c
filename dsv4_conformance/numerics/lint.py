"""Lint of a profile: every mistake that applies to a requirement's cases must be rejected on one of them by 3 budgets.

The suite functions themselves run on every case, on a subject that computes what is right and the margins, and runs no
implementation: what is measured is exactly what the journal of a run would record.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from dsv4_conformance.cases.plan import PlannedCase
from dsv4_conformance.implementations.api import (
    AttentionConvention,
    Convention,
    DecodeCall,
    FormatConvention,
    Identity,
    Implementation,
)
from dsv4_conformance.numerics.discrimination import Margins, blind_spots
from dsv4_conformance.numerics.truth import Truth
from dsv4_conformance.runner.execute import Call, Outputs
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import ATTENTION

SuiteTest = Callable[[Any, Any], None]


class _Enough(Exception):
    """The margins of a case are known; the rest of the test does not matter here."""


class _Nobody(Implementation):
    """Declares everything and is never called."""

    identity: ClassVar[Identity] = Identity("lint", "0", "https://pypi.org/project/dsv4-conformance/")
    surfaces: ClassVar[dict[str, Convention]] = {
        "SparseDecode": AttentionConvention(topk_multiple=1),
        "SparsePrefill": AttentionConvention(topk_multiple=1),
        "KVPageFormat": FormatConvention(),
        "IndexKeyFormat": FormatConvention(),
    }


class _Measuring(Subject):
    """Stops a test as soon as its margins are recorded, or when it turns to a surface that has none."""

    def run(self, call: Call, plan: Any = None) -> Outputs:
        """Zeros of the right shapes."""
        rows = call.q.shape[0] * call.q.shape[1] if isinstance(call, DecodeCall) else call.q.shape[0]
        shape = (rows, call.q.shape[-2])
        numbers = torch.zeros(shape, device=call.q.device)
        return Outputs(torch.zeros((*shape, 512), dtype=torch.bfloat16, device=call.q.device), numbers, numbers)

    def compare(
        self, call: Call, outputs: Outputs, truth: Truth, heads: slice = slice(None), explain: bool = False
    ) -> None:
        """Every output counts as right."""

    def same_bits(self, one: Outputs, other: Outputs, what: str, heads: slice | Tensor = slice(None)) -> None:
        """Every pair of runs counts as equal."""

    def expect(self, holds: bool | Tensor, sentence: str) -> None:
        """Every expectation counts as met."""

    def ask(self, method: str, *arguments: Any, writes: tuple[int, ...] = ()) -> NoReturn:
        """There is nobody to ask."""
        raise _Enough

    def mutants_of(self, call: Call, truth: Truth) -> None:
        """Measure, and stop."""
        super().mutants_of(call, truth)
        raise _Enough

    def margins(self, found: Margins) -> None:
        """Take the margins of a format case, and stop."""
        super().margins(found)
        raise _Enough

    @property
    def measured(self) -> Margins | None:
        """The margins, None if the test asked for none."""
        return self._margins


@dataclass
class Lint:
    """What was measured. ``margins``: by requirement and surface, one entry per case that has margins."""

    cases: int = 0
    margins: dict[tuple[str, str], list[Margins]] = field(default_factory=dict)

    @property
    def requirements(self) -> list[str]:
        """Requirements with cases, in the order of the plan."""
        return list(dict.fromkeys(requirement for requirement, _ in self.margins))

    def blind(self) -> dict[str, dict[str, float]]:
        """Requirement -> mistakes that apply to its cases and reach 3 budgets on none, with the best margin."""
        found = {r: blind_spots(self._of(r)) for r in self.requirements}
        return {requirement: spots for requirement, spots in found.items() if spots}

    def blind_on_one_surface(self) -> dict[tuple[str, str], dict[str, float]]:
        """The same by requirement and surface, where another surface of the requirement makes up for it."""
        known = self.blind()
        found = {
            key: {m: ratio for m, ratio in blind_spots(cases).items() if m not in known.get(key[0], {})}
            for key, cases in self.margins.items()
        }
        return {key: spots for key, spots in found.items() if spots}

    def unmeasured(self) -> list[tuple[str, str]]:
        """Requirements whose cases on an attention surface gave no margins at all: nothing is known about them."""
        return [key for key, cases in self.margins.items() if key[1] in ATTENTION and not cases]

    def weakest(self) -> tuple[float, str, str] | None:
        """Smallest best margin of any requirement and mistake, in budgets, with both names."""
        best: dict[tuple[str, str], float] = {}
        for (requirement, _), cases in self.margins.items():
            for found in cases:
                for mistake, outputs in found.items():
                    key = (requirement, mistake)
                    best[key] = max(best.get(key, 0.0), *outputs.values())
        return min(((ratio, *key) for key, ratio in best.items()), default=None)

    @property
    def passed(self) -> bool:
        """Whether no requirement is blind, and each is measured."""
        return not self.blind() and not self.unmeasured()

    def _of(self, requirement: str) -> list[Margins]:
        return [found for (name, _), cases in self.margins.items() if name == requirement for found in cases]


def lint_plan(plan: Iterable[tuple[SuiteTest, PlannedCase]], device: torch.device | str) -> Lint:
    """Measure every planned case with its suite function on ``device``."""
    nobody, report = _Nobody(str(device)), Lint()
    for test, planned in plan:
        subject = _Measuring(nobody, torch.device(device), planned.requirement)
        if planned.surface in nobody.surfaces:  # no other surface has margins
            with contextlib.suppress(_Enough):
                test(subject, planned.case)
        report.cases += 1
        cases = report.margins.setdefault((planned.requirement, planned.surface), [])
        if subject.measured is not None:
            cases.append(subject.measured)
    return report
