"""The kill matrix in a report: which re-created public bugs a profile's cases reject, read from a file or a journal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4_conformance.errors import BadInput
from dsv4_conformance.report import escaping
from dsv4_conformance.report.gathering import Gathered, by_id
from dsv4_conformance.report.measured import mapping

_ID = ("id", "fault", "name")
_TITLE = ("title", "mechanism", "meaning", "summary")
_BY = ("detections", "by", "killed_by", "requirements")
_CAUGHT = ("killed", "caught", "rejected")
SCHEMA = "dsv4-faults/1"
"""Schema of the journal that ``dsv4-conformance faults`` writes."""
CONTROL = "control"
"""The trial of the unchanged implementation; it is no fault."""


@dataclass(frozen=True)
class FaultRow:
    """One fault: ``breaks``: the requirement that has to fail on it; ``by``: requirements that did; ``caught``: whether
    it was rejected, None where that was not told."""

    id: str
    title: str
    area: str
    breaks: str
    by: tuple[str, ...]
    caught: bool | None
    url: str
    note: str


@dataclass(frozen=True)
class FaultTable:
    """The faults of one file or run; those that were not rejected come first. ``gaps``: sentences on what the trials
    lack to show anything; ``remarks``: on what they were and were not asked for."""

    source: str
    rows: tuple[FaultRow, ...]
    gaps: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def caught(self) -> int:
        """How many were rejected."""
        return sum(row.caught is True for row in self.rows)

    @property
    def columns(self) -> list[str]:
        """Requirements that rejected any of them."""
        return sorted({rule for row in self.rows for rule in row.by}, key=by_id)


def read_faults(path: Path) -> FaultTable:
    """A kill matrix: the faults.jsonl of ``dsv4-conformance faults``, or JSON (a list, or an object with ``faults``).

    A fault has ``id`` and should have ``title``, ``area``, ``breaks`` (a requirement), ``detections`` (or ``by``:
    requirements, or objects with ``requirement``) and ``problem`` (or ``killed``). Raises BadInput for anything else.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadInput(
            f"The faults {path} cannot be read ({error.strerror}); give what `dsv4-conformance faults` wrote."
        ) from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            raise BadInput(f"The faults {path} are neither JSON nor JSON lines; give a kill matrix.") from None
    found = value.get("faults") if isinstance(value, dict) else value
    if isinstance(found, dict):
        found = [{"id": name, **mapping(told)} for name, told in found.items()]
    rows = _rows(found) if isinstance(found, list) else ()
    if not rows:
        raise BadInput(f"The faults {path} hold no object with an `id`; give a kill matrix.")
    gaps, remarks = _told(found) if isinstance(found, list) else ((), ())
    return FaultTable(escaping.name(path.name), rows, gaps, remarks)


def _told(lines: list[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Gaps and remarks of a journal of ``dsv4-conformance faults``; of another kill matrix nothing is known."""
    header = mapping(lines[0]) if lines else {}
    if header.get("schema") != SCHEMA:
        return (), ()
    gaps, remarks = [], []
    tried = [str(line.get("id")) for line in map(mapping, lines) if line.get("kind") == "outcome"]
    wanted, known = header.get("wanted"), header.get("known")
    if not any(mapping(line).get("kind") == "footer" for line in lines):
        of = f" of {len(wanted)}" if isinstance(wanted, list) else ""
        gaps.append(f"The trials did not end: {len(set(tried) - {CONTROL})}{of} faults were tried.")
    control = next((line for line in map(mapping, lines) if line.get("id") == CONTROL), None)
    if control is None:
        gaps.append("The unchanged implementation was not tried, so that no rejection shows anything.")
    elif problem := control.get("problem"):
        gaps.append(f"No rejection shows anything: {escaping.line(str(problem), 300)}.")
    if isinstance(wanted, list) and isinstance(known, int) and len(wanted) < known:
        remarks.append(f"{known} faults are known; {known - len(wanted)} of them were not asked for.")
    remarks.append(f"Profile {escaping.name(str(header.get('profile', '?')))}.")
    return tuple(gaps), tuple(remarks)


def of_journals(gathered: Gathered) -> list[FaultTable]:
    """The faults that results of the journals tell of in ``record.fault``."""
    return [
        FaultTable(escaping.name(run.label), _rows(mapping(result.record.get("fault")) for result in run.faults))
        for run in gathered.runs
        if run.faults
    ]


def _rows(values: Iterable[Any]) -> tuple[FaultRow, ...]:
    rows = [_row(value) for value in values if isinstance(value, Mapping) and _first(value, _ID) not in ("", CONTROL)]
    return tuple(sorted(rows, key=lambda row: (row.caught is not False, row.area, row.id)))


def _row(value: Mapping[str, Any]) -> FaultRow:
    by = next((value[key] for key in _BY if isinstance(value.get(key), Sequence | Mapping)), ())
    names = [str(mapping(entry).get("requirement", "")) if isinstance(entry, dict) else str(entry) for entry in by]
    rules = tuple(dict.fromkeys(escaping.name(name) for name in names if name)) if not isinstance(by, str) else (by,)
    caught = next((bool(value[key]) for key in _CAUGHT if isinstance(value.get(key), bool)), None)
    problem = value.get("problem")
    if isinstance(problem, str):
        caught = not problem
    urls = value.get("urls")
    url = str(value.get("url") or (urls[0] if isinstance(urls, list) and urls else ""))
    return FaultRow(
        id=escaping.name(_first(value, _ID)),
        title=escaping.line(_first(value, _TITLE), 300),
        area=escaping.name(str(value.get("area", ""))),
        breaks=escaping.name(str(value.get("breaks", ""))),
        by=rules,
        caught=bool(rules) if caught is None and by else caught,
        url=url if url.startswith(("https://", "http://")) else "",
        note=escaping.line(str(problem or value.get("note") or ""), 300),
    )


def _first(value: Mapping[str, Any], keys: Sequence[str]) -> str:
    return next((str(value[key]) for key in keys if isinstance(value.get(key), str | int)), "")
