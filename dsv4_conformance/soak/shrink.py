"""Looks for the smallest case that still fails, over the parameters of any kind of case. Torch-free.

Greedy, and bounded by a number of tries: of all cases that are one step simpler, the first that fails is taken, and so
on. A step makes one number smaller, drops one entry of a tuple, takes one option away, or makes one choice its default.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dsv4_conformance.cases.case import Case
from dsv4_conformance.cases.schedule import steps
from dsv4_conformance.cases.schedule_rules import check_schedule
from dsv4_conformance.cases.shorter import shorter
from dsv4_conformance.errors import BadInput

TRIES = 200
SECONDS = 90.0
"""A layer takes a second per try."""
KEPT = ("surface", "kind")
"""Fields that say what a case is, and not how large it is."""
SIMPLE: dict[str, tuple[Any, ...]] = {
    "data": ("normal",),
    "sink": ("none", "finite"),
    "holes": ("none",),
    "poison": ("none",),
    "lengths": ("none", "full"),
    "precision": ("float32",),
    "path": ("auto", "paged"),
    "fill": ("zero",),
    "geometry": ("tiny",),
}
"""Choices from the simplest on; other fields of a few values try their default."""
SMALLEST: dict[str, int] = {
    "seed": 0,
    "rank": 0,
    "padding": 0,
    "padded_rows": 0,
    "spare_pages": 0,
    "scale_bits": 0,
    "capacity": 0,
}
"""Numbers that may be 0; all others are counts of something, and at least 1."""
FIXED_NUMBERS = {"page_size": (64, 1), "h_q": (1, 8, 64), "n_heads": (8, 64), "padded": (64,), "dim": (128,)}
"""Numbers that are taken from a menu, the simplest first."""
WHOLE = ("ratio", "hidden", "index_topk", "tp")
"""Numbers that are left as they are: another value is another thing."""


def shrink(case: Case, fails: Callable[[Case], bool], tries: int = TRIES) -> tuple[Case, int]:
    """The simplest case found that fails, ``case`` itself included, and how many were tried."""
    seen = {case.canonical()}
    left, deadline = tries, time.monotonic() + SECONDS
    current = case
    while left > 0 and time.monotonic() < deadline:
        for candidate in simpler(current):
            if candidate.canonical() in seen:
                continue
            seen.add(candidate.canonical())
            left -= 1
            if fails(candidate):
                current = candidate
                break
            if left <= 0 or time.monotonic() >= deadline:
                break
        else:
            break
    return current, tries - left


def simpler(case: Case) -> Iterator[Case]:
    """Cases that are one step simpler, the largest steps first."""
    hints = get_type_hints(type(case))
    yield from _shorter_tuples(case)
    for field in fields(case):  # type: ignore[arg-type]
        if field.name in KEPT:
            continue
        value = getattr(case, field.name)
        for other in _smaller(field, hints[field.name], value, case):
            if other != value:
                yield replace(case, **{field.name: other})  # type: ignore[type-var]


def _smaller(field: Field[Any], hint: Any, value: Any, case: Case) -> Iterator[Any]:
    if field.name == "schedule":
        yield from shorter(value, case.surface)
        yield from _without_a_sequence(value, case.surface)
    elif is_dataclass(value) and not isinstance(value, type):
        if field.default is None:
            yield None
        yield from simpler(value)  # type: ignore[arg-type]
    elif isinstance(value, bool):
        yield False
    elif isinstance(value, int):
        yield from _numbers(field.name, value)
    elif isinstance(value, tuple):
        yield from _smaller_entries(value)
    elif field.name in SIMPLE and (get_origin(hint) is Literal or isinstance(value, str)):
        choices = SIMPLE[field.name]
        allowed = get_args(hint) if get_origin(hint) is Literal else choices
        for choice in choices[: choices.index(value)] if value in choices else choices:
            if choice in allowed:
                yield choice
    elif field.default is not MISSING and isinstance(value, str):
        yield field.default


def _without_a_sequence(schedule: str, surface: str) -> Iterator[str]:
    """The schedule without one of its sequences, from the first step to the last."""
    parsed = steps(schedule)
    for gone in sorted({sequence for step in parsed for sequence, _ in step.parts} | {step.target for step in parsed}):
        left = []
        for step in parsed:
            parts = tuple(part for part in step.parts if part[0] != gone)
            if step.target != gone and (parts or not step.parts):
                left.append(replace(step, parts=parts))
        text = " ".join(step.text() for step in left)
        try:
            check_schedule(text, surface)
        except BadInput:
            continue
        yield text


def _numbers(name: str, value: int) -> Iterator[int]:
    if name in WHOLE:
        return
    if name in FIXED_NUMBERS:
        menu = FIXED_NUMBERS[name]
        yield from menu[: menu.index(value)] if value in menu else menu
        return
    low = SMALLEST.get(name, 1)
    if value <= low:
        return
    if name == "seed":
        yield from (seed for seed in range(3) if seed < value)
        return
    below = [low, low + 1, low + 2, value // 4, value // 2, value - 64, value - 4, value - 1]
    yield from dict.fromkeys(n for n in below if low <= n < value)


def _shorter_tuples(case: Case) -> Iterator[Case]:
    """Without one entry; tuples of one length describe the same requests, and lose it together."""
    tuples = {f.name: getattr(case, f.name) for f in fields(case)}  # type: ignore[arg-type]
    tuples = {name: value for name, value in tuples.items() if isinstance(value, tuple)}
    lengths = {len(value) for value in tuples.values()}
    for place in range(max(lengths)) if len(lengths) == 1 and max(lengths) > 1 else ():
        yield replace(case, **{name: v[:place] + v[place + 1 :] for name, v in tuples.items()})  # type: ignore[type-var]


def _smaller_entries(value: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for place, entry in enumerate(value):
        if isinstance(entry, int) and not isinstance(entry, bool):
            for smaller in _numbers("", entry):
                yield (*value[:place], smaller, *value[place + 1 :])
