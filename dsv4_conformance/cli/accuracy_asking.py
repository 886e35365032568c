"""What the accuracy commands share: asking a server with every way it can end as an exit code, and safe printing."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import typer

from dsv4_conformance.errors import BadInput, ExitCode
from dsv4_conformance.texts import counted

if TYPE_CHECKING:
    from dsv4_conformance.accuracy.run import Finished, Settings

DEADLINES_S = {"gsm8k": 600.0, "aime25": 14400.0}
Options = ParamSpec("Options")
Ended = TypeVar("Ended")


def deadline_of(task: str, given: float | None = None) -> float:
    """Seconds for one request: what was given, else the task's."""
    return DEADLINES_S.get(task, 600.0) if given is None else given


def invalid_is_7(command: Callable[Options, int]) -> Callable[Options, int]:
    """A command whose file was edited, or lost its closing line, says so and ends with exit code 7."""

    @wraps(command)
    def run(*args: Options.args, **options: Options.kwargs) -> int:
        from dsv4_conformance.accuracy.reading import Invalid

        try:
            return command(*args, **options)
        except Invalid as error:
            typer.echo(f"dsv4-conformance: INVALID: {error}", err=True)
            return ExitCode.INVALID_COMPARISON

    return run


def extra_needed(command: Callable[Options, Ended]) -> Callable[Options, Ended]:
    """A command that raises BadInput, with the remedy, where a package of the extra ``accuracy`` is not installed."""

    @wraps(command)
    def run(*args: Options.args, **options: Options.kwargs) -> Ended:
        from dsv4_conformance.accuracy.harness import EXTRA, without_extra

        try:
            return command(*args, **options)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in EXTRA:
                raise
            raise without_extra(error) from None

    return run


def asked(settings: Settings) -> Finished:
    """Run the task. Ends the command with exit code 7 where the server does not think as asked, 1 where it is gone.

    Of Ctrl-C and SIGTERM it is said that answers are kept; then they do what they do everywhere.
    """
    from dsv4_conformance.accuracy.probe import NotAsAsked
    from dsv4_conformance.accuracy.pump import ServerGone
    from dsv4_conformance.accuracy.run import run_task

    kept = f"What was answered is kept in {settings.results}; run the same command again to go on."
    try:
        with _told_of_sigterm(f"dsv4-conformance: Ended by SIGTERM. {kept}"):
            return run_task(settings)
    except KeyboardInterrupt:
        typer.echo(f"dsv4-conformance: Interrupted. {kept}", err=True)
        raise
    except NotAsAsked as error:
        typer.echo(f"dsv4-conformance: {error}", err=True)
        raise typer.Exit(int(ExitCode.INVALID_COMPARISON)) from None
    except ServerGone as error:
        typer.echo(
            f"dsv4-conformance: The server stopped answering ({error}). {kept}",
            err=True,
        )
        raise typer.Exit(int(ExitCode.FAILED)) from None


@contextmanager
def _told_of_sigterm(told: str) -> Iterator[None]:
    """While this lasts, SIGTERM prints ``told`` before it ends the process as it always does, with 143 in a shell."""

    def end(number: int, _: object) -> None:
        os.write(2, f"{told}\n".encode())  # a print here could come in the middle of another one
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def reuse(finished: Finished) -> str:
    """How many questions were asked and how many answers were there already, from when."""
    told = f"asked {finished.asked:,} now, reused {counted(finished.reused, 'answer')}"
    if not finished.reused:
        return told
    since = [session.started for session in finished.run.sessions if session.answers]
    told += f" of {finished.path} (begun {since[0] if since else finished.run.header.started})"
    if not finished.asked:
        told += ". Nothing was asked: if the build has changed since, give it a --results folder of its own"
    return told


def say(lines: Iterable[str]) -> None:
    """Print lines; a reader that has seen enough, such as ``head``, is no failure."""
    try:
        for line in lines:
            typer.echo(line)
    except BrokenPipeError:
        # Python flushes at exit once more, and would end with a code of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def notes_of(words: list[str]) -> dict[str, str]:
    """NAME=TEXT, each. Raises BadInput for anything else, and for a name that is given twice."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, text = (part.strip() for part in word.partition("="))
        if not equals or not name:
            raise BadInput(f"--note is {word!r}; give NAME=TEXT.")
        if found.get(name, text) != text:
            raise BadInput(f"--note {name} is given twice, as {found[name]!r} and {text!r}; keep one.")
        found[name] = text
    return found


@contextmanager
def confirmed(question: str, *, yes: bool) -> Iterator[None]:
    """Ask before something long begins. Raises BadInput where nobody can answer, typer.Abort where the answer is no."""
    if not yes:
        try:
            agreed = typer.confirm(question)
        except typer.Abort:
            if sys.stdin.isatty():
                raise  # Ctrl-C
            raise BadInput("There is no terminal to ask at; pass --yes to begin without being asked.") from None
        if not agreed:
            typer.echo("dsv4-conformance: Nothing was asked, and nothing was written.", err=True)
            raise typer.Abort
    yield
