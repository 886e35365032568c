"""A submission: a folder that holds runs, what was made of them, and a manifest with the SHA-256 of every file.

submission.json   the manifest: schema, runs, goldens, files
journals/         the runs' journals, A-name.jsonl and so on
faults/           kill matrices, where some were given
report.html, report.md, junit.xml, ctrf.json, badges/
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from dsv4_conformance import resources
from dsv4_conformance.errors import BadInput
from dsv4_conformance.report.badges import slug
from dsv4_conformance.report.gathering import Gathered, implementation
from dsv4_conformance.report.stream import JournalFile

MANIFEST = "submission.json"
SCHEMA = "dsv4-submission/1"
JOURNALS, FAULTS = "journals", "faults"
SIGNATURES = (".sig", ".asc", ".gpg", ".minisig", ".sigstore", ".p7s")
"""How files end that ssh-keygen, gpg, minisign, sigstore and openssl write beside what they sign."""


class SubmittedRun(BaseModel):
    """A run as the manifest names it; everything but ``journal`` is told again by the journal itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    journal: str
    run_id: str
    plan_hash: str
    results_hash: str
    commit: str
    modified: bool


class Manifest(BaseModel):
    """``files``: path -> SHA-256 of every file but the manifest. ``goldens``: SHA-256 of the goldens' own manifest."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    schema_version: str
    version: str
    runs: tuple[SubmittedRun, ...]
    faults: tuple[str, ...]
    goldens: str
    files: dict[str, str]


def collect(folder: Path, journals: Sequence[Path], faults: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Copy journals and kill matrices into ``folder``; the copies. Raises BadInput, also for a folder in use."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise BadInput(f"{folder} holds other files, which a submission cannot hold; name a new folder with -o.")
    names = [f"{chr(ord('A') + n)}-{slug(implementation(JournalFile(path).header))}" for n, path in enumerate(journals)]
    copies = [folder / JOURNALS / f"{name}.jsonl" for name in names]
    matrices = [folder / FAULTS / f"{number}-{slug(path.name)}" for number, path in enumerate(faults, 1)]
    try:
        staged = [(path, path.read_bytes()) for path in faults]  # they may lie in what is replaced now
        kept = {path for path in journals if folder in path.parents}
        for old in (JOURNALS, FAULTS):
            if not kept:
                shutil.rmtree(folder / old, ignore_errors=True)
        for source, target in zip(journals, copies, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.resolve() != target.resolve():
                shutil.copyfile(source, target)
        for (_, content), target in zip(staged, matrices, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        for name, mine in ((JOURNALS, copies), (FAULTS, matrices)):
            for left in set((folder / name).glob("*")) - {*mine}:
                left.unlink()
    except OSError as error:
        reason = f"The submission cannot be written to {folder} ({error.strerror}); name another folder with -o."
        raise BadInput(reason) from None
    return copies, matrices


class Sealed(NamedTuple):
    """SHA-256 of a manifest, which is what to sign, and the signatures of the one before it, which are gone with it."""

    sha256: str
    unsigned: list[str]


def seal(folder: Path, gathered: Gathered, faults: Sequence[Path]) -> Sealed:
    """Write the manifest of what lies in ``folder``. Signatures beside it that are of another manifest are removed."""
    runs = [
        SubmittedRun(
            journal=journal.path.relative_to(folder).as_posix(),
            run_id=run.header.run_id,
            plan_hash=run.header.plan_hash,
            results_hash=run.results_hash,
            commit=run.header.environment.commit,
            modified=run.header.environment.modified,
        )
        for run, journal in zip(gathered.runs, gathered.journals, strict=True)
    ]
    manifest = Manifest(
        schema_version=SCHEMA,
        version=gathered.version,
        runs=tuple(runs),
        faults=tuple(path.relative_to(folder).as_posix() for path in faults),
        goldens=goldens_hash(),
        files={path: sha256(folder / path) for path in present(folder)},
    )
    text = json.dumps(manifest.model_dump(), indent=2, sort_keys=True) + "\n"
    file = folder / MANIFEST
    same = file.is_file() and file.read_text(encoding="utf-8") == text
    beside = [] if same else [folder / f"{MANIFEST}{suffix}" for suffix in SIGNATURES]
    signatures = [path for path in beside if path.is_file()]
    file.write_text(text, encoding="utf-8")
    for signature in signatures:
        signature.unlink()
    return Sealed(hashlib.sha256(text.encode()).hexdigest(), [signature.name for signature in signatures])


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a submission. Raises BadInput if there is none, or it cannot be read."""
    path = folder / MANIFEST
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise BadInput(
            f"{folder} is no submission: it has no readable {MANIFEST}; make one with "
            "`dsv4-conformance report JOURNAL... -o DIR --submission`."
        ) from None
    schema = content.get("schema_version") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise BadInput(
            f"{path} has schema {schema!r}, and this version reads {SCHEMA!r}; use the version that wrote it."
        )
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise BadInput(f"{path} is damaged at {'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
    for name in (*manifest.files, *manifest.faults, *(run.journal for run in manifest.runs)):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise BadInput(f"{path} names {name!r}, which lies outside the submission.")
    return manifest


def present(folder: Path) -> list[str]:
    """Paths of all files of a submission but its manifest, and signatures of that."""
    found = (path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    names = (path.relative_to(folder).as_posix() for path in found)
    return sorted(name for name in names if not name.startswith(MANIFEST))


def sha256(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def goldens_hash() -> str:
    """SHA-256 of the installed goldens' manifest, which has that of every golden."""
    return sha256(resources.golden_dir() / "MANIFEST.json")
