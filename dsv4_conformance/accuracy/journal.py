"""The file of an accuracy run while it is being written: append-only, resumed after a kill, one writer at a time."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dsv4_conformance.accuracy.reading import load
from dsv4_conformance.accuracy.records import (
    AccuracyRun,
    Answer,
    RunHeader,
    differing,
    json_line,
    other_build,
    seal,
)
from dsv4_conformance.errors import BadInput


class Journal:
    """The file of a run, open for appending by one process at a time.

    Every answer is handed to the operating system as soon as it is known, so a killed process loses none of them.
    """

    def __init__(self, path: Path | str, header: RunHeader, run: str = "", *, same_build: bool = False) -> None:
        """Create ``path`` with ``header``, or go on with it; ``run`` names the run that this process is part of.

        Raises BadInput if the file belongs to a run that is set up otherwise or, without ``same_build``, to one of
        another build (naming the fields), is being written by another process, or cannot be read or written.
        """
        self.path = Path(path)
        self._run = run
        self._build = header.build
        self._said = False
        self._same_build = same_build
        self._lock = FileLock(f"{self.path}.lock")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise BadInput(
                f"Another process is writing {self.path}; wait for it, or use another --results folder."
            ) from None
        except OSError as error:
            raise BadInput(f"{self.path} cannot be written ({error.strerror}); use another --results folder.") from None
        try:
            begun = self._resume(header)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            self.kept = begun or AccuracyRun(header, ())
            content = asdict(header) | {"items": list(header.items)}
            self._seal = self.kept.seal or seal("", content)
            if begun is None:
                self._put({"kind": "header", **content, "seal": self._seal})
        except OSError as error:
            self._lock.release()
            raise BadInput(f"{self.path} cannot be written ({error.strerror}); use another --results folder.") from None
        except BaseException:
            self._lock.release()
            raise

    kept: AccuracyRun
    """What the file held when it was opened, without the reasoning."""

    def append(self, answer: Answer) -> None:
        """Write one answer. Raises OSError where the disk is full."""
        if not self._said:
            self._said = True
            started = datetime.now(UTC).isoformat(timespec="seconds")
            self._write("session", {"run": self._run, "started": started, "build": self._build, "answers": 0})
        self._write("answer", asdict(answer))

    def close(self) -> None:
        """Close the file and let other processes have it."""
        os.close(self._file)
        self._lock.release()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resume(self, header: RunHeader) -> AccuracyRun | None:
        if not self.path.exists() or not _cut_torn_line(self.path):
            return None
        kept = load(self.path, reasoning=False)
        if found := differing(kept.header, header):
            raise BadInput(
                f"{self.path} holds answers of a run that is set up otherwise ({_told(found)}); set it up as before, "
                "or use another --results folder."
            )
        known = [kept.header.build, *(session.build for session in kept.sessions)]
        if not self._same_build and header.build not in known:
            raise BadInput(
                f"{self.path} holds answers that may be another build's ({_told(other_build(known[-1], header.build))})"
                "; give this build a --results folder of its own (pytest: --dsv4-answers), or say that it is the same "
                "one and go on, with --same-build (pytest: --dsv4-same-build)."
            )
        return kept

    def _write(self, kind: str, content: dict[str, Any]) -> None:
        self._put({"kind": kind, **content, "seal": seal(self._seal, content)})

    def _put(self, value: dict[str, Any]) -> None:
        line = memoryview((json_line(value) + "\n").encode())
        while line:
            line = line[os.write(self._file, line) :]


def _cut_torn_line(path: Path) -> bool:
    """Drop what follows the last newline; whether anything is left."""
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        file.truncate(end)
    return end > 0


def _told(found: list[tuple[str, str, str]]) -> str:
    return "; ".join(f"{name} was {_short(theirs)} and is {_short(ours)}" for name, theirs, ours in found)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
