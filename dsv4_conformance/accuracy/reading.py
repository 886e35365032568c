"""Reading the file of a run, and believing nothing in it: types by schema, edits by the lines' seals, scores again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from dsv4_conformance.accuracy.records import SCHEMA, AccuracyRun, Answer, End, RunHeader, Session, seal
from dsv4_conformance.accuracy.tasks import TASKS, Task
from dsv4_conformance.errors import BadInput

Kind = TypeVar("Kind")
HEADER, ANSWER, SESSION, END = TypeAdapter(RunHeader), TypeAdapter(Answer), TypeAdapter(Session), TypeAdapter(End)
BEGINS = b'{"kind":"header",'
"""The first bytes of every run's file."""


RESTORE = "restore the file, or make the run again in another folder"
GIVE = "give the file that `dsv4-conformance accuracy run` wrote"
LEAVE = "name another --results folder, so that it stays as it is"
"""Remedies for a file that cannot be used: a run's, one to be judged, one in the place of a run to be made."""


class Invalid(BadInput):
    """What a run's file holds is no measurement, or cannot be known to be one."""


class Edited(Invalid):
    """A line is not as it was written: what it says is no measurement."""


class Unclosed(Invalid):
    """The file does not say that the server at the end was the one that was asked at the beginning."""


def load(path: Path | str, *, texts: bool = True, reasoning: bool = True) -> AccuracyRun:
    """The run in the file ``path``.

    To save memory, ``reasoning=False`` puts a short hash in place of each reasoning, ``texts=False`` in place of each
    text as well: what was empty stays empty, and what was equal stays equal.

    A last line without its newline is what a killed run leaves behind, and is ignored. Raises BadInput if the file
    cannot be read, holds no run, is of another schema, or is damaged inside; Edited if a line was changed after it was
    written, is not the one that was written after the line before, or does not belong to the header. Both name the
    line.
    """
    path = Path(path)
    header: RunHeader | None = None
    under = ""
    items: frozenset[str] = frozenset()
    answers: dict[tuple[str, int], Answer] = {}
    by: dict[tuple[str, int], int] = {}
    sessions: list[Session] = []
    for number, value in _whole_lines(path):
        where = f"{path}, line {number}"
        if header is None:
            _is_header(path, value, GIVE)
            found, under = _checked(HEADER, where, value, "")
            header, items = found, frozenset(found.items)
            continue
        kind = value.get("kind") if isinstance(value, dict) else None
        if kind == "session":
            session, under = _checked(SESSION, where, value, under)
            sessions.append(session)
            continue
        if kind == "end" and sessions:
            end, under = _checked(END, where, value, under)
            sessions[-1] = replace(sessions[-1], ended=end.build)
            continue
        if kind != "answer":
            raise BadInput(f"{where} is damaged: it is no answer, as where two runs were put into one file; {RESTORE}.")
        answer, under = _checked(ANSWER, where, value, under)
        if problem := _foreign(header, items, answer):
            raise Edited(f"{where}: {problem}; the file was edited, so make the run again in another folder.")
        if not (texts and reasoning):
            text = answer.text if texts else _digest(answer.text)
            answer = replace(answer, text=text, reasoning=_digest(answer.reasoning))
        answers.pop(answer.key, None)
        answers[answer.key] = answer
        by[answer.key] = len(sessions) - 1
    if header is None:
        raise BadInput(f"{path} holds no accuracy run; {GIVE}.")
    counts = [0] * len(sessions)
    for place in by.values():
        if place >= 0:
            counts[place] += 1
    counted = tuple(replace(one, answers=count) for one, count in zip(sessions, counts, strict=True))
    return AccuracyRun(header, tuple(answers.values()), counted, under, str(path))


def _whole_lines(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith("\n"):
                    return
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError):
                    raise BadInput(f"{path}, line {number} is damaged: it is not JSON; {RESTORE}.") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); give the file of an accuracy run.") from None


def _is_header(path: Path, value: Any, remedy: str) -> None:
    if not isinstance(value, dict) or value.get("kind") != "header" or "schema" not in value:
        raise BadInput(f"{path} holds no accuracy run: its first line is no header; {remedy}.")
    if value["schema"] != SCHEMA:
        raise BadInput(
            f"{path} has schema {value['schema']!r} and this version reads {SCHEMA!r}; use the dsv4-conformance "
            "version that wrote it."
        )


def begun(path: Path) -> RunHeader | None:
    """The header of a run's file; None where there is no file, or no whole line in it.

    Raises BadInput, as ``load`` does, for a file that is something else, however little of it there is.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(BEGINS))
            if not start or (start != BEGINS and BEGINS.startswith(start)):
                return None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); use another --results folder.") from None
    for number, value in _whole_lines(path):
        _is_header(path, value, LEAVE)
        return _checked(HEADER, f"{path}, line {number}", value, "")[0]
    if start != BEGINS:
        raise BadInput(f"{path} holds no accuracy run; {LEAVE}.")
    return None


def _checked(kind: TypeAdapter[Kind], where: str, value: dict[str, Any], under: str) -> tuple[Kind, str]:
    """The record in a line, of the right types and as it was written, and the line's seal."""
    content = {name: found for name, found in value.items() if name not in ("kind", "seal")}
    try:
        # Strict JSON: "yes" is no bool and "1" no number. Fields that a later version adds are ignored.
        record = kind.validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "the line"
        raise BadInput(
            f"{where} is damaged: {name}: {first['msg'][:1].lower()}{first['msg'][1:]}; {RESTORE}."
        ) from None
    if value.get("seal") != seal(under, content):
        raise Edited(
            f"{where} was edited after it was written"
            f"{', or what stood before it was changed or taken out' if under else ''}: its seal is not that of "
            f"its content there; {RESTORE}."
        )
    return record, value["seal"]


def _foreign(header: RunHeader, items: frozenset[str], answer: Answer) -> str:
    """Why an answer cannot be one of this run; empty if it can. A seal can be made anew, a score cannot."""
    if answer.task != header.task or answer.item not in items:
        return f"{answer.item!r} of {answer.task} is no question of this run"
    if answer.seed is not None and answer.seed != header.seed + answer.repeat:
        return f"seed {answer.seed} is not that of repeat {answer.repeat}"
    task = TASKS.get(answer.task)
    if answer.correct != (answer.status == "ok" and answer.answer == answer.expected):
        return (
            f"correct is {answer.correct}, and the answer {answer.answer!r} against {answer.expected!r} says otherwise"
        )
    if task is not None and header.fingerprint.get("parser") == task.parser:
        return _scored_again(task, answer)
    return ""


def _scored_again(task: Task, answer: Answer) -> str:
    if answer.status in ("error", "filtered", "malformed"):
        return ""
    again = task.score(answer.text, answer.expected, finish_reason=answer.finish_reason)
    recorded = (answer.status, answer.answer, answer.fallback)
    if recorded != (again.status, again.answer, again.fallback):
        return f"its text reads as {again.status} {again.answer!r}, and {answer.status} {answer.answer!r} is recorded"
    return ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""
