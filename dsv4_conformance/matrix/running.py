"""Runs the rows of a matrix one after the other, each as a process in its environment; what is complete is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from time import monotonic

from dsv4_conformance import __version__
from dsv4_conformance.errors import BadInput
from dsv4_conformance.matrix.rows import HERE, Row
from dsv4_conformance.plugin import environment
from dsv4_conformance.plugin.journal import Journal, read_journal
from dsv4_conformance.status import Status

PATIENCE_S = 30
"""So long has a row to write down what it has when its time is over."""


@dataclass(frozen=True)
class Asked:
    """What every row runs. ``minutes``: of one row, environment included, 0 = any number. ``project``: folder of
    tox.ini."""

    results: Path
    profile: str
    seed: str
    workers: str
    minutes: float
    project: Path
    pytest_arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Done:
    """What became of a row. ``journal``: None if it left none, and ``problem`` says why. ``seconds``: 0 if kept."""

    row: Row
    journal: Path | None
    problem: str = ""
    seconds: float = 0.0


def run_rows(rows: Sequence[Row], asked: Asked, again: bool, told: Callable[[str], None]) -> list[Done]:
    """Run what is not complete. Raises BadInput where an environment is asked for without tox, or without tox.ini."""
    if any(row.environment != HERE for row in rows):
        _tox()
        if not (asked.project / "tox.ini").is_file():
            raise BadInput(
                f"there is no tox.ini in {asked.project}, which makes environments; name the checkout with --project."
            )
    done = []
    for row in rows:
        folder = asked.results / row.folder
        if not again and _complete(folder, asked):
            told(f"{row.name}: kept")
            done.append(Done(row, folder / "journal.jsonl"))
            continue
        told(f"{row.name}: running")
        done.append(_run(row, folder, asked))
        told(f"{row.name}: {done[-1].problem or _verdict(done[-1])}")
    return done


def _complete(folder: Path, asked: Asked) -> bool:
    """Whether the folder holds a whole run of just this: profile, seed, version and commit of the suites."""
    journal = _read(folder)
    return journal is not None and _whole(journal) and not journal.header.partial and _fits(journal, asked)


def _whole(journal: Journal) -> bool:
    """Whether every planned case was run."""
    cut = any(result.status is Status.NOT_RUN for result in journal.results)
    return journal.footer is not None and not journal.missing() and not cut


def _fits(journal: Journal, asked: Asked) -> bool:
    header, (commit, _) = journal.header, environment.checkout()
    here = (asked.profile, int(asked.seed), __version__, commit)
    return here == (header.profile, header.seed, header.version, header.environment.commit)


def _read(folder: Path) -> Journal | None:
    try:
        return read_journal(folder / "journal.jsonl")
    except BadInput:
        return None


def _run(row: Row, folder: Path, asked: Asked) -> Done:
    began, deadline = monotonic(), monotonic() + 60 * asked.minutes if asked.minutes else None
    folder.mkdir(parents=True, exist_ok=True)
    words = ["run", "--impl", row.implementation, "--profile", asked.profile, "--seed", asked.seed]
    words += ["--results", str(folder.resolve()), "-n", asked.workers]
    begun = _read(folder)
    if begun is not None and not _whole(begun) and _fits(begun, asked):
        words.append("--resume")
    words += ["--", *asked.pytest_arguments] if asked.pytest_arguments else []
    command = [sys.executable, "-m", "dsv4_conformance.cli", *words]
    if row.environment != HERE:
        made = [*_tox(), "run", "-e", row.environment, "--notest"]
        if problem := _process(made, folder / "tox.log", asked.project, deadline):
            return Done(row, None, f"tox could not make environment {row.environment}: {problem}", monotonic() - began)
        command = [*_tox(), "exec", "-e", row.environment, "--", "dsv4-conformance", *words]
    before = _stamp(folder)
    problem = _process(command, folder / "run.log", asked.project if row.environment != HERE else None, deadline)
    took = monotonic() - began
    if _stamp(folder) == before:
        return Done(row, None, problem or f"the run left no journal in {folder}", took)
    return Done(row, folder / "journal.jsonl", "", took)


def _process(words: list[str], log: Path, folder: Path | None, deadline: float | None) -> str:
    """Run ``words`` in a process group of their own with their output in ``log``; "" if all went well, else what was
    said last. When time is up, or on Ctrl-C, the group is interrupted, and killed if it does not end."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=folder, start_new_session=True
        )
        try:
            process.wait(None if deadline is None else max(1.0, deadline - monotonic()))
        except subprocess.TimeoutExpired:
            _end(process)
            return f"its time was over; see {log}"
        except BaseException:
            _end(process)
            raise
    return "" if process.returncode == 0 else f"{_last_line(log)} (exit code {process.returncode}, see {log})"


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(PATIENCE_S)
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("dsv4-conformance: ")] or lines[-1:]
    return said[-1][:300] if said else "it said nothing"


def _verdict(done: Done) -> str:
    journal = _read(done.journal.parent) if done.journal else None
    said = journal.footer.verdict if journal and journal.footer else "the run did not end"
    return f"{said} ({done.seconds:.0f} s)"


def _stamp(folder: Path) -> tuple[int, int] | None:
    try:
        found = (folder / "journal.jsonl").stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _tox() -> list[str]:
    if find_spec("tox") is not None:
        return [sys.executable, "-m", "tox"]
    found = which("tox")
    if found is None:
        raise BadInput("tox makes the environments of the rows, and there is none here: pip install tox.")
    return [found]
