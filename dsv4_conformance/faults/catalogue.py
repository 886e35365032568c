"""All faults: every module of models is imported once."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from functools import cache

from dsv4_conformance.errors import BadInput
from dsv4_conformance.faults.fault import Fault, registered

AREAS = (
    "sinks_and_heads",
    "lists_and_rows",
    "graphs",
    "gathers",
    "compressor",
    "indexer",
    "selection",
    "visibility",
    "batches",
    "kv_pages",
    "config",
    "dispatch",
    "formats",
    "formulas",
    "planner",
    "prefix_reuse",
)
"""Modules of this package that hold models."""


@cache
def all_faults() -> Mapping[str, Fault]:
    """Every fault by id, in the order of ids."""
    for area in AREAS:
        importlib.import_module(f"dsv4_conformance.faults.{area}")
    found = registered()
    return {name: found[name] for name in sorted(found)}


def get_fault(name: str) -> Fault:
    """The fault of this id. Raises BadInput with the nearest ones."""
    faults = all_faults()
    if name not in faults:
        near = difflib.get_close_matches(name, faults, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise BadInput(f"There is no fault {name!r}: {hint}`dsv4-conformance faults --list` shows them all.")
    return faults[name]


def chosen(names: Iterable[str]) -> list[Fault]:
    """The faults of these ids, all without any; an entry's id names all of its models. Raises BadInput."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return list(all_faults().values())
    found: dict[str, Fault] = {}
    for name in wanted:
        models = [fault for key, fault in all_faults().items() if key[:3] == name] or [get_fault(name)]
        found |= {fault.id: fault for fault in models}
    return list(found.values())
