"""What a suite test holds: it runs the implementation on calls, judges the outputs, and keeps the record."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase
from dsv4_conformance.cases.problem import problem_of
from dsv4_conformance.errors import ConformanceFailure, ContractViolation
from dsv4_conformance.implementations.api import AttentionConvention, DecodeCall, Implementation
from dsv4_conformance.numerics.budgets import LOGIT_DERIVATION, OUT_DERIVATION
from dsv4_conformance.numerics.compare import Verdict, compare_all, published_rule
from dsv4_conformance.numerics.diagnose import nearest_mutant
from dsv4_conformance.numerics.discrimination import Margins, case_margin, margins
from dsv4_conformance.numerics.state import TensorVerdict, close
from dsv4_conformance.numerics.stored import stored
from dsv4_conformance.numerics.truth import Truth, truth_of
from dsv4_conformance.oracle.kv_format import Floor
from dsv4_conformance.runner.execute import (
    Call,
    Outputs,
    convention_of,
    raised,
    returned_outputs,
    run_guarded,
    surface_of,
)
from dsv4_conformance.runner.opened import Opened, cloned, refusal
from dsv4_conformance.runner.opened import call as guarded_call
from dsv4_conformance.spec.weights import Precision

SCRATCH = {"cpu": 1 << 28, "cuda": 12 << 30}
"""Bytes that the oracle may use at a time, by device type."""


class Subject:
    """The implementation under test, for one case. Methods raise ConformanceFailure with one sentence."""

    def __init__(self, implementation: Implementation, device: torch.device, requirement: str) -> None:
        self.implementation = implementation
        self.device = device
        self.requirement = requirement
        self._checked = False
        self._calls = 0
        self._verdicts: dict[str, Verdict | TensorVerdict] = {}
        self._published: dict[str, Any] = {}
        self._margins: Margins | None = None
        self._notes: dict[str, Any] = {}

    def restart(self) -> None:
        """Go on with an implementation made anew, for this case alone: nothing is left of what other cases did to it.

        Raises ConformanceFailure if it cannot be made a second time.
        """
        made = type(self.implementation)
        try:
            self.implementation = made(self.device.type)
        except Exception as error:
            told = raised(f"Adapter {made.identity.name!r}", error)
            raise ConformanceFailure(f"{told.rstrip('.')}, when it was constructed a second time.") from error

    def build(self, case: AttentionCase) -> Call:
        """The tensors of an attention case, on this worker's device."""
        return build(case, self.device)

    def convention(self, surface: str) -> AttentionConvention:
        """The adapter's declaration for an attention surface."""
        return convention_of(self.implementation, surface)

    def truth(self, call: Call) -> Truth:
        """The float64 answer to ``call`` and its budgets."""
        return truth_of(problem_of(call), SCRATCH[self.device.type])

    def run(self, call: Call, plan: Any = None) -> Outputs:
        """Run the implementation, under a scheduler plan if given; guards and declarations are checked, values not."""
        self._calls += 1
        return run_guarded(self.implementation, call, plan)

    def judge(self, call: Call, expected: Truth | None = None, heads: slice = slice(None)) -> Outputs:
        """Run ``call`` and compare every output with ``expected`` (default: the oracle on this very call).

        ``expected`` lets a relation be judged: the answer to one call, compared with the output of another. Only
        ``heads`` are compared. Returns the outputs. The first judged call also yields the discrimination margins.
        """
        outputs = self.run(call)
        truth = expected if expected is not None else self.truth(call)
        self.compare(call, outputs, truth, heads, explain=expected is None)
        if expected is None and heads == slice(None):
            self.mutants_of(call, truth)
        return outputs

    def mutants_of(self, call: Call, truth: Truth) -> None:
        """Record by how much each semantic mutant of ``call`` would be rejected; the first call of a case counts."""
        if self._margins is None:
            names = returned_outputs(call, self.convention(surface_of(call)))
            self._margins = margins(problem_of(call), truth, outputs=names)

    def compare(
        self, call: Call, outputs: Outputs, truth: Truth, heads: slice = slice(None), explain: bool = False
    ) -> None:
        """Judge outputs already taken. Raises ConformanceFailure naming the worst row and head of each wrong output."""
        self._checked = True
        got = outputs.named()
        right = truth.heads(heads)
        wrong = []
        for verdict in compare_all(
            [(n, x[:, heads], getattr(right.answer, n), getattr(right.budgets, n)) for n, x in got.items()]
        ):
            self._keep(verdict)
            if not verdict.passed:
                wrong.append(verdict)
        if not self._published:
            kind = "decode" if isinstance(call, DecodeCall) else "prefill"
            passed, distance = published_rule(kind, outputs.out[:, heads], truth.answer.out[:, heads])
            self._published = {"published_rule_passes": passed, "published_rule_cosine": distance}
        if wrong:
            text = "; ".join(v.sentence() for v in wrong)
            if explain and heads == slice(None):
                near = nearest_mutant(problem_of(call), truth, wrong[0].row, got)
                if near is not None and near.explains:
                    text += f"; the row is what one gets by this mistake: {near.mutant} ({near.meaning})"
            raise ConformanceFailure(f"{text}.")

    def close(
        self,
        name: str,
        got: Any,
        want: Tensor,
        precision: Precision = "float32",
        reference: Tensor | None = None,
        where: str = "",
        row_name: Callable[[int], str] | None = None,
    ) -> None:
        """Fail unless the tensor ``got`` has the shape of ``want`` (float64, the truth) and lies within its budget.

        The budget is numerics.state's; bfloat16 needs ``reference``. In the sentence of a failure ``row_name`` says
        what a row is, and ``where`` ends it.
        """
        if not isinstance(got, Tensor) or got.shape != want.shape:
            given = tuple(got.shape) if isinstance(got, Tensor) else type(got).__name__
            raise ConformanceFailure(f"{name} is {given} where {tuple(want.shape)} is right{where}.")
        self._checked |= want.numel() > 0
        verdict = close(name, got, want, precision, reference)
        self._keep(verdict)
        if not verdict.passed:
            raise ConformanceFailure(f"{verdict.sentence(row_name)}{where}.")

    def stored(self, name: str, got: Tensor, want: Tensor, floor: Floor = "amax_1e-4", where: str = "") -> None:
        """Fail unless cache rows ``got``, dequantised, are what the rounding contract makes of ``want`` float64.

        numerics.stored says which values that leaves; ``where`` ends the sentence of a failure.
        """
        self._checked |= want.numel() > 0
        verdict = stored(name, got, want, floor)
        self._keep(verdict)
        if not verdict.passed:
            raise ConformanceFailure(f"{verdict.sentence()}{where}.")

    def _keep(self, verdict: Verdict | TensorVerdict) -> None:
        kept = self._verdicts.get(verdict.output)
        if kept is None or verdict.ratio > kept.ratio:
            self._verdicts[verdict.output] = verdict

    def ask(self, method: str, *arguments: Any, writes: tuple[int, ...] = ()) -> Any:
        """Call any surface method; arguments at positions ``writes`` may change, all other tensors must not.

        Raises ConformanceFailure if the adapter raised, ContractViolation if it changed another argument.
        """
        self._counted()
        who = f"{self.implementation.identity.name}.{method}"
        return guarded_call(who, getattr(self.implementation, method), *arguments, writes=writes)

    def open(self, method: str, *arguments: Any) -> Opened:
        """Open a session with a stateful surface's method; the session's own methods are guarded as ``ask`` is.

        The session gets copies of all tensors: what it makes of its weights later cannot reach the oracle's.
        """
        session = self.ask(method, *(cloned(argument) for argument in arguments))
        return Opened(session, f"{self.implementation.identity.name}.{method}()", self._counted)

    def refused(self, method: str, *arguments: Any) -> str:
        """The sentence with which the implementation refuses bad input; ConformanceFailure if it does not."""
        self._counted()
        self._checked = True
        who = f"{self.implementation.identity.name}.{method}"
        return refusal(who, getattr(self.implementation, method), *arguments)

    def _counted(self) -> None:
        self._calls += 1

    def promised(self, method: str, tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """``tensor`` if it has the promised shape and dtype; ContractViolation otherwise."""
        who = f"{self.implementation.identity.name}.{method}"
        if not isinstance(tensor, Tensor):
            raise ContractViolation(f"{who} returned {type(tensor).__name__}; the surface promises a tensor.")
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            given = f"{tuple(tensor.shape)} {tensor.dtype}"
            raise ContractViolation(f"{who} returned {given}; the surface promises {shape} {dtype}.")
        return tensor

    def margins(self, found: Margins) -> None:
        """Record the discrimination margins of a case that no judged attention call provides."""
        self._margins = found

    def same_bits(self, one: Outputs, other: Outputs, what: str, heads: slice | Tensor = slice(None)) -> None:
        """Fail unless two runs agree bit for bit (on ``heads``)."""
        self._checked = True
        second = other.heads(heads).named()
        for name, a in one.heads(heads).named().items():
            differs = _bits(a) != _bits(second[name])
            if bool(differs.any()):
                place = torch.nonzero(differs)[0].tolist()
                count = int(differs.sum())
                raise ConformanceFailure(f"{name} differs in {count} elements, first at {place}, {what}.")

    def expect(self, holds: bool | Tensor, sentence: str) -> None:
        """Fail with ``sentence`` unless ``holds``."""
        self._checked = True
        if not bool(holds):
            raise ConformanceFailure(sentence)

    def note(self, **values: Any) -> None:
        """Add JSON-able values to the record's metrics."""
        self._notes.update(values)

    def record(self) -> dict[str, Any]:
        """The case's record for the journal."""
        found = self._margins or {}
        why = {n: v.derivation for n, v in self._verdicts.items() if isinstance(v, TensorVerdict)}
        if len(why) < len(self._verdicts):
            why |= {"out": OUT_DERIVATION, "lse": LOGIT_DERIVATION}
        return {
            "checked": self._checked,
            "status_hint": "PASS",
            "reason": "",
            "metrics": {
                **{f"{n}_ratio": v.ratio for n, v in self._verdicts.items()},
                **{f"{n}_error": v.error for n, v in self._verdicts.items()},
                **self._published,
                **self._notes,
            },
            "budget": {
                **{n: v.budget for n, v in self._verdicts.items()},
                **({"derivation": why} if why else {}),
            },
            "margins": found,
            "margin": case_margin(found),
            "calls": self._calls,
        }


def _bits(x: Tensor) -> Tensor:
    """The bit pattern as integers; NaN equals the same NaN, -0 differs from 0."""
    return x.contiguous().view(torch.int16 if x.element_size() == 2 else torch.int32)
