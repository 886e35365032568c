"""The results folder: claimed by one run at a time, older journals kept, lines flushed as they are written."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from uuid import uuid4

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.sanitizer import Mark

if TYPE_CHECKING:
    from filelock import FileLock

    from dsv4_conformance.plugin.journal import Footer, Header, Result

JOURNAL = "journal.jsonl"
WORKERS = "workers"
OWNER = ".owner"


def now() -> str:
    """This moment, UTC, ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def unwritable(folder: Path, error: OSError) -> str:
    """The sentence for a results folder that took files before and takes no more, such as that of a full disk."""
    why = error.strerror or type(error).__name__
    return f"The results folder {folder} can no longer be written ({why}); make room there or name another one."


def new_run_id() -> str:
    """An id that sorts by time: ``20260131T101500Z-1a2b3c4d``."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex[:8]}"


class ResultsFolder:
    """``path`` as this run's own, until its process ends.

    Raises BadInput if the folder cannot be made or written, or if another run is writing there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = self._claim()

    def _claim(self) -> FileLock:
        from filelock import FileLock, Timeout

        lock = FileLock(self.path / ".lock", thread_local=False)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
            # Root may write anywhere by permission; only a file proves that this file system takes one.
            probe = self.path / f".probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
            # Not in the lock's own file: whoever tries the lock empties that.
            with suppress(OSError):  # a full disk is told of where it matters
                (self.path / OWNER).write_text(f"{os.getpid()}\n", encoding="ascii")
        except Timeout:
            raise BadInput(
                f"Another run{_owner(self.path)} is writing its results to {self.path}; wait for it, or name another "
                "folder."
            ) from None
        except OSError as error:
            raise BadInput(
                f"The results folder {self.path} cannot be written ({error.strerror}); name another one."
            ) from None
        return lock

    def retire(self) -> None:
        """Keep what the last run left as journal-<its id>.jsonl and workers-<its id>/; nothing is overwritten.

        The journal keeps its old name as well, until a new one takes it: at any moment there is one to resume.
        """
        journal, workers = self.path / JOURNAL, self.path / WORKERS
        if not journal.exists() and not workers.exists():
            return
        label = _run_id_of(journal)
        while (self.path / f"journal-{label}.jsonl").exists() or (self.path / f"{WORKERS}-{label}").exists():
            label += "x"
        if journal.exists():
            try:
                os.link(journal, self.path / f"journal-{label}.jsonl")
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise
                journal.rename(self.path / f"journal-{label}.jsonl")  # a file system without links
        if workers.exists():
            workers.rename(self.path / f"{WORKERS}-{label}")

    def release(self) -> None:
        """Let another run have the folder."""
        with suppress(OSError):
            (self.path / OWNER).unlink()
        self._lock.release()


def _owner(folder: Path) -> str:
    """Which process has claimed the folder, as far as that is told."""
    try:
        return f" (process {int((folder / OWNER).read_text(encoding='ascii'))})"
    except (OSError, ValueError):
        return ""


def _run_id_of(journal: Path) -> str:
    try:
        with journal.open(encoding="utf-8") as file:
            run_id = json.loads(file.readline())["run_id"]
        if isinstance(run_id, str) and run_id and all(c.isalnum() or c == "-" for c in run_id):
            return run_id
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return f"unreadable-{uuid4().hex[:8]}"


class JournalWriter:
    """Appends lines to a new journal, which replaces the one at ``path`` when its header and ``kept`` are written.

    Only the controller, or the only process, has one. A run that is killed meanwhile leaves the older journal there.
    """

    def __init__(self, path: Path, header: Header, kept: Iterable[Result] = ()) -> None:
        self.path = path
        new = path.with_suffix(".new")
        self._file = new.open("w", encoding="utf-8")
        self.write(header)
        for result in kept:
            self.write(result)
        new.replace(path)

    def write(self, line: Header | Result | Footer) -> None:
        """Append one line; it is on its way to the disk when this returns."""
        self._file.write(line.model_dump_json(by_alias=True) + "\n")
        self._file.flush()

    def abandon(self) -> None:
        """Close a file that takes no more, whatever becomes of the line that it did not take."""
        with suppress(OSError):
            self._file.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class StartLog:
    """A worker's own file of cases that it was about to run, so that a crash is charged to the right one."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._path = folder / WORKERS / f"{worker}.jsonl"
        self._file: TextIO | None = None

    def starting(self, case_id: str, nodeid: str, mark: Mark | None = None) -> None:
        """Write and flush that this case comes next. ``mark``: where the sanitizer's log ends."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8")
        line: dict[str, Any] = {"kind": "start", "case_id": case_id, "nodeid": nodeid, "time": now()}
        if mark is not None:
            line["sanitizer_mark"] = mark
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file, if one was opened."""
        if self._file is not None:
            with suppress(OSError):  # ``starting`` has told of a full disk
                self._file.close()


def last_started(folder: Path, worker: str) -> str | None:
    """nodeid of the last case that ``worker`` was about to run, None if it never got to one."""
    line = last_start(folder, worker)
    return str(line["nodeid"]) if line else None


def last_start(folder: Path, worker: str) -> dict[str, Any]:
    """The last line of a worker's file of cases that it was about to run, {} if there is none."""
    try:
        lines = (folder / WORKERS / f"{worker}.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    for text in reversed(lines):
        try:
            line: dict[str, Any] = json.loads(text)
            return line if line["nodeid"] else {}
        except (ValueError, KeyError, TypeError):
            continue
    return {}
