"""Accuracy goldens as files: ``golden/accuracy/<name>.json``, listed in MANIFEST.json, explained in CHANGELOG.md."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dsv4_conformance.accuracy.golden_record import Golden, parse
from dsv4_conformance.accuracy.records import fingerprint_hash
from dsv4_conformance.errors import BadInput
from dsv4_conformance.golden import changelog, manifest

FOLDER = "accuracy"
NO_GOLDENS = frozenset({"anchors.json", "data.json"})
"""Files of the folder that are no goldens: public scores, and hashes of the question sets."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Several(BadInput):
    """A model has more than one golden for a task, and none was named."""


def path_of(name: str) -> str:
    """Path of a golden relative to the golden folder. Raises BadInput for a name that is no plain file name."""
    if not NAME.fullmatch(name) or f"{name}.json" in NO_GOLDENS:
        raise BadInput(f"{name!r} is no name for a golden; use letters, digits, points, hyphens and underscores.")
    return f"{FOLDER}/{name}.json"


def names(folder: Path) -> list[str]:
    """Names of the goldens in a golden folder."""
    return sorted(path.stem for path in (folder / FOLDER).glob("*.json") if path.name not in NO_GOLDENS)


def existing(folder: Path) -> Path:
    """The golden folder itself. Raises BadInput if there is no such folder, or no golden in it."""
    if not folder.is_dir():
        raise BadInput(f"There is no folder {folder}; name a golden folder with --folder, or leave it out.")
    if not names(folder):
        raise BadInput(
            f"{folder} holds no accuracy golden ({FOLDER}/NAME.json); record one into it with `dsv4-conformance golden "
            "record`, or name another golden folder with --folder."
        )
    return folder


def load(folder: Path, name: str) -> Golden:
    """The golden called ``name``. Raises BadInput if there is none, or if it is damaged."""
    path = folder / path_of(name)
    content = _content(path)
    if content is None:
        have = ", ".join(names(folder)) or "none"
        raise BadInput(f"There is no golden {name!r} in {folder / FOLDER}; there is {have}.")
    return parse(content.decode("utf-8", errors="replace"), str(path))


def find(folder: Path, model: str, task: str) -> Golden | None:
    """The golden of a model and task, None if there is none. Raises Several, and BadInput for a damaged one."""
    found = [golden for name in names(folder) if (golden := load(folder, name)).task == task and golden.model == model]
    if len(found) > 1:
        told = ", ".join(golden.name for golden in found)
        raise Several(
            f"{folder / FOLDER} has several goldens of {model!r} for {task}: {told}; name one with --golden NAME "
            "(pytest: --dsv4-golden FILE)."
        )
    return found[0] if found else None


@dataclass(frozen=True)
class Saved:
    """What a record changed: the golden's path and its short hashes before ("new" for a first one) and after."""

    path: str
    old: str
    new: str


def save(folder: Path, golden: Golden, reason: str | None, verdict: str = "") -> Saved:
    """Write a golden, its manifest entry and its changelog entry; ``verdict``: what the new one says of the old one.

    Raises BadInput if a golden of this name would change and ``reason`` is empty, or if the folder cannot be written.
    """
    path = path_of(golden.name)
    content = golden.text().encode()
    sha = hashlib.sha256(content).hexdigest()
    before = _content(folder / path)
    old = changelog.NEW if before is None else hashlib.sha256(before).hexdigest()[: changelog.SHORT]
    saved = Saved(path, old, sha[: changelog.SHORT])
    if before is not None and old == saved.new:
        return saved
    if before is not None and not (reason and reason.strip()):
        raise BadInput(f'The golden {golden.name} would change; pass --reason "..." to record why.')
    listed = manifest.load(folder) if (folder / manifest.NAME).exists() else manifest.Manifest()
    entry = manifest.Entry(
        surface="Endpoint",
        about=_about(golden),
        cases=[],
        inputs=fingerprint_hash(golden.fingerprint),
        oracle="simulated server" if golden.simulated else "measured",
        bytes=len(content),
        sha256=sha,
    )
    listed = manifest.Manifest(files=listed.files | {path: entry})
    today = datetime.now(UTC).date().isoformat()
    log = changelog.with_entry(
        changelog.read(folder), today, reason or "new files", {path: (old, saved.new)}, note=verdict
    )
    files = {path: content, changelog.NAME: log.encode(), manifest.NAME: listed.text().encode()}
    try:
        _replaced({folder / name: text for name, text in files.items()})
    except OSError as error:
        raise BadInput(
            f"{error.filename or folder} cannot be written ({error.strerror}); name another folder with --folder."
        ) from None
    return saved


def _replaced(files: dict[Path, bytes]) -> None:
    """Write files beside those of these names first, and put them in their place when all are whole."""
    beside = {path: path.with_name(f".{path.name}.partial") for path in files}
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            beside[path].write_bytes(content)
        for path, partial in beside.items():
            os.replace(partial, path)
    finally:
        for partial in beside.values():
            partial.unlink(missing_ok=True)


def _about(golden: Golden) -> str:
    kind = "the simulated server, no model" if golden.simulated else repr(golden.model)
    return f"{golden.task}, {golden.runs} passes over {len(golden.rows)} questions of {kind}"


def check(folder: Path, name: str) -> None:
    """Raises BadInput for a golden that is not as it was recorded, as ``golden verify`` finds it."""
    for problem in problems(folder, name):
        raise BadInput(f"{problem.rstrip('.')}; nothing is judged by such a golden (dsv4-conformance golden verify).")


def problems(folder: Path, only: str | None = None) -> Iterator[str]:
    """What is wrong with the accuracy goldens of a folder, or with ``only`` one of them, one sentence each.

    Raises BadInput if there is no folder or no golden, or if the manifest or the changelog cannot be used.
    """
    if not (folder / manifest.NAME).exists():
        raise BadInput(
            f"{existing(folder)} has no {manifest.NAME}, which holds the SHA-256 of every golden as it was recorded; "
            'restore it from version control, or record the goldens anew: golden record RUN.jsonl --reason "...".'
        )
    listed = manifest.load(folder).files
    recorded = {path: entry for path, entry in listed.items() if path.startswith(f"{FOLDER}/")}
    if only is not None:
        recorded = {path: entry for path, entry in recorded.items() if path == path_of(only)}
    logged = changelog.newest(changelog.read(folder))
    for name in names(folder) if only is None else [only]:
        if path_of(name) not in recorded:
            yield f"{path_of(name)} is not in {manifest.NAME}; remove it, or record it by command."
    for path, entry in recorded.items():
        content = _content(folder / path)
        if content is None:
            yield f"{path} is missing; restore it from version control."
            continue
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            yield f"{path} was edited: its SHA-256 is not the one in {manifest.NAME}."
        if logged.get(path) != entry.sha256[: changelog.SHORT]:
            yield f"{path} is {entry.sha256[: changelog.SHORT]}, which {changelog.NAME} does not end in."
        try:
            golden = parse(content.decode("utf-8", errors="replace"), path)
        except BadInput as error:
            yield str(error)
            continue
        if path_of(golden.name) != path:
            yield f"{path} holds the golden {golden.name!r}; its name and its file's must agree."


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); make it readable.") from None
