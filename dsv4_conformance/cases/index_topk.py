"""Indexer cases for engines that select one number of entries only: the same schedules, as many tokens further on."""

from __future__ import annotations

from dataclasses import replace

from dsv4_conformance.cases.compressor_case import IndexerCase, TopkCase
from dsv4_conformance.cases.schedule import BATCHES, Step, steps
from dsv4_conformance.spec.geometry import GEOMETRIES, Geometry


def geometry_of(case: IndexerCase) -> Geometry:
    """The case's geometry, with the number of entries that the case selects."""
    geometry = GEOMETRIES[case.geometry]
    return replace(geometry, index_topk=case.topk) if case.topk else geometry


def with_topk(case: IndexerCase, topk: int) -> IndexerCase:
    """``case`` with ``topk`` entries selected.

    Where that is more than before, every sequence first takes as many tokens more, so that what the schedule does still
    happens around the token that first has to choose.
    """
    further = 4 * (topk - geometry_of(case).index_topk)
    if further > 0:
        case = case.with_(schedule=_further(case.schedule, further))
    return case.with_(topk=topk)


def rows_with_topk(case: TopkCase, topk: int) -> TopkCase:
    """``case`` with ``topk`` entries selected, from rows that are wider by as much."""
    return case.with_(topk=topk, width=case.width + topk - case.topk)


def _further(schedule: str, tokens: int) -> str:
    living: set[int] = set()
    found: list[Step] = []
    for step in steps(schedule):
        numbers = [sequence for sequence, _ in step.parts]
        if step.kind in BATCHES:
            found += [Step("prefill", ((number, tokens),)) for number in numbers if number not in living]
            living |= set(numbers)
        elif step.kind == "keep":
            step = replace(step, parts=tuple((sequence, length + tokens) for sequence, length in step.parts))
        elif step.kind == "release":
            living -= set(numbers)
        found.append(step)
    return " ".join(step.text() for step in found)
