"""Many attention cases judged in one process, one ahead: while the device works on the oracle of a case, the host
builds the next. For long streams (rate measurement, soak); suite tests judge case by case (subject.py)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase
from dsv4_conformance.cases.problem import problem_of
from dsv4_conformance.errors import ConformanceFailure
from dsv4_conformance.implementations.api import Implementation
from dsv4_conformance.numerics.compare import Compared, Verdict, read_verdicts, summarise
from dsv4_conformance.numerics.discrimination import Margins, start_margins
from dsv4_conformance.numerics.truth import truth_of
from dsv4_conformance.runner.execute import convention_of, returned_outputs, run_guarded
from dsv4_conformance.runner.subject import SCRATCH


@dataclass(frozen=True)
class Judged:
    """One case of a stream: its verdicts, or the sentence of a call that broke its contract; margins if asked for."""

    case: AttentionCase
    verdicts: list[Verdict]
    broken: str | None
    margins: Margins

    def failures(self) -> list[str]:
        """One sentence per wrong output; empty where the case passed."""
        return [self.broken] if self.broken else [v.sentence() for v in self.verdicts if not v.passed]


@dataclass(frozen=True)
class _Pending:
    case: AttentionCase
    pairs: list[Compared]
    summary: Tensor
    margins: Callable[[], Margins]

    def read(self) -> Judged:
        return Judged(self.case, read_verdicts(self.pairs, self.summary), None, self.margins())


def judge_stream(
    implementation: Implementation, device: torch.device, cases: Iterable[AttentionCase], margins: bool = False
) -> Iterator[Judged]:
    """Judge ``cases`` in order, guards included. Memory holds two cases at a time.

    NotApplicable and memory errors pass through; a ContractViolation or ConformanceFailure becomes ``broken``.
    """
    pending: _Pending | None = None
    for case in cases:
        call = build(case, device)
        # The device still works on the oracle of the case before; read later, its verdict would wait for this case too.
        if pending is not None:
            yield pending.read()
            pending = None
        try:
            outputs = run_guarded(implementation, call)
        except ConformanceFailure as failure:
            yield Judged(case, [], str(failure), {})
            continue
        problem = problem_of(call)
        truth = truth_of(problem, SCRATCH[device.type])
        names = returned_outputs(call, convention_of(implementation, case.surface))
        pairs: list[Compared] = [
            (n, getattr(outputs, n), getattr(truth.answer, n), getattr(truth.budgets, n)) for n in names
        ]
        later = start_margins(problem, truth, outputs=names) if margins else dict
        pending = _Pending(case, pairs, summarise(pairs), later)
    if pending is not None:
        yield pending.read()
