"""The golden tensors: made again from their cases, compared with what is recorded, or recorded anew."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dsv4_conformance.errors import BadInput
from dsv4_conformance.golden import changelog, manifest
from dsv4_conformance.golden.cases import FOLDER, GOLDENS, Golden
from dsv4_conformance.golden.exact.budgets import Rules
from dsv4_conformance.golden.inputs import inputs_of
from dsv4_conformance.golden.results import ORACLE, results_of
from dsv4_conformance.golden.stored import digest, file_bytes
from dsv4_conformance.numerics.budgets import OUT_FACTOR
from dsv4_conformance.numerics.reference import PHASES


@dataclass(frozen=True)
class Made:
    """A golden file made from its case: content and manifest entry."""

    path: str
    content: bytes
    entry: manifest.Entry


def make(golden: Golden) -> Made:
    """Build the inputs, compute the results, lay out the file. Deterministic to the byte."""
    cases = [case.canonical() for case in golden.cases]
    inputs = inputs_of(golden.cases)
    results = results_of(golden.surface, inputs, Rules(PHASES, OUT_FACTOR))
    text = {"surface": golden.surface, "about": golden.about, "cases": json.dumps(cases), "oracle": ORACLE}
    content = file_bytes({**inputs, **results}, text)
    entry = manifest.Entry(
        surface=golden.surface,
        about=golden.about,
        cases=cases,
        inputs=digest(inputs),
        oracle=ORACLE,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    return Made(golden.path, content, entry)


def problems(folder: Path, goldens: Sequence[Golden] = GOLDENS) -> list[str]:
    """What is wrong with the golden tensors of ``folder``, one sentence each; none: they are what is computed today.

    Raises BadInput if the manifest or the changelog cannot be used.
    """
    recorded = _recorded(folder)
    logged = changelog.newest(changelog.read(folder))
    made = {golden.path: golden for golden in goldens}
    found = [*_strays(folder, recorded), *_unlogged(recorded, logged)]
    for path, entry in recorded.items():
        content = _content(folder / path)
        if content is None:
            found.append(f"{path} is missing; restore it from version control.")
        elif _sha(content) != entry.sha256:
            found.append(f"{path} was edited: its SHA-256 is not the one in {manifest.NAME}.")
        elif path not in made:
            found.append(f"{path} is recorded, but no case makes it.")
        else:
            found += _difference(make(made[path]), entry, content)
    return found + [f"{path} has a case, but is not recorded." for path in made if path not in recorded]


def write(folder: Path, reason: str | None, goldens: Sequence[Golden] = GOLDENS) -> list[str]:
    """Make all golden tensors and record them in ``folder``; returns what changed, one line per file.

    A file that is new needs no reason. Raises BadInput, before anything is written, if a recorded file would change
    and ``reason`` is None, or if the folder cannot be written.
    """
    recorded = _recorded(folder) if (folder / manifest.NAME).exists() else {}
    log = changelog.read(folder)
    made = {done.path: done for done in map(make, goldens)}
    changes = _changes(made, recorded, changelog.newest(log))
    altered = [path for path, (old, _) in changes.items() if old != changelog.NEW]
    if altered and not (reason and reason.strip()):
        old, new = changes[altered[0]]
        more = f" (and {len(altered) - 1} more)" if len(altered) > 1 else ""
        raise BadInput(f'{altered[0]} would change from {old} to {new}{more}; pass --reason "..." to record why.')
    if changes:
        today = datetime.now(UTC).date().isoformat()
        log = changelog.with_entry(log, today, reason or "new files", changes)
    _save(folder, made, recorded, log)
    return [f"{path}: {old} -> {new}" for path, (old, new) in sorted(changes.items())]


def _recorded(folder: Path) -> dict[str, manifest.Entry]:
    files = manifest.load(folder).files
    return {path: entry for path, entry in sorted(files.items()) if path.startswith(f"{FOLDER}/")}


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); make it readable.") from None


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _strays(folder: Path, recorded: dict[str, manifest.Entry]) -> Iterator[str]:
    for path in sorted((folder / FOLDER).glob("*")):
        if f"{FOLDER}/{path.name}" not in recorded:
            yield f"{FOLDER}/{path.name} is not in {manifest.NAME}; remove it, or add a case for it."


def _unlogged(recorded: dict[str, manifest.Entry], logged: dict[str, str]) -> Iterator[str]:
    for path, entry in recorded.items():
        if logged.get(path) != entry.sha256[: changelog.SHORT]:
            last = f"ends in {logged[path]}" if path in logged else "does not name it"
            yield f"{path} is {entry.sha256[: changelog.SHORT]}, but {changelog.NAME} {last}; add an entry."


def _difference(made: Made, entry: manifest.Entry, content: bytes) -> Iterator[str]:
    if made.entry.cases != entry.cases:
        yield f"{made.path} was made from another case."
    elif made.entry.inputs != entry.inputs:
        yield f"{made.path}: its case gives other input tensors than when it was recorded; the generator changed."
    elif made.content != content:
        yield f"{made.path}: the same inputs give other results, budgets or text than recorded."
    elif made.entry != entry:
        yield f"{made.path}: its entry in {manifest.NAME} was edited."


def _changes(
    made: dict[str, Made], recorded: dict[str, manifest.Entry], logged: dict[str, str]
) -> dict[str, tuple[str, str]]:
    """Per file whose hash the changelog does not end in: its short hashes (old, new)."""
    found = {}
    for path in sorted({*made, *recorded, *logged}):
        if path.startswith(f"{FOLDER}/"):
            old = logged.get(path) or (recorded[path].sha256[: changelog.SHORT] if path in recorded else changelog.NEW)
            new = made[path].entry.sha256[: changelog.SHORT] if path in made else changelog.REMOVED
            if path not in logged or old != new:
                found[path] = (old, new)
    return found


def _save(folder: Path, made: dict[str, Made], recorded: dict[str, manifest.Entry], log: str) -> None:
    path = folder / manifest.NAME
    listed = manifest.load(folder) if path.exists() else manifest.Manifest()
    others = {name: entry for name, entry in listed.files.items() if not name.startswith(f"{FOLDER}/")}
    listed = manifest.Manifest(files=others | {name: done.entry for name, done in made.items()})
    try:
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        for name, done in made.items():
            (folder / name).write_bytes(done.content)
        for name in recorded:
            if name not in made:
                (folder / name).unlink(missing_ok=True)
        (folder / changelog.NAME).write_text(log, encoding="utf-8")
        path.write_text(listed.text(), encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"{error.filename or folder} cannot be written ({error.strerror}); name another folder with --folder."
        ) from None
