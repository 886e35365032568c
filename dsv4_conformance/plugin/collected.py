"""What a collecting process found, as it travels from a worker to the controller."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class CollectedPlan:
    """What a process collected: rows (case_id, requirement, surface, nodeid), and what it left out and why.

    ``seen``: requirements of which a test was collected. ``deselected``: cases per requirement that were taken out
    on the command line. ``unknown``: ids of --dsv4-case that no collected test has. ``problem``: the sentence that
    keeps the run from beginning, "" if nothing does. ``elsewhere``: rows of other shards, which ``durations`` (their
    digest) has balanced. ``unmatched``: ids of waivers that match no case of any profile.
    """

    rows: list[tuple[str, str, str, str]] = field(default_factory=list)
    not_selected: dict[str, str] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    deselected: dict[str, int] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    problem: str = ""
    elsewhere: list[tuple[str, str, str, str]] = field(default_factory=list)
    durations: str = ""
    unmatched: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write for the controller."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> CollectedPlan:
        """What a worker wrote."""
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rows = {name: [tuple(row) for row in values[name]] for name in ("rows", "elsewhere")}
        return cls(**{**values, **rows})
