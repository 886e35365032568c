"""What an accuracy run leaves behind: one header and one answer per (item, repeat), in an append-only JSONL file.

What runs a model writes these records (``journal``), what judges it reads them; neither needs anything else of the
other.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

SCHEMA = "dsv4-accuracy/3"

Status = Literal["ok", "truncated", "empty", "no_answer", "filtered", "malformed", "error"]
"""How a request ended. ``ok``: an answer could be read. ``truncated``: the token limit was reached, whatever the text
says. ``empty``: the server finished with no text. ``no_answer``: text in which the parser found none. ``filtered``: a
content filter cut in. ``malformed``: the reply's content is no text, or it does not say that it came to its end.
``error``: no usable reply, after the retries; not the model's doing. Only ``ok`` can be correct."""

Whole = Annotated[int, Field(ge=0)]

EndpointKind = Literal["chat", "completions"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply of the server, scored.

    ``item`` is the question's id, ``repeat`` counts from 0. ``request`` is the SHA-256 of the request's body,
    ``prompt`` that of the rendered prompt alone, the same for every repeat, seed and model. ``fallback`` is the
    parser's level: 0 where the answer stood as asked for, -1 where there is none. Token counts are the server's, None
    where it gave none. ``served`` is the model name in the reply, ``system`` its system_fingerprint; ``tries`` and
    ``seconds`` include retries and waits.
    ``error``: what was wrong with the reply, empty if nothing was.
    """

    task: str
    item: str
    repeat: Whole
    request: str
    status: Status
    correct: bool
    answer: str | None
    fallback: int
    finish_reason: str | None
    seed: int | None
    prompt_tokens: Whole | None
    completion_tokens: Whole | None
    reasoning_tokens: Whole | None
    text: str
    reasoning: str
    error: str
    prompt: str = ""
    expected: str = ""
    served: str = ""
    tries: Whole = 1
    seconds: float = 0.0
    system: str = ""

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
    ``observed`` what the probe of the server found and need not be equal. ``url``, ``server`` (what it says of itself:
    its version, the weights it loaded) and ``notes`` (what the user said of it) tell builds apart: answers of another
    one are not added. ``seed`` is the base: repeat r is asked with seed + r. ``items`` are the ids that each repeat
    must answer, ``of`` how many questions the whole set has (0: not known).
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
    url: str = ""
    server: dict[str, str] = field(default_factory=dict)
    of: Whole = 0
    schema: str = SCHEMA

    @property
    def fingerprint_hash(self) -> str:
        """SHA-256 of the fingerprint, independent of the order of its fields."""
        return fingerprint_hash(self.fingerprint)

    @property
    def build(self) -> dict[str, str]:
        """What tells the build that answers from others, in the words of the user."""
        notes = {f"--note {name}": text for name, text in self.notes.items()}
        return {"--endpoint": self.url, **notes, **{f"the server's {name}": text for name, text in self.server.items()}}


@dataclass(frozen=True)
class Session:
    """One process's share of a run: whom it asked and when. ``run`` is the same for processes that work together.

    ``build`` as in RunHeader, ``ended`` the same when the process was done, None where it was killed or the server told
    nothing. ``answers``: how many of the run's answers are from it; counted, not in the file.
    """

    run: str
    started: str
    build: dict[str, str]
    answers: int = 0
    ended: dict[str, str] | None = None


@dataclass(frozen=True)
class End:
    """What the server said of itself when a session was done."""

    at: str
    build: dict[str, str]


@dataclass(frozen=True)
class AccuracyRun:
    """A run as far as it got: one answer per (item, repeat), the last one written where there are several.

    ``sessions``: the processes that asked, the first one first; none for a run that was made in memory.
    ``seal``: that of the last line, under which the next is sealed. ``path``: its file, "" for one made in memory.
    """

    header: RunHeader
    answers: tuple[Answer, ...]
    sessions: tuple[Session, ...] = field(default=(), compare=False)
    seal: str = field(default="", compare=False)
    path: str = field(default="", compare=False)

    @property
    def partial(self) -> bool:
        """Whether only some questions of the set were asked."""
        return 0 < len(self.header.items) < self.header.of

    def reused(self, run: str) -> int:
        """How many answers are of another run than ``run``."""
        return sum(session.answers for session in self.sessions if session.run != run)

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

    Fields of the fingerprint are named ``fingerprint.temperature``. Start, versions and observations may differ; what
    tells builds apart is compared by itself (``other_build``).
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


def other_build(ours: dict[str, str], theirs: dict[str, str]) -> list[tuple[str, str, str]]:
    """(field, ours, theirs) in which two builds differ; "(absent)" where one says nothing."""
    names = [*ours, *(name for name in theirs if name not in ours)]
    pairs = [(name, ours.get(name, "(absent)"), theirs.get(name, "(absent)")) for name in names]
    return [pair for pair in pairs if pair[1] != pair[2]]


def seal(before: str, content: dict[str, Any]) -> str:
    """SHA-256 of one line's ``content`` under the seal of the line ``before`` (the header's own: under "").

    An edit breaks it, and so does a line that is taken out, put in or moved; only lines at the end can be missing
    unnoticed, as after a kill.
    """
    return hashlib.sha256(
        (before + json_line(dict(sorted(content.items())))).encode("utf-8", "surrogatepass")
    ).hexdigest()


def json_line(value: Any) -> str:
    """One line of compact JSON, without its newline."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
