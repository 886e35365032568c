"""The file of an accuracy run while it is being written: append-only, resumed after a kill, one writer at a time."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dsv4_conformance.accuracy.reading import begun, load
from dsv4_conformance.accuracy.records import (
    AccuracyRun,
    Answer,
    End,
    RunHeader,
    Session,
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
        self._header = header
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
            kept = self._resume(header)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            self.kept = kept or AccuracyRun(header, ())
            self._seal = self.kept.seal
            if kept is None:
                self._write("header", asdict(header) | {"items": list(header.items)})
        except OSError as error:
            self._lock.release()
            raise BadInput(f"{self.path} cannot be written ({error.strerror}); use another --results folder.") from None
        except BaseException:
            self._lock.release()
            raise

    kept: AccuracyRun
    """What the file held when it was opened, without the reasoning."""

    def append(self, answer: Answer) -> None:
        """Write one answer. Raises BadInput where that cannot be done, as on a full disk; the file stays whole."""
        self.visited()
        self._write("answer", asdict(answer))

    def visited(self) -> None:
        """Write down, once, that this process made use of the answers, whether or not it adds any."""
        if not self._said:
            self._said = True
            self._write("session", asdict(Session(self._run, _now(), self._header.build)))

    def end(self, server: dict[str, str]) -> None:
        """Write down what the server says of itself now that this process has asked all it wanted."""
        self._write("end", asdict(End(_now(), replace(self._header, server=server).build)))

    def close(self) -> None:
        """Close the file and let other processes have it."""
        os.close(self._file)
        self._lock.release()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resume(self, header: RunHeader) -> AccuracyRun | None:
        if begun(self.path) is None:  # raises for what is no run's file, before anything in it is touched
            _keep(self.path, 0)
            return None
        _cut_torn_line(self.path)
        kept = load(self.path, reasoning=False)
        if not kept.answers:
            _keep(self.path, 0)  # a run that was killed before its first answer
            return None
        if found := differing(kept.header, header):
            raise BadInput(
                f"{self.path} holds answers of a run that is set up otherwise ({_told(found)}); set it up as before, "
                "or use another --results folder."
            )
        known = [kept.header.build, *(session.build for session in kept.sessions)]
        if not self._same_build:
            same_build(self.path, known, header.build)
        return kept

    def _write(self, kind: str, content: dict[str, Any]) -> None:
        sealed = seal(self._seal, content)
        line = memoryview((json_line({"kind": kind, **content, "seal": sealed}) + "\n").encode())
        size = os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            os.ftruncate(self._file, size)
            raise BadInput(
                f"{self.path} cannot be written ({error.strerror}); make room and run the same command again: what was "
                "answered until now is kept."
            ) from None
        self._seal = sealed


def same_build(path: Path, known: list[dict[str, str]], build: dict[str, str]) -> None:
    """Raise BadInput, naming the fields, if the answers in ``path`` are of the builds ``known``, not of ``build``."""
    if build not in known:
        told = _told(other_build(known[-1], build))
        raise BadInput(
            f"{path} holds answers that may be another build's ({told}); give this build a --results folder of "
            "its own (pytest: --dsv4-answers), or say that it is the same one and go on, with --same-build (pytest: "
            "--dsv4-same-build)."
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _keep(path: Path, size: int) -> None:
    if path.exists():
        os.truncate(path, size)


def _cut_torn_line(path: Path) -> None:
    """Drop what follows the last newline."""
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


def _told(found: list[tuple[str, str, str]]) -> str:
    return "; ".join(f"{name} was {_short(theirs)} and is {_short(ours)}" for name, theirs, ours in found)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
