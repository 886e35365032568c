"""Whether an adapter class declares what the contract allows, and defines what it declares; calls none of it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Literal, get_args, get_origin, get_type_hints

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.api import (
    SURFACE_METHODS,
    AttentionConvention,
    FormatConvention,
    Identity,
    Implementation,
    PlainConvention,
)
from dsv4_conformance.implementations.extent_api import FormulaConvention, PrefixConvention
from dsv4_conformance.implementations.state_api import ChunkCacheConvention, LayerConvention, StateConvention

DEVICES = ("cpu", "cuda")
MAX_HEADS = 128

CONVENTIONS: Mapping[str, type] = {
    "SparseDecode": AttentionConvention,
    "SparsePrefill": AttentionConvention,
    "KVPageFormat": FormatConvention,
    "IndexKeyFormat": FormatConvention,
    "Compressor": StateConvention,
    "Indexer": StateConvention,
    "SparsePrefillChunkCache": ChunkCacheConvention,
    "AttentionLayer": LayerConvention,
    "Formula": FormulaConvention,
    "PrefixReuse": PrefixConvention,
}
"""Convention type per surface; every other surface takes a PlainConvention."""


def check_declarations(name: str, found: object) -> type[Implementation]:
    """``found`` as an adapter class.

    Raises BadInput, in one sentence that begins with the implementation's ``name``, if it is no subclass of
    Implementation, lacks an identity, or declares devices, capabilities or surfaces that are unknown or not defined.
    """
    if not (isinstance(found, type) and issubclass(found, Implementation)):
        raise BadInput(f"implementation {name!r} is {_describe(found)}; derive a class from api.Implementation.")
    for find_problem in (_identity_problem, _devices_problem, _capabilities_problem, _surfaces_problem):
        if problem := find_problem(found):
            raise BadInput(f"implementation {name!r}: class {found.__name__} {problem}.")
    return found


def _describe(found: object) -> str:
    return f"class {found.__name__}, no adapter" if isinstance(found, type) else f"a {type(found).__name__}, no class"


def _identity_problem(cls: type[Implementation]) -> str | None:
    identity = getattr(cls, "identity", None)
    if not isinstance(identity, Identity):
        return "has no identity; declare one with api.Identity(name, version, homepage)"
    empty = [field for field in ("name", "version", "homepage") if not getattr(identity, field)]
    if empty:
        return f"has an identity without {empty[0]}; reports must be able to say what was tested"
    return _literal_problem("identity", identity)


def _devices_problem(cls: type[Implementation]) -> str | None:
    devices: object = cls.devices
    if not isinstance(devices, tuple) or not devices or any(device not in DEVICES for device in devices):
        return f"declares devices {devices!r}; use a tuple of 'cpu', 'cuda' or both"
    return None


def _capabilities_problem(cls: type[Implementation]) -> str | None:
    declared: object = cls.compute_capabilities
    pairs = isinstance(declared, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(part, int) for part in pair) for pair in declared
    )
    return None if pairs else f"declares compute_capabilities {declared!r}; use pairs such as ((9, 0), (10, 0))"


def _surfaces_problem(cls: type[Implementation]) -> str | None:
    surfaces: object = cls.surfaces
    if not isinstance(surfaces, Mapping):
        return f"declares surfaces as a {type(surfaces).__name__}; use a dict of surface name to convention"
    for surface, convention in surfaces.items():
        problem = _surface_problem(cls, surface, convention)
        if problem:
            return problem
    return None


def _surface_problem(cls: type[Implementation], surface: str, convention: object) -> str | None:
    if surface not in SURFACE_METHODS:
        near = difflib.get_close_matches(str(surface), SURFACE_METHODS, n=1)
        hint = f"did you mean {near[0]!r}? They are" if near else "they are"
        return f"declares the unknown surface {surface!r}; {hint} {', '.join(SURFACE_METHODS)}"
    for method in SURFACE_METHODS[surface]:
        if getattr(cls, method, None) in (None, getattr(Implementation, method)):
            return f"declares {surface} and does not define {method}(); define it or withdraw the surface"
    expected = CONVENTIONS.get(surface, PlainConvention)
    if not isinstance(convention, expected):
        given = convention.__name__ if isinstance(convention, type) else type(convention).__name__
        return f"declares {surface} with {given}; it takes an instance of {expected.__name__}"
    return _literal_problem(surface, convention) or _numbers_problem(surface, convention)


def _literal_problem(where: str, declared: object) -> str | None:
    """A field whose value its Literal annotation excludes; dataclasses do not check that themselves."""
    for field, hint in get_type_hints(type(declared)).items():
        value = getattr(declared, field)
        if get_origin(hint) is Literal and value not in get_args(hint):
            return f"declares {where} with {field} {value!r}; use {' or '.join(repr(v) for v in get_args(hint))}"
    return None


_TUPLES = ("h_q", "page_sizes")


def _numbers_problem(surface: str, convention: object) -> str | None:
    ranges = {"h_q": MAX_HEADS, "page_sizes": None, "topk_multiple": None, "granularity": None, "held": None}
    for field, top in ranges.items():
        value = getattr(convention, field, None)
        if value is None:
            continue
        numbers = value if isinstance(value, tuple) else (value,) if field not in _TUPLES else ()
        if not numbers or not all(isinstance(n, int) and 1 <= n <= (top or n) for n in numbers):
            allowed = f"from 1 to {top}" if top else "above zero"
            what = "None or a tuple of numbers" if field in _TUPLES else "a number"
            return f"declares {surface} with {field} {value!r}; use {what} {allowed}"
    return None
