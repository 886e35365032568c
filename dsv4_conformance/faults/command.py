"""What ``dsv4-conformance faults`` does: the control first, then all trials; journal, tables, exit code."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import dsv4_conformance
from dsv4_conformance import resources
from dsv4_conformance.errors import BadInput, HarnessError
from dsv4_conformance.faults.catalogue import chosen
from dsv4_conformance.faults.fault import Fault
from dsv4_conformance.faults.outcome import CONTROL, Matrix
from dsv4_conformance.faults.tables import html, line, markdown, verdict
from dsv4_conformance.faults.workers import Task, run
from dsv4_conformance.plugin.environment import describe

SCHEMA = "dsv4-faults/1"
JOURNAL = "faults.jsonl"
PACKAGES = ("torch", "hypothesis", "pytest")


def try_all(
    faults: Sequence[Fault],
    profile: str,
    workers: int,
    timeout_s: float,
    results: Path,
    say: Callable[[str], None],
    stop: bool = False,
) -> Matrix:
    """Try the control and every fault; each outcome is said and written as it arrives.

    With ``stop`` a trial ends when the requirement that its fault must break has failed.

    Raises HarnessError if the unchanged implementation fails: then nothing can be said about a fault. Raises BadInput
    if ``results`` cannot be written.
    """
    began, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    environment = describe()
    matrix = Matrix(
        profile=profile,
        stopped=stop,
        outcomes=[],
        seconds=0.0,
        workers=workers,
        started=started,
        version=dsv4_conformance.__version__,
        packages={"Python": environment.python}
        | {name: environment.packages[name] for name in PACKAGES if name in environment.packages},
        command=shlex.join(["dsv4-conformance", *sys.argv[1:]]),
    )
    path = results / JOURNAL
    touched = tuple(dict.fromkeys(surface for fault in faults for surface in fault.surfaces))
    tasks = [Task(CONTROL, profile, stop, touched)]
    tasks += [Task(fault.id, profile, stop, fault.surfaces) for fault in faults]
    try:
        results.mkdir(parents=True, exist_ok=True)
        _retire(path)
        journal = path.open("w", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"The journal {path} cannot be written ({error.strerror}); name another folder.") from None
    with journal:
        scope = {"wanted": [fault.id for fault in faults], "known": len(chosen(()))}
        fields = matrix.model_dump(exclude={"outcomes", "seconds"})
        _write(journal.write, "header", {"schema": SCHEMA, **fields, **scope})
        for outcome in run(tasks, workers, timeout_s):
            matrix.outcomes.append(outcome)
            _write(journal.write, "outcome", {**outcome.model_dump(), "problem": outcome.problem})
            journal.flush()
            if outcome.id == CONTROL and outcome.problem:
                raise HarnessError(f"{outcome.problem[0].upper()}{outcome.problem[1:]}.")
            say(line(outcome) if outcome.id != CONTROL else f"ok   control: {outcome.cases} cases, none fails")
        matrix.outcomes.sort(key=lambda outcome: (outcome.id != CONTROL, outcome.id))
        matrix.seconds = round(time.monotonic() - began, 1)
        summary = {"seconds": matrix.seconds, "verdict": verdict(matrix), "problems": matrix.problems}
        _write(journal.write, "footer", summary)
    say(f"\n{verdict(matrix)}\njournal: {path}")
    return matrix


def _retire(path: Path) -> None:
    """Keep an older journal under the time at which its run began; nothing is overwritten."""
    if not path.exists():
        return
    try:
        with path.open(encoding="utf-8") as file:
            began = "".join(c for c in str(json.loads(file.readline())["started"])[:19] if c.isalnum())
    except (ValueError, KeyError, TypeError):
        began = "unknown"
    kept = path.with_name(f"faults-{began}.jsonl")
    while kept.exists():
        kept = kept.with_stem(f"{kept.stem}x")
    path.rename(kept)


def _write(write: Callable[[str], object], kind: str, fields: dict[str, object]) -> None:
    write(json.dumps({"kind": kind, **fields}, separators=(",", ":")) + "\n")


def suite_folders() -> list[str]:
    """Folders of suites/ that hold tests."""
    return sorted({path.parent.name for path in resources.suites_dir().glob("*/test_*.py")})


def say_only(matrix: Matrix, say: Callable[[str], None]) -> None:
    """Which faults only one requirement, and only one suite folder, rejects."""
    say("\nfaults that only one requirement rejects")
    for name, found in sorted(matrix.only_by_requirement().items()):
        say(f"  {name:8} {', '.join(found)}")
    say("\nfaults that only one suite folder rejects")
    for name, found in sorted(matrix.only_by_folder().items()):
        say(f"  {name:12} {', '.join(found)}")


def write_tables(matrix: Matrix, as_markdown: Path | None, as_html: Path | None) -> None:
    """Write the tables that were asked for. Raises BadInput if a file cannot be written."""
    for path, text in ((as_markdown, markdown), (as_html, html)):
        if path is not None:
            try:
                path.write_text(text(matrix, suite_folders()), encoding="utf-8")
            except OSError as error:
                raise BadInput(f"{path} cannot be written ({error.strerror}); name another file.") from None


def check_files(*paths: Path | None) -> None:
    """Raise BadInput for a file that could not be written when all trials are over."""
    for path in paths:
        if path is None:
            continue
        before = path.exists()
        try:
            path.open("a", encoding="utf-8").close()
        except OSError as error:
            raise BadInput(f"{path} cannot be written ({error.strerror}); name another file.") from None
        if not before:
            path.unlink()


def listed(faults: Sequence[Fault], say: Callable[[str], None]) -> None:
    """A line per fault, and how the catalogue's entries are accounted for."""
    from dsv4_conformance.faults.accounting import entries

    for fault in faults:
        say(f"{fault.id:5} {fault.breaks:8} {fault.area:16} {fault.entry.title}")
    states = [entry.status for entry in entries().values()]
    words = {
        "modelled": "modelled",
        "same": "the same mechanism as another",
        "out": "out of scope",
    }
    told = [f"{states.count(status)} {word}" for status, word in words.items() if status in states]
    say(f"{len(faults)} faults; of {len(states)} public bugs " + ", ".join(told))


def processes(words: str) -> int:
    """Worker processes for ``-n``. Raises BadInput for what is neither a number from 1 on nor auto."""
    if words == "auto":
        return describe().cpu_count
    if not words.isdecimal() or int(words) < 1:
        raise BadInput(f"-n is {words!r}; give a number of processes from 1 on, or auto.")
    return int(words)
