"""What an accuracy run leaves behind: one header and one answer per (item, repeat), in an append-only JSONL file.

What runs a model writes these records (``journal``), what judges it reads them; neither needs anything else of the
other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from dsv4_conformance.errors import BadInput

SCHEMA = "dsv4-accuracy/1"

Status = Literal["ok", "truncated", "empty", "no_answer", "error"]
"""How a request ended. ``ok``: an answer could be read. ``truncated``: the token limit was reached, whatever the text
says. ``empty``: the server finished with no text. ``no_answer``: text in which the parser found none. ``error``: no
usable reply, after the retries; not the model's doing. Only ``ok`` can be correct."""

EndpointKind = Literal["chat", "completions"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply of the server, scored.

    ``item`` is the question's id, ``repeat`` counts from 0. ``request`` is the SHA-256 of the request's body,
    ``prompt`` that of the rendered prompt alone, the same for every repeat, seed and model. ``fallback`` is the
    parser's level: 0 where the answer stood as asked for, -1 where there is none. Token counts are the server's, None
    where it gave none. ``served`` is the model name in the reply; ``tries`` and ``seconds`` include retries and waits.
    """

    task: str
    item: str
    repeat: int
    request: str
    status: Status
    correct: bool
    answer: str | None
    fallback: int
    finish_reason: str | None
    seed: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    text: str
    reasoning: str
    error: str
    prompt: str = ""
    expected: str = ""
    served: str = ""
    tries: int = 1
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.correct and self.status != "ok":
            raise ValueError(f"an answer of status {self.status!r} cannot be correct")

    @property
    def key(self) -> tuple[str, int]:
        """(item, repeat): what a run holds once."""
        return self.item, self.repeat


@dataclass(frozen=True)
class RunHeader:
    """What was asked, of whom and how.

    ``fingerprint`` holds everything that must be equal before two runs may be compared (``fingerprint_hash``);
    ``observed`` what the probe of the server found and need not be equal; ``notes`` what the user said about the
    server. ``seed`` is the base: repeat r is asked with seed + r. ``items`` are the ids that each repeat must answer.
    """

    task: str
    model: str
    endpoint: EndpointKind
    seed: int
    items: tuple[str, ...]
    fingerprint: dict[str, str]
    started: str
    versions: dict[str, str]
    observed: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    schema: str = SCHEMA

    @property
    def fingerprint_hash(self) -> str:
        """SHA-256 of the fingerprint, independent of the order of its fields."""
        return fingerprint_hash(self.fingerprint)


@dataclass(frozen=True)
class AccuracyRun:
    """A run as far as it got: one answer per (item, repeat), the last one written where there are several."""

    header: RunHeader
    answers: tuple[Answer, ...]

    @property
    def repeats(self) -> int:
        """How many repeats have at least one answer; 0 for a run that was not begun."""
        return max((answer.repeat for answer in self.answers), default=-1) + 1

    def missing(self, repeats: int) -> list[tuple[str, int]]:
        """(item, repeat) of the first ``repeats`` repeats that have no answer, in the order of the header's items."""
        have = {answer.key for answer in self.answers}
        return [(item, r) for r in range(repeats) for item in self.header.items if (item, r) not in have]


def fingerprint_hash(fingerprint: dict[str, str]) -> str:
    """SHA-256 over the fields of a fingerprint, in any order."""
    return hashlib.sha256(json_line(dict(sorted(fingerprint.items()))).encode()).hexdigest()


def differing(ours: RunHeader, theirs: RunHeader) -> list[tuple[str, str, str]]:
    """(field, ours, theirs) for everything that forbids adding the answers of one run to the other's.

    Fields of the fingerprint are named ``fingerprint.temperature``. Start, versions, observations and notes may differ.
    """
    found = [
        (name, json_line(getattr(ours, name)), json_line(getattr(theirs, name)))
        for name in ("schema", "task", "model", "endpoint", "seed", "items")
        if getattr(ours, name) != getattr(theirs, name)
    ]
    for name in sorted(ours.fingerprint.keys() | theirs.fingerprint.keys()):
        left, right = ours.fingerprint.get(name, "(absent)"), theirs.fingerprint.get(name, "(absent)")
        if left != right:
            found.append((f"fingerprint.{name}", left, right))
    return found


def load(path: Path | str, *, texts: bool = True, reasoning: bool = True) -> AccuracyRun:
    """The run in the file ``path``.

    To save memory, ``reasoning=False`` puts a short hash in place of each reasoning, ``texts=False`` in place of each
    text as well: what was empty stays empty, and what was equal stays equal.

    A last line without its newline is what a killed run leaves behind, and is ignored. Raises BadInput if the file
    cannot be read, holds no run, is of another schema, or is damaged inside.
    """
    path = Path(path)
    header: RunHeader | None = None
    answers: dict[tuple[str, int], Answer] = {}
    for number, value in _whole_lines(path):
        if header is None:
            header = _header(path, value)
            continue
        answer = _answer(path, number, value)
        if not (texts and reasoning):
            text = answer.text if texts else _digest(answer.text)
            answer = replace(answer, text=text, reasoning=_digest(answer.reasoning))
        answers.pop(answer.key, None)
        answers[answer.key] = answer
    if header is None:
        raise BadInput(f"{path} holds no accuracy run; give the file that `dsv4-conformance accuracy run` wrote.")
    return AccuracyRun(header, tuple(answers.values()))


def _whole_lines(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith("\n"):
                    return
                try:
                    yield number, json.loads(line)
                except ValueError:
                    raise BadInput(f"{path} is damaged at line {number}: it is not JSON.") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); give the file of an accuracy run.") from None


def _header(path: Path, value: Any) -> RunHeader:
    if not isinstance(value, dict) or value.get("kind") != "header" or "schema" not in value:
        raise BadInput(f"{path} holds no accuracy run: its first line is no header.")
    if value["schema"] != SCHEMA:
        raise BadInput(
            f"{path} has schema {value['schema']!r} and this version reads {SCHEMA!r}; use the dsv4-conformance "
            "version that wrote it."
        )
    try:
        return RunHeader(**{**_known(RunHeader, value), "items": tuple(value["items"])})
    except (KeyError, TypeError) as error:
        raise BadInput(f"{path} is damaged at line 1: {error}.") from None


def _answer(path: Path, number: int, value: Any) -> Answer:
    if not isinstance(value, dict) or value.get("kind") != "answer":
        raise BadInput(f"{path} is damaged at line {number}: it is no answer; the file may hold more than one run.")
    if value.get("status") not in get_args(Status):
        raise BadInput(f"{path} is damaged at line {number}: status {value.get('status')!r} is unknown.")
    try:
        return Answer(**_known(Answer, value))
    except (TypeError, ValueError) as error:
        raise BadInput(f"{path} is damaged at line {number}: {error}.") from None


def _known(kind: type, value: dict[str, Any]) -> dict[str, Any]:
    # Within a schema version fields are only added, so an older reader ignores what it does not know.
    return {f.name: value[f.name] for f in fields(kind) if f.name in value}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


def json_line(value: Any) -> str:
    """One line of compact JSON, without its newline."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
