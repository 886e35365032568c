"""Public bugs of DeepSeek-V4 attention, re-created on the built-in implementation, and the matrix of what catches them.

``dsv4_conformance.faults:S01``, or ``fault:S01`` for short, is an implementation like any other: every command takes it
as ``--impl``. docs/faults.md says how faults are made and counted.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """The implementation of the fault called ``name``, as ``module:attr`` looks it up."""
    from dsv4_conformance.faults.catalogue import all_faults

    found = None if name.startswith("_") else all_faults().get(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found.implementation
