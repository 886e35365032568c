"""A journal read line by line, anew for every pass: what is kept in memory does not grow with its records.

plugin.journal.read_journal holds everything; reports of a million lines cannot.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.journal import (
    SCHEMA,
    SURROGATE,
    Footer,
    Header,
    Line,
    PlanEntry,
    Result,
    Start,
    coding,
    refuse_second,
)
from dsv4_conformance.plugin.jsonsafe import json_safe
from dsv4_conformance.plugin.options import Options
from dsv4_conformance.status import QUALIFYING, Status

_LINE: TypeAdapter[Header | Start | Result | Footer] = TypeAdapter(Line)
_ENTRY = TypeAdapter(PlanEntry)
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
GAP = "The run ended without a result of this case."


class JournalFile:
    """A journal on disk. ``header`` is without its plan, of which ``plan()`` gives the ``planned`` entries.

    ``lines``: of the file; ``torn``: the last one was cut off; ``missing``: planned cases without a result;
    ``unplanned``: results that the plan does not have; ``repeated``: result lines that a later one replaces.
    """

    def __init__(self, path: Path | str) -> None:
        """Read the file once. Raises BadInput if it cannot be read, is no journal, or is damaged inside."""
        self.path = Path(path)
        self.footer: Footer | None = None
        self.torn = False
        self.lines = 0
        self._replaced: set[int] = set()
        self._have: dict[int, int] = {}
        text = self._first_line()
        fields, self._plan_at = _without_plan(self.path, text)
        self.header = self._parse_header(fields)
        self.planned = 0
        missing = 0
        self._index()
        planned: set[int] = set()
        for entry in self._entries(text):
            self.planned += 1
            place = _digest(entry.nodeid)
            planned.add(place)
            missing += place not in self._have
        self.missing = missing
        self.unplanned = len(self._have.keys() - planned)
        self.repeated = len(self._replaced)

    def plan(self) -> Iterator[PlanEntry]:
        """The planned cases, in order."""
        yield from self._entries(self._first_line())

    def results(self) -> Iterator[Result]:
        """The result of every case, in order of arrival: one per nodeid, the last one; then NOT_RUN for each gap."""
        for number, line in self._parsed():
            if isinstance(line, Result) and number not in self._replaced:
                yield line
        if self.missing:
            run = Options(impl=self.header.implementation.requested, profile=self.header.profile, seed=self.header.seed)
            for entry in self.plan():
                if _digest(entry.nodeid) not in self._have:
                    yield _gap(entry, run.reproducer(entry.case_id))

    def _index(self) -> None:
        bad: set[int] = set()
        for number, line in self._parsed():
            if self.footer is not None or isinstance(line, Header):
                raise BadInput(
                    f"The journal {self.path} goes on after its end at line {number}; it holds more than one run."
                )
            if isinstance(line, Result):
                place = _digest(line.nodeid)
                if place in self._have:
                    refuse_second(self.path, number, line, place not in bad)
                    self._replaced.add(self._have[place])
                if line.status not in QUALIFYING:
                    bad.add(place)
                self._have[place] = number
            elif isinstance(line, Footer):
                self.footer = line

    def _parsed(self) -> Iterator[tuple[int, Start | Result | Footer | Header]]:
        """(number, line) for every line but the first."""
        for number, raw in self._raw():
            if number == 1 or not raw.strip():
                continue
            try:
                text = raw.decode("utf-8")
                value = json.loads(text)
            except (ValueError, RecursionError) as error:
                # A run that is killed while it writes leaves half a line, and only as the last one.
                if not raw.endswith(b"\n"):
                    self.torn = True
                    return
                raise BadInput(
                    f"The journal {self.path} is damaged at line {number}: it is not {coding(error)}."
                ) from None
            yield number, self._validated(number, json_safe(value) if SURROGATE.search(text) else value)

    def _raw(self) -> Iterator[tuple[int, bytes]]:
        try:
            with self.path.open("rb") as file:
                for number, raw in enumerate(file, 1):
                    self.lines = max(self.lines, number)
                    yield number, raw
        except OSError as error:
            raise BadInput(
                f"The journal {self.path} cannot be read ({error.strerror}); give a journal.jsonl of a run."
            ) from None

    def _first_line(self) -> str:
        raw = next((raw for _, raw in self._raw()), b"")
        if not raw:
            raise BadInput(f"The journal {self.path} is empty; give the journal.jsonl of a run.")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(f"The journal {self.path} is damaged at line 1: it is not {coding(error)}.") from None

    def _entries(self, text: str) -> Iterator[PlanEntry]:
        for value in _elements(text, self._plan_at) if self._plan_at is not None else ():
            try:
                yield _ENTRY.validate_python(value)
            except ValidationError as error:
                raise BadInput(f"The journal {self.path} is damaged at line 1: plan: {_told(error)}.") from None

    def _parse_header(self, fields: dict[str, Any]) -> Header:
        if fields.get("kind") != "header" or "schema" not in fields:
            raise BadInput(f"{self.path} is no journal: its first line is no header; give the journal.jsonl of a run.")
        if fields["schema"] != SCHEMA:
            raise BadInput(
                f"The journal {self.path} has schema {fields['schema']!r} and this version reads {SCHEMA!r}; use the "
                "dsv4-conformance version that wrote it."
            )
        line = self._validated(1, json_safe(fields))
        assert isinstance(line, Header)
        return line

    def _validated(self, number: int, value: Any) -> Start | Result | Footer | Header:
        try:
            return _LINE.validate_python(value)
        except ValidationError as error:
            raise BadInput(f"The journal {self.path} is damaged at line {number}: {_told(error)}.") from None


def _told(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _digest(nodeid: str) -> int:
    return int.from_bytes(hashlib.blake2b(nodeid.encode("utf-8", "replace"), digest_size=8).digest())


def _gap(entry: PlanEntry, reproducer: str) -> Result:
    return Result(
        case_id=entry.case_id,
        requirement=entry.requirement,
        surface=entry.surface,
        nodeid=entry.nodeid,
        status=Status.NOT_RUN,
        reason=GAP,
        record={},
        duration_s=0.0,
        worker="",
        reproducer=reproducer,
    )


def _without_plan(path: Path, text: str) -> tuple[dict[str, Any], int | None]:
    """The header's fields with an empty plan, and where in ``text`` the plan's list begins."""
    fields: dict[str, Any] = {}
    plan_at = None
    try:
        at = _past(text, 0, "{")
        while text[at] != "}":
            key, at = _DECODER.raw_decode(text, at)
            at = _past(text, at, ":")
            if key == "plan" and text[at] == "[":
                plan_at, fields[key] = at, []
                for _ in (walk := _Walk(text, at)):
                    pass
                at = walk.end
            else:
                fields[key], at = _DECODER.raw_decode(text, at)
            at = _space(text, at)
            at = _past(text, at, ",") if text[at] == "," else at
    except (ValueError, IndexError, RecursionError):
        raise BadInput(f"{path} is no journal: its first line is no header; give the journal.jsonl of a run.") from None
    return fields, plan_at


class _Walk:
    """The elements of a JSON list in a text, one decoded at a time; ``end`` is behind the list afterwards."""

    def __init__(self, text: str, start: int) -> None:
        self.text, self.end = text, _past(text, start, "[")

    def __iter__(self) -> Iterator[Any]:
        text = self.text
        while text[self.end] != "]":
            value, at = _DECODER.raw_decode(text, self.end)
            at = _space(text, at)
            if text[at] not in ",]":
                raise ValueError("a list needs a comma")
            self.end = _past(text, at, ",") if text[at] == "," else at
            yield value
        self.end += 1


def _elements(text: str, start: int) -> Iterator[Any]:
    return iter(_Walk(text, start))


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _past(text: str, at: int, sign: str) -> int:
    at = _space(text, at)
    if text[at] != sign:
        raise ValueError(f"{sign} is missing")
    return _space(text, at + 1)
