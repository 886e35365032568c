"""What a new golden says of the old one it replaces: the paired verdict that goes into the changelog."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dsv4_conformance.accuracy.golden_record import Golden
from dsv4_conformance.accuracy.stats import difference, t_quantile

NAMED = 8


def differing(old: Golden, new: Golden) -> list[str]:
    """Fields that keep two goldens from being paired question by question."""
    found = [name for name in ("task", "endpoint") if getattr(old, name) != getattr(new, name)]
    keys = sorted(old.fingerprint.keys() | new.fingerprint.keys())
    found += [f"fingerprint.{key}" for key in keys if old.fingerprint.get(key) != new.fingerprint.get(key)]
    return found + (["items"] if set(old.items) != set(new.items) else [])


def change(old: Golden, new: Golden) -> str:
    """Old to new in a few sentences: scores, difference with its interval, questions lost and gained.

    Where the goldens were not asked the same way, the fields are named and, if the questions are the same, the
    difference is told all the same: it is then of engine and question together.
    """
    fields = differing(old, new)
    told = f"Old to new: {_scored(old)} to {_scored(new)}."
    if fields:
        told += f" Not asked the same way: {', '.join(fields)}."
    if set(old.items) != set(new.items):
        return f"{told} Other questions, so that nothing can be paired."
    rows = {row.item: row for row in new.rows}
    before = old.counts("correct")
    after = np.array([rows[item].correct for item in old.items], dtype=np.int64)
    d = difference(before, old.runs, after, new.runs)
    half = t_quantile(0.975, len(before) - 1) * float(d.se)
    mean = float(d.mean)
    low, high = max(-1.0, mean - half), min(1.0, mean + half)
    told += f" {100 * mean:+.2f} points, 95 % interval {100 * low:+.2f} to {100 * high:+.2f}"
    moved = after / new.runs - before / old.runs
    lost, gained = np.flatnonzero(moved <= -0.5), np.flatnonzero(moved >= 0.5)
    return f"{told}; {_questions('lost', old, lost)}; {_questions('gained', old, gained)}."


def _scored(golden: Golden) -> str:
    return f"{100 * golden.score:.2f} % in {golden.runs} passes"


def _questions(word: str, golden: Golden, places: NDArray[np.int64]) -> str:
    if not len(places):
        return f"none {word}"
    named = ", ".join(golden.items[i] for i in places[:NAMED])
    more = f" and {len(places) - NAMED} more" if len(places) > NAMED else ""
    return f"{len(places)} {word} ({named}{more})"
