"""What a result's record says, read without trusting its form: errors in budgets, margins, numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SUFFIX = "_ratio"
LIMIT = 1.0
"""The largest error that passes, in budgets."""
REQUIRED_MARGIN = 3.0
"""From here on a known mistake counts as rejected, in budgets."""
ERROR_DECADES = (-3, 2)
MARGIN_DECADES = (0, 6)
BINS_PER_DECADE = 6


def number(value: Any) -> float | None:
    """A number of the journal, where "nan", "inf" and "-inf" stand for themselves; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return None


def mapping(value: Any) -> Mapping[str, Any]:
    """``value`` if it is an object of JSON, else an empty one."""
    return value if isinstance(value, dict) else {}


def ratios(record: Mapping[str, Any]) -> dict[str, float]:
    """Output -> its worst error in budgets. NaN counts as infinite: it passes nothing."""
    found = {}
    for key, value in mapping(record.get("metrics")).items():
        ratio = number(value) if key.endswith(SUFFIX) else None
        if ratio is not None:
            found[key.removesuffix(SUFFIX)] = math.inf if math.isnan(ratio) else ratio
    return found


def worst(found: Mapping[str, float]) -> float | None:
    """The largest of the ratios."""
    return max(found.values(), default=None)


def margins(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(known mistake, by how many budgets its best output is rejected)."""
    for mistake, outputs in mapping(record.get("margins")).items():
        values = [v for value in mapping(outputs).values() if (v := number(value)) is not None and not math.isnan(v)]
        if values:
            yield mistake, max(values)


def bin_of(value: float, decades: tuple[int, int]) -> int:
    """Which bin of a logarithmic axis ``value`` falls into; the first and the last hold what lies beyond."""
    last = (decades[1] - decades[0]) * BINS_PER_DECADE - 1
    if not value > 0:
        return 0
    if math.isinf(value):
        return last
    return min(max(math.floor((math.log10(value) - decades[0]) * BINS_PER_DECADE), 0), last)


def told(value: float | None) -> str:
    """A number for a table: three digits, "" for none."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return "∞" if value > 0 else str(value)
    if value == 0 or 0.01 <= abs(value) < 100:
        return f"{value:.2f}"
    return f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.1e}"


def rounded(value: float | None, digits: int = 4) -> float | str | None:
    """For JSON: a few significant digits, non-finite numbers as in the journal."""
    if value is None:
        return None
    return float(f"{value:.{digits}g}") if math.isfinite(value) else str(value)


def median(values: Sequence[float]) -> float:
    """The median of a non-empty sequence."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
