"""What a fault is: one public bug as an implementation that differs from the built-in one in that one place."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from dsv4_conformance.faults.accounting import Entry, entry
from dsv4_conformance.implementations.api import Identity, Implementation

FAULT_ID = re.compile(r"([A-Z]\d{2})([a-z]?)")
"""A catalogue entry, and a letter where one entry has several models (S02, S02b)."""

Symptom = Literal["wrong", "raises"]
C = TypeVar("C", bound=type[Implementation])


@dataclass(frozen=True)
class Fault:
    """One model of a public bug.

    ``breaks``: the requirement that must fail on it; others may. ``surfaces``: those whose answers it can change; cases
    of no other surface are run on it. ``symptom``: "raises" where the real bug is an exception (a shape assertion, a
    refused launch); everything else must be caught by a wrong answer. ``implementation``: the adapter class.
    """

    id: str
    breaks: str
    surfaces: tuple[str, ...]
    implementation: type[Implementation]
    symptom: Symptom = "wrong"

    @property
    def entry(self) -> Entry:
        """The catalogue's entry: title, sources and engines."""
        return entry(self.id[:3])

    @property
    def area(self) -> str:
        """The module of the fault, such as "sinks_and_heads"."""
        return self.implementation.__module__.rpartition(".")[2]

    @property
    def mechanism(self) -> str:
        """What the model does, in a sentence: the docstring of its class."""
        return " ".join((self.implementation.__doc__ or "").split())


_REGISTERED: dict[str, Fault] = {}


def registered() -> dict[str, Fault]:
    """Faults of the modules that were imported so far, by id."""
    return _REGISTERED


def fault(
    fault_id: str, *, breaks: str, on: tuple[str, ...] | str | None = None, symptom: Symptom = "wrong"
) -> Callable[[C], C]:
    """Register an adapter class as the model ``fault_id``; ``on``: its surfaces, by default the class's ``touches``.

    Raises ValueError for an id that is no fault's, is taken, or whose entry is not accounted for.
    """
    if FAULT_ID.fullmatch(fault_id) is None:
        raise ValueError(f"{fault_id!r} is no fault id; one looks like S01 or S01b.")
    if fault_id in _REGISTERED:
        raise ValueError(f"there are two faults {fault_id}.")
    found = entry(fault_id[:3])

    def register(cls: C) -> C:
        surfaces = getattr(cls, "touches", ()) if on is None else (on,) if isinstance(on, str) else on
        if not surfaces or not set(surfaces) <= set(cls.surfaces):
            raise ValueError(f"fault {fault_id} touches {surfaces}, not all of which {cls.__name__} offers.")
        told = (found.title, f"a public bug re-created on purpose: {cls.__name__}")
        identity = Identity(f"fault:{fault_id}", cls.identity.version, found.urls[0], kind="engine", notes=told)
        cls.identity = identity
        _REGISTERED[fault_id] = Fault(fault_id, breaks, tuple(surfaces), cls, symptom)
        return cls

    return register
