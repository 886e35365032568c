"""The journal's lines (schema "dsv4-journal/1") and its reader. docs/journal.md describes them for other programs.

One JSON object per line: a header, one result per case as it arrives, a footer. Every report is derived from it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.jsonsafe import json_safe
from dsv4_conformance.status import QUALIFYING, Status

SCHEMA = "dsv4-journal/1"
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Half a character, which JSON can spell and no file can hold."""


class _Line(BaseModel):
    # Within a schema version fields are only added, so an older reader ignores what it does not know.
    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


class PlanEntry(_Line):
    """One planned case. ``nodeid`` is unique in a journal; ``case_id`` names the same case in every run."""

    case_id: str
    requirement: str
    surface: str
    nodeid: str


class NotSelected(_Line):
    """What the profile, an option or the device left out of the plan, and why."""

    what: str
    reason: str


class Named(_Line):
    """A requirement of the plan, so that reports need no registry."""

    id: str
    level: Literal["MUST", "SHOULD"]
    title: str


class Gpu(_Line):
    """One visible GPU, as the driver describes it."""

    uuid: str
    name: str
    compute_capability: str
    memory_bytes: int


class Environment(_Line):
    """Where the run took place. ``commit`` is the package's git commit when it runs from a checkout, else empty."""

    python: str
    platform: str
    cpu_count: int
    gpus: list[Gpu]
    driver: str
    packages: dict[str, str]
    commit: str
    modified: bool


class ImplementationRecord(_Line):
    """Identity and declarations of the adapter, as given in the run's options and in its class."""

    requested: str
    identity: dict[str, JsonValue]
    surfaces: dict[str, dict[str, JsonValue]]
    devices: list[str]


class Shard(_Line):
    """Which part of a plan this journal's is. ``elsewhere``: what the other shards run; ``plan_hash``: of the whole;
    ``durations``: SHA-256 of the durations that the parts were balanced with, "" if all cases counted alike."""

    index: int
    count: int
    plan_hash: str
    durations: str = ""
    elsewhere: list[PlanEntry]


class WaiverRecord(_Line):
    """A waiver that a run was given, as in its file; dates as ISO 8601."""

    id: str
    requirement: str
    selector: dict[str, JsonValue]
    issue: str
    owner: str
    opened: str
    expires: str
    kind: Literal["tolerated", "quarantined"]
    reason: str = ""


class Source(_Line):
    """A journal that was merged into this one, and where it was made."""

    run_id: str
    shard: int | None = None
    device: str
    environment: Environment


class Header(_Line):
    """First line: what was to be run, on what, and where.

    ``resumed``: ids of the runs whose results this one has taken over, oldest first. ``partial``: what was taken out of
    the profile on the command line, "" if nothing was; such a run qualifies nothing. ``merged``: where the results of
    a merged journal come from.
    """

    kind: Literal["header"] = "header"
    schema_version: Literal["dsv4-journal/1"] = Field(default="dsv4-journal/1", alias="schema")
    run_id: str
    started: str
    version: str
    command: list[str]
    profile: str
    seed: int
    device: str
    workers: int
    implementation: ImplementationRecord
    environment: Environment
    requirements: list[Named]
    plan: list[PlanEntry]
    plan_hash: str
    not_selected: list[NotSelected]
    partial: str = ""
    shard: Shard | None = None
    resumed: list[str] = []
    merged: list[Source] = []
    waivers: list[WaiverRecord] = []


class Start(_Line):
    """A worker is about to run this case; stands in workers/<worker>.jsonl, never in the journal itself."""

    kind: Literal["start"] = "start"
    case_id: str
    nodeid: str
    time: str
    sanitizer_mark: tuple[str, int] | None = None
    """Under compute-sanitizer: name of the log, and how long it was."""


class Result(_Line):
    """Outcome of one planned case; of two lines for one ``nodeid`` the later counts.

    ``record`` is what the subject measured (metrics, budget, margins, calls), with non-finite numbers as "nan", "inf",
    "-inf"; empty if the case did not get so far. ``reproducer`` re-runs this case alone.
    """

    kind: Literal["result"] = "result"
    case_id: str
    requirement: str
    surface: str
    nodeid: str
    status: Status
    reason: str
    record: dict[str, JsonValue]
    duration_s: float
    worker: str
    reproducer: str
    waiver: str = ""
    """Id of the waiver that made the status what it is."""
    waived_status: Status | None = None
    """What a WAIVED case ended with."""


class Footer(_Line):
    """Last line. A journal without it is of a run that did not end."""

    kind: Literal["footer"] = "footer"
    finished: str
    counts: dict[Status, int]
    requirements: dict[str, Status]
    exit_code: int
    qualifies: bool
    verdict: str
    results_hash: str
    problems: list[str] = []
    """What is wrong with the run as a whole, such as a waiver that has expired; one sentence each."""


Line = Annotated[Header | Start | Result | Footer, Field(discriminator="kind")]
_LINE: TypeAdapter[Header | Start | Result | Footer] = TypeAdapter(Line)


@dataclass(frozen=True)
class Journal:
    """A journal as read. ``results`` holds one result per nodeid, in order of arrival."""

    header: Header
    results: list[Result]
    footer: Footer | None = None
    torn: bool = field(default=False)
    """The last line was cut off."""

    @property
    def truncated(self) -> bool:
        """Whether the run did not come to its end: no footer."""
        return self.footer is None

    def missing(self) -> list[PlanEntry]:
        """Planned cases without a result; they count as NOT_RUN."""
        have = {result.nodeid for result in self.results}
        return [entry for entry in self.header.plan if entry.nodeid not in have]


def plan_hash(plan: Iterable[PlanEntry]) -> str:
    """SHA-256 over the planned case ids and surfaces, in any order: equal for equal plans on any machine."""
    return _digest(f"{entry.case_id} {entry.surface}" for entry in plan)


def results_hash(results: Iterable[Result]) -> str:
    """SHA-256 over case ids and statuses, in any order: equal when two runs gave the same verdicts."""
    return _digest(f"{result.case_id} {result.status}" for result in results)


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def json_schema() -> dict[str, Any]:
    """JSON Schema of one line."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **_LINE.json_schema()}


def read_journal(path: Path | str) -> Journal:
    """The journal at ``path``. A missing footer or a torn last line makes it truncated, not unreadable.

    Raises BadInput if the file cannot be read, is no journal, is of another schema version, or is damaged inside.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"The journal {path} cannot be read ({error.strerror}); give a journal.jsonl of a run."
        ) from None
    objects, torn = _objects(path, content)
    header = _header(path, objects)
    results: dict[str, Result] = {}
    footer = None
    for number, value in objects[1:]:
        line = _line(path, number, value)
        if footer is not None or isinstance(line, Header):
            raise BadInput(f"The journal {path} goes on after its end at line {number}; it holds more than one run.")
        if isinstance(line, Result):
            earlier = results.pop(line.nodeid, None)
            if earlier is not None:
                refuse_second(path, number, line, earlier.status in QUALIFYING)
            results[line.nodeid] = line
        elif isinstance(line, Footer):
            footer = line
    return Journal(header, list(results.values()), footer, torn)


def refuse_second(path: Path, number: int, line: Result, earlier_good: bool) -> None:
    """Raise BadInput for a second result of a case, unless it takes a good one back: a run writes no other."""
    if not earlier_good or line.status in QUALIFYING:
        raise BadInput(
            f"The journal {path} has a second result of {line.case_id} at line {number}, which no run writes; take the "
            "journal as it was written."
        )


def _objects(path: Path, content: bytes) -> tuple[list[tuple[int, Any]], bool]:
    lines = [(number, line) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]
    objects: list[tuple[int, Any]] = []
    for number, line in lines:
        try:
            text = line.decode("utf-8")
            value = json.loads(text)
            objects.append((number, json_safe(value) if SURROGATE.search(text) else value))
        except (ValueError, RecursionError) as error:
            # A run that is killed while it writes leaves half a line, and only as the last one.
            if number == lines[-1][0] and objects and not content.endswith(b"\n"):
                return objects, True
            raise BadInput(f"The journal {path} is damaged at line {number}: it is not {coding(error)}.") from None
    return objects, False


def coding(error: Exception) -> str:
    """What a line is not that could not be read."""
    return "UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"


def _header(path: Path, objects: list[tuple[int, Any]]) -> Header:
    if not objects:
        raise BadInput(f"The journal {path} is empty; give the journal.jsonl of a run.")
    first = objects[0][1]
    if not isinstance(first, dict) or first.get("kind") != "header" or "schema" not in first:
        raise BadInput(f"{path} is no journal: its first line is no header; give the journal.jsonl of a run.")
    if first["schema"] != SCHEMA:
        raise BadInput(
            f"The journal {path} has schema {first['schema']!r} and this version reads {SCHEMA!r}; use the "
            "dsv4-conformance version that wrote it."
        )
    line = _line(path, objects[0][0], first)
    assert isinstance(line, Header)
    return line


def _line(path: Path, number: int, value: Any) -> Header | Start | Result | Footer:
    try:
        return _LINE.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(f"The journal {path} is damaged at line {number}: {where}: {first['msg']}.") from None


def count_statuses(results: Iterable[Result]) -> dict[Status, int]:
    """How many results have each status that occurs, in the order of the statuses' definition."""
    counts = Counter(result.status for result in results)
    return {status: counts[status] for status in Status if counts[status]}
