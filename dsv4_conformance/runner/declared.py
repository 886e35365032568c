"""Whether what a layer case asks for lies within what the adapter declares for AttentionLayer."""

from __future__ import annotations

from dataclasses import replace

import torch

from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.schedule import BATCHES, Step, steps
from dsv4_conformance.errors import NotApplicable
from dsv4_conformance.implementations.state_api import LayerConvention
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.weights import LayerSpec

DROWNING = 60.0
"""A sink that leaves nothing of the keys, for adapters without +inf: e**-50 of their weight, at the logits of cases."""


def layer_convention(subject: Subject) -> LayerConvention:
    """The adapter's declaration for AttentionLayer."""
    convention = subject.implementation.surfaces["AttentionLayer"]
    assert isinstance(convention, LayerConvention)
    return convention


def fitted(subject: Subject, case: LayerCase) -> LayerCase:
    """``case`` in the precision and storage that the adapter declares, where it does not offer the case's own: what an
    engine serves in one flavour is tested in that one. Raises NotApplicable outside the rest of the declaration."""
    convention = layer_convention(subject)
    if case.precision not in convention.precisions:
        case = case.with_(precision=convention.precisions[0])
    if case.quantised not in convention.quantised:
        case = case.with_(quantised=convention.quantised[0])
    check_declared(subject, case)
    return case


def check_declared(subject: Subject, case: LayerCase) -> None:
    """Raise NotApplicable if ``case`` lies outside what the adapter declares for AttentionLayer."""
    convention = layer_convention(subject)
    for what, given, declared in (
        ("precision", case.precision, convention.precisions),
        ("quantised", case.quantised, convention.quantised),
        ("ratio", case.ratio, convention.ratios),
        ("tp", case.tp, convention.tp),
        ("path", case.path, ("auto", *convention.paths) if convention.paths else None),
    ):
        if declared is not None and given not in declared:
            raise NotApplicable(f"{what} {given} is not among the declared {declared}.")
    if case.workspace_rows and not convention.budgets:
        raise NotApplicable("the adapter declares that its prefills take as many workspace rows as they need.")
    _check_schedule(convention, case.schedule)


def need_paths(subject: Subject, *paths: str) -> None:
    """Raise NotApplicable unless prefills can be sent on each of these paths."""
    convention = layer_convention(subject)
    missing = [path for path in paths if path not in convention.paths]
    if missing:
        raise NotApplicable(f"the adapter declares no {missing[0]} path.")


def need_padded_rows(subject: Subject) -> None:
    """Raise NotApplicable unless steps can have rows that belong to nobody."""
    if not layer_convention(subject).padded_rows:
        raise NotApplicable("the adapter declares that its steps have no rows of nobody.")


def within_sinks(convention: LayerConvention, spec: LayerSpec) -> LayerSpec:
    """``spec`` with sinks that the adapter takes: where it declares no +inf, one that leaves nothing of the keys."""
    sink = spec.weights.attn_sink
    if convention.infinite_sinks or not bool(torch.isposinf(sink).any()):
        return spec
    finite = torch.where(torch.isposinf(sink), DROWNING, sink)
    return replace(spec, weights=replace(spec.weights, attn_sink=finite))


def _check_schedule(convention: LayerConvention, schedule: str) -> None:
    lengths: dict[int, int] = {}
    together: set[int] = set()
    for step in steps(schedule):
        if step.kind in BATCHES:
            if convention.lockstep and lengths and not _whole(step, together):
                raise NotApplicable(f"step {step.text()!r} does not take as many tokens of each of {sorted(together)}.")
            together |= {sequence for sequence, _ in step.parts}
            for sequence, count in step.parts:
                lengths[sequence] = lengths.get(sequence, 0) + count
        elif step.kind == "keep":
            for sequence, length in step.parts:
                dropped, lengths[sequence] = lengths[sequence] - length, length
                if dropped > convention.lookback:
                    raise NotApplicable(
                        f"takes back {dropped} tokens; the adapter declares a lookback of {convention.lookback}."
                    )
        elif step.kind == "fork":
            ((source, length),) = step.parts
            whole = convention.forks == "at the end" and length == lengths[source]
            if convention.forks != "anywhere" and not whole:
                raise NotApplicable(
                    f"shares {length} of {lengths[source]} tokens; the adapter declares forks {convention.forks}."
                )
            lengths[step.target] = length
        elif step.kind == "release":
            for sequence, _ in step.parts:
                del lengths[sequence]
            together = set()  # a batch that lost one does not go on


def _whole(step: Step, together: set[int]) -> bool:
    """Whether a batch takes as many tokens of each sequence that shares its cache."""
    return {sequence for sequence, _ in step.parts} == together and len({count for _, count in step.parts}) == 1
