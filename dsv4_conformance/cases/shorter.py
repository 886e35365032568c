"""Schedules a little shorter than a given one. Hypothesis takes wishes out and lowers one number at a time; left to try
are steps that one wish made together, and sums. Torch-free, and without Hypothesis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from dsv4_conformance.cases.schedule import BATCHES, Step, steps
from dsv4_conformance.cases.schedule_rules import check_schedule
from dsv4_conformance.errors import BadInput

COUNTS = (1, 2, 3, 4, 5, 7, 8, 127, 128, 255)


def shorter(schedule: str, surface: str) -> Iterator[str]:
    """Schedules that can be run on ``surface``: without a step, without a shared prefix, with two prefills in one, or
    with fewer tokens in one."""
    parsed = steps(schedule)
    for changed in (*_without_a_step(parsed), *_without_a_prefix(parsed), *_merged(parsed), *_smaller(parsed)):
        text = " ".join(step.text() for step in changed)
        try:
            check_schedule(text, surface)
        except BadInput:
            continue
        yield text


def _without_a_step(parsed: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    for place, step in enumerate(parsed):
        rest = parsed[place + 1 :]
        for sequence, count in step.parts if step.kind in BATCHES else ():
            rest = tuple(_lowered(rest, sequence, count))
        yield (*parsed[:place], *rest)


def _without_a_prefix(parsed: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    for place, step in enumerate(parsed):
        if step.kind == "fork":
            rest = _lowered(parsed[place + 1 :], step.target, step.parts[0][1] - 1)
            yield (*parsed[:place], Step("prefill", ((step.target, 1),)), *rest)


def _merged(parsed: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """Prefills that follow each other in one."""
    for place, (one, other) in enumerate(pairwise(parsed)):
        if one.kind == other.kind == "prefill":
            counts = dict(one.parts)
            for sequence, count in other.parts:
                counts[sequence] = counts.get(sequence, 0) + count
            both = Step("prefill", tuple(counts.items()), max(one.padding, other.padding))
            yield (*parsed[:place], both, *parsed[place + 2 :])


def _smaller(parsed: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """Fewer tokens in one part of a prefill; later steps take back as many tokens as before."""
    for place, step in enumerate(parsed):
        for sequence, count in step.parts if step.kind == "prefill" else ():
            for fewer in COUNTS:
                if fewer < count:
                    less = replace(step, parts=tuple((s, fewer if s == sequence else n) for s, n in step.parts))
                    yield (*parsed[:place], less, *_lowered(parsed[place + 1 :], sequence, count - fewer))


def _lowered(parsed: tuple[Step, ...], sequence: int, by: int) -> Iterator[Step]:
    """The steps with the lengths that ``sequence`` is cut to lowered, until it is released."""
    for step in parsed:
        if step.kind == "release" and sequence in dict(step.parts):
            by = 0
        if step.kind == "keep":
            step = replace(step, parts=tuple((s, max(0, n - by) if s == sequence else n) for s, n in step.parts))
        yield step
