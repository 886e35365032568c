"""Values made fit for JSON and for xdist's wire: builtin types only, non-finite numbers spelled out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Any

from dsv4_conformance.texts import clean


def json_safe(value: Any) -> Any:
    """``value`` with NaN and infinities as "nan", "inf", "-inf", tuples and sets as lists, scalars of numpy or torch as
    numbers, dataclasses as dicts, and anything else as its text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return json_safe(value.value)
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {clean(str(key)): json_safe(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return json_safe(asdict(value))
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    if isinstance(value, set | frozenset):
        return [json_safe(item) for item in sorted(value, key=str)]
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return json_safe(value.item())
    return clean(str(value))
