"""Cases as JSON and back: what failures found by `soak` are kept as, and what fixed cases are read from. Torch-free."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from dsv4_conformance.cases import families  # noqa: F401  imports the modules of every class of cases
from dsv4_conformance.cases.case import Case
from dsv4_conformance.errors import BadInput


def to_data(case: Case) -> dict[str, Any]:
    """A case as JSON-able data: the name of its class and the fields that differ from their defaults; cases within it
    likewise."""
    data: dict[str, Any] = json.loads(case.canonical())
    for field in fields(case):  # type: ignore[arg-type]
        inner = getattr(case, field.name)
        if isinstance(inner, Case):
            data[field.name] = to_data(inner)
    return data


def from_data(data: Mapping[str, Any]) -> Case:
    """The case that ``to_data`` described. Raises BadInput, naming the field, for anything else."""
    kind = str(data.get("kind", ""))
    # Whoever derives a class of the same name elsewhere does not change what a file means.
    known = {cls.__name__: cls for cls in _classes(Case) if cls.__module__.startswith(f"{__package__}.")}
    if kind not in known:
        raise BadInput(f"There is no kind of case {kind!r}; a case's kind is one of {', '.join(sorted(known))}.")
    case = _built(known[kind], {name: value for name, value in data.items() if name != "kind"})
    assert isinstance(case, Case)
    return case


def _classes(base: type) -> Iterator[type]:
    subclasses: list[type] = base.__subclasses__()
    for cls in subclasses:
        yield cls
        yield from _classes(cls)


def _built(cls: type, given: Mapping[str, Any]) -> Any:
    hints = get_type_hints(cls)
    unknown = sorted(set(given) - {field.name for field in fields(cls)})
    if unknown:
        raise BadInput(f"A {cls.__name__} has no field {unknown[0]!r}; it was written by another version.")
    try:
        return cls(**{name: _value(hints[name], value) for name, value in given.items()})
    except TypeError as error:
        raise BadInput(f"A {cls.__name__} cannot be made of {dict(given)}: {error}.") from None


def _value(hint: Any, given: Any) -> Any:
    """``given``, read from JSON, as a field of type ``hint`` holds it: tuples were lists, cases were mappings."""
    if isinstance(given, Mapping):
        if "kind" in given:
            return from_data(given)
        choices = [one for one in _members(hint) if is_dataclass(one)]
        for one in choices:
            if set(given) <= {field.name for field in fields(one)}:
                return _built(one, given)  # type: ignore[arg-type]
        raise BadInput(f"{dict(given)} is none of {', '.join(getattr(one, '__name__', str(one)) for one in choices)}.")
    if isinstance(given, list):
        inner = next((get_args(one)[0] for one in _members(hint) if get_origin(one) is tuple), Any)
        return tuple(_value(inner, part) for part in given)
    return given


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
