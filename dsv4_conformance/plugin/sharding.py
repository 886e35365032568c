"""Parts of a plan that take about equally long, the same on every machine that knows the same durations."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from dsv4_conformance.plugin.journal import read_journal
from dsv4_conformance.status import Status

Row = tuple[str, str, str, str]
"""(case_id, requirement, surface, nodeid), as collected."""
Durations = Mapping[tuple[str, str], float]
"""(case_id, surface) -> seconds."""
UNKNOWN_S = 1.0
CASE_S = 0.005
"""What any case costs beside its own time."""


def durations_of(path: Path | None) -> Durations:
    """Durations that a journal has recorded, {} for None. Raises BadInput if it is no journal."""
    if path is None:
        return {}
    return {(r.case_id, r.surface): r.duration_s for r in read_journal(path).results if r.status is not Status.NOT_RUN}


def digest(durations: Durations) -> str:
    """SHA-256 of durations, "" for none: shards fit only if they were cut with the same ones."""
    if not durations:
        return ""
    lines = sorted(f"{case_id} {surface} {seconds:.6f}" for (case_id, surface), seconds in durations.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def split(rows: Sequence[Row], count: int, durations: Durations) -> list[list[Row]]:
    """``count`` parts of the plan, each in the plan's order: the longest case first to whoever has the least to do.

    A case of unknown duration is taken to be as long as its requirement's others are on average.
    """
    known: dict[str, list[float]] = defaultdict(list)
    for case_id, requirement, surface, _ in rows:
        if (case_id, surface) in durations:
            known[requirement].append(durations[case_id, surface])
    everything = [seconds for found in known.values() for seconds in found]

    def seconds_of(row: Row) -> float:
        found = known[row[1]] or everything
        average = sum(found) / len(found) if found else UNKNOWN_S
        return CASE_S + durations.get((row[0], row[2]), average)

    loads = [0.0] * count
    chosen: dict[Row, int] = {}
    for row in sorted(rows, key=lambda row: (-seconds_of(row), row[0], row[2], row[3])):
        least = min(range(count), key=lambda part: (loads[part], part))
        chosen[row] = least
        loads[least] += seconds_of(row)
    return [[row for row in rows if chosen[row] == part] for part in range(count)]
