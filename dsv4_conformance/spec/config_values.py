"""Typed reading of single values of a config.json; every refusal is one sentence naming the field and the remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dsv4_conformance.errors import BadInput

LIMIT = 2**63
"""No integer of a config reaches it."""


def missing(*names: str) -> BadInput:
    """The error for fields that are absent or null."""
    if len(names) == 1:
        return BadInput(f"{names[0]} is missing; add it to the config.json (it is never guessed).")
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return BadInput(f"{listed} are missing; add them to the config.json (they are never guessed).")


def required(name: str, config: Mapping[str, Any]) -> Any:
    """Value of a field. Raises BadInput if it is absent or null."""
    value = config.get(name)
    if value is None:
        raise missing(name)
    return value


def integer(name: str, value: Any) -> int:
    """A positive integer. Raises BadInput for anything else, ``True`` and ``512.0`` included."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"{name} is {shown(value)}; write a positive integer.")
    if value >= LIMIT:
        raise BadInput(f"{name} is {shown(value)}; write a positive integer below 2**63.")
    return value


def number(name: str, value: Any) -> float:
    """A positive finite number. Raises BadInput for anything else."""
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and 0 < float(value) < math.inf:
            return float(value)
    except OverflowError:  # an integer beyond float64
        pass
    raise BadInput(f"{name} is {shown(value)}; write a positive finite number.")


def shown(value: Any) -> str:
    """``repr`` of a value that was refused, cut to 60 characters; Python refuses to spell out the longest integers."""
    try:
        text = repr(value)
    except ValueError:
        return "an integer of thousands of digits"
    return text if len(text) <= 60 else f"{text[:60]}..."


def listing(name: str, value: Any) -> Sequence[Any]:
    """A list or tuple. Raises BadInput for anything else, strings included."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise BadInput(f"{name} is a {kind(value)}; write a list with one entry per layer.")
    return value


def mapping(name: str, value: Any, content: str) -> Mapping[str, Any]:
    """A JSON object. Raises BadInput for anything else; ``content`` says what belongs into it."""
    if not isinstance(value, Mapping):
        raise BadInput(f"{name} is a {kind(value)}; write an object with {content}.")
    return value


def agree(name: str, spelled: Mapping[str, Any]) -> Any:
    """The one value of a constant that may be spelled in several places, given by dotted name.

    Raises BadInput if there is none, or if two differ: engines read different spellings.
    """
    if not spelled:
        raise missing(name)
    (first, value), *rest = spelled.items()
    for other, second in rest:
        if second != value:
            raise BadInput(
                f"{first} and {other} disagree ({shown(value)} and {shown(second)}); engines read either, so make them "
                "equal."
            )
    return value


def kind(value: Any) -> str:
    """What JSON calls the type of ``value``."""
    names = {dict: "object", list: "list", str: "string", bool: "boolean", int: "number", float: "number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
