"""A run in a child process, so that what ends the child cannot pass for a good end of the run."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import typer

from dsv4_conformance.errors import BadInput, ExitCode

GRACE_S = 0.3
"""How long a signal may take to reach the child, too."""


def guarded(run: Callable[[], int], results: Path) -> int:
    """``run`` in a forked child; its exit code, or FAILED if the child ended without writing the journal's footer.

    An adapter (or a library below it) that calls ``exit(0)`` outside its cases, as when it is imported, would otherwise
    end the run with 0 and nothing checked. The parent imports neither torch nor pytest, so that forking is safe.
    ``results``: the folder of the journal, and of the junit.xml that a run which was refused leaves as it was. Ctrl-C
    reaches the child, which reports; a SIGINT for the parent alone is passed on.
    """
    _flush()
    before, junit = _stamp(results), _content(results / "junit.xml")
    parent = os.getpid()
    heard, ears = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(heard)
        _in_child(run, parent, ears)
    os.close(ears)
    os.set_blocking(heard, False)
    handler = signal.signal(signal.SIGINT, lambda *_: _pass_on(child, heard))
    try:
        status = os.waitpid(child, 0)[1]
    finally:
        signal.signal(signal.SIGINT, handler)
        os.close(heard)
    code = os.waitstatus_to_exitcode(status)
    if _stamp(results) == before:
        _restore(results / "junit.xml", junit)
    if code < 0:
        name = signal.Signals(-code).name
        typer.echo(f"dsv4-conformance: the run was ended by {name}; --resume goes on with it.", err=True)
        return int(ExitCode.FAILED)
    if code == 0 and (_stamp(results) == before or not _ended(results)):
        typer.echo(
            "dsv4-conformance: the process ended before the run did: something called exit outside any case, such as"
            " the adapter's module or its check_available().",
            err=True,
        )
        return int(ExitCode.FAILED)
    return code


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _pass_on(child: int, heard: int) -> None:
    """Give the child the signal that it has not heard: a terminal tells both, ``kill PID`` the parent alone."""
    time.sleep(GRACE_S)
    with suppress(OSError):
        if os.read(heard, 4096):
            return
    with suppress(OSError):
        os.kill(child, signal.SIGINT)


def _in_child(run: Callable[[], int], parent: int, ears: int) -> NoReturn:
    code = int(ExitCode.HARNESS_ERROR)
    try:
        os.set_blocking(ears, False)
        signal.set_wakeup_fd(ears, warn_on_full_buffer=False)  # a byte for each signal, as it arrives
        from dsv4_conformance.plugin.confinement import die_with

        die_with(parent)  # a run whose command was killed would go on unseen, and hold its results folder
        code = run()
    except BadInput as error:
        typer.echo(f"dsv4-conformance: {error}", err=True)
        code = int(ExitCode.BAD_INPUT)
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _stamp(results: Path) -> tuple[int, int] | None:
    """What tells this run's journal from an earlier one in the same folder."""
    try:
        found = (results / "journal.jsonl").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _restore(path: Path, content: bytes | None) -> None:
    """Nothing was run, and pytest has written a file without a test: a CI job would take that for a good run."""
    with suppress(OSError):
        if content is not None:
            path.write_bytes(content)
        elif path.exists():
            path.unlink()


def _ended(results: Path) -> bool:
    """Whether the journal's last line is a footer."""
    try:
        with (results / "journal.jsonl").open("rb") as journal:
            journal.seek(0, os.SEEK_END)
            journal.seek(max(0, journal.tell() - (1 << 20)))
            lines = journal.read().splitlines()
    except OSError:
        return False
    return bool(lines) and lines[-1].startswith(b'{"kind":"footer"')
