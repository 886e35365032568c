"""Offsets are exact wherever a pool reaches, and sizes follow what is held and nothing else (INV-140 to INV-142)."""

from collections.abc import Sequence

from dsv4_conformance.cases.extent_case import FormulaCase
from dsv4_conformance.cases.extent_inputs import points
from dsv4_conformance.errors import ContractViolation, NotApplicable
from dsv4_conformance.implementations.extent_api import FormulaConvention
from dsv4_conformance.oracle import formulas as definition
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

FORMULA = ("Formula",)


def _values(subject: Subject, case: FormulaCase) -> tuple[list[tuple[int, ...]], list[int]]:
    """Points of the case and what the implementation gives there."""
    convention = subject.implementation.surfaces["Formula"]
    assert isinstance(convention, FormulaConvention)
    if case.name not in convention.formulas:
        raise NotApplicable(f"the adapter declares that it does not evaluate {case.name}.")
    where = points(case, convention.pool_bytes)
    got = subject.ask("formula", case.name, where)
    whole = isinstance(got, Sequence) and len(got) == len(where) and all(isinstance(value, int) for value in got)
    if not whole:
        raise ContractViolation(f"formula({case.name!r}) returned no list of {len(where)} whole numbers.")
    return where, list(got)


@requirement("INV-140", on=FORMULA, cases="formula_offsets")
def test_offsets_are_exact_over_the_whole_pool(subject: Subject, case: FormulaCase) -> None:
    """INV-140: on both sides of 2^31, 2^32 and 2^34 bytes and of 2^24 units, and at the last place of the pool."""
    where, got = _values(subject, case)
    for point, value in zip(where, got, strict=True):
        right = definition.EXACT[case.name](*point)
        subject.expect(value == right, f"{case.name}{point} is {value} and not {right}, off by {value - right}.")


@requirement("INV-141", on=FORMULA, cases="formula_sizes")
def test_sizes_follow_what_is_held(subject: Subject, case: FormulaCase) -> None:
    """INV-141: pages and gathers grow with the tokens by a fixed step; window and state do not grow at all."""
    where, got = _values(subject, case)
    for point, value in zip(where, got, strict=True):
        if case.name == "window_bytes":
            low, high = definition.window_bytes(point[0])
            subject.expect(low <= value <= high, f"window_bytes{point} is {value}, not from {low} to {high}.")
        elif case.name == "state_rows":
            low = definition.least_state_rows(point[0])
            subject.expect(value >= low, f"state_rows{point} is {value}; a request needs {low}.")
        elif case.name == "query_bytes":
            low, _ = definition.query_bytes(*point)
            grows = value >= low and value % point[0] == 0
            subject.expect(grows, f"query_bytes{point} is {value}, no multiple of its rows, or below {low}.")
        else:
            right = definition.EXACT[case.name](*point)
            fits = value == right or (case.name == "workspace_rows" and point[0] > 0 and value == max(right, 1))
            subject.expect(fits, f"{case.name}{point} is {value} and not {right}.")
    if case.name == "window_bytes":
        grown = {value for point, value in zip(where, got, strict=True) if point[0] >= 512}
        subject.expect(max(grown) <= definition.window_bytes(512)[1], "the window grows with the context.")
    if case.name == "state_rows":
        for ratio in (4, 128):
            sizes = {value for point, value in zip(where, got, strict=True) if point[0] == ratio and point[1] >= 128}
            subject.expect(len(sizes) == 1, f"state of ratio {ratio} has {len(sizes)} sizes: it follows the length.")


@requirement("INV-142", on=FORMULA, cases="formula_sizes")
def test_sizes_know_nothing_of_capacity_or_of_other_ranks(subject: Subject, case: FormulaCase) -> None:
    """INV-142 (SHOULD): the same request under page tables for 4,096 to 1,048,576 tokens gathers as many rows, and
    queries take the bytes of the heads that a rank's kernel is called with, not of all heads."""
    where, got = _values(subject, case.with_(name="workspace_rows"))
    rows: dict[tuple[int, ...], set[int]] = {}
    for (ratio, _, tokens, new), value in zip(where, got, strict=True):
        rows.setdefault((ratio, tokens, new), set()).add(value)
    for request, found in rows.items():
        subject.expect(len(found) == 1, f"{request} (ratio, tokens, new) gathers {sorted(found)} rows, by capacity.")
    for point, value in zip(*_values(subject, case.with_(name="query_bytes")), strict=True):
        most = definition.query_bytes(*point)[1]
        subject.expect(value <= most, f"queries of {point} (rows, heads, tp) take {value} bytes; {most} are enough.")
