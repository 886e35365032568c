"""Progress of a run on stderr: a bar with running score and time to go, or a line now and then in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dsv4_conformance.accuracy.records import Answer

LINE_EVERY_S = 30.0
WAIT_EVERY_S = 10.0


class Score:
    """Running counts of the answers seen."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.correct = 0
        self.tokens = 0
        self.new = 0

    def add(self, answer: Answer, new: bool) -> None:
        """Count one answer; ``new``: it was given just now."""
        self.statuses[answer.status] += 1
        self.correct += answer.correct
        if new:
            self.new += 1
            self.tokens += answer.completion_tokens or 0

    @property
    def answered(self) -> int:
        """Answers in all, errors included."""
        return sum(self.statuses.values())

    def text(self) -> str:
        """The score, and whatever is not as it should be."""
        if not self.answered:
            return "-"
        share = f"{100 * self.correct / self.answered:.2f} %"
        named = {
            "truncated": "truncated",
            "empty": "empty",
            "no_answer": "without answer",
            "filtered": "filtered",
            "malformed": "malformed",
            "error": "failed",
        }
        odd = [f"{self.statuses[status]} {name}" for status, name in named.items() if self.statuses[status]]
        return ", ".join([f"{share} right", *odd])


class Waiting:
    """While this lasts, says every ten seconds that nothing has come yet, and later, when nothing comes any more, every
    half minute; a context manager. ``quiet`` says nothing."""

    def __init__(self, title: str, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._title = title
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._over = threading.Event()
        self._heard: float | None = None
        self._thread = threading.Thread(target=self._wait, daemon=True)

    def __enter__(self) -> Waiting:
        if not self._quiet:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def heard(self) -> None:
        """Something came."""
        self._heard = time.monotonic()

    def _wait(self) -> None:
        started = told = time.monotonic()
        while not self._over.wait(WAIT_EVERY_S):
            now = time.monotonic()
            if self._heard is None:
                print(
                    f"{self._title}: waiting for the first reply, {_span(now - started)}", file=self._stream, flush=True
                )
            elif now - max(self._heard, told) >= LINE_EVERY_S:
                told = now
                print(f"{self._title}: no reply for {_span(now - self._heard)}", file=self._stream, flush=True)


class Display:
    """Shows ``total`` answers coming in; a context manager. ``quiet`` shows nothing."""

    def __init__(self, title: str, total: int, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.score = Score()
        self._title = title
        self._total = total
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._started = self._told = time.monotonic()
        console = Console(file=self._stream)
        self._bar: Progress | None = None
        self._waiting = Waiting(title, quiet=quiet or console.is_terminal, stream=self._stream)
        if console.is_terminal and not quiet:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("to go"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[score]}"),
                console=console,
            )
            self._task = self._bar.add_task(title, total=total, score="waiting for the first reply")

    def __enter__(self) -> Display:
        if self._bar is not None:
            self._bar.start()
        self._waiting.__enter__()
        self._started = self._told = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.__exit__()
        if self._bar is not None:
            self._bar.stop()

    def add(self, answer: Answer, new: bool) -> None:
        """Take in one answer."""
        if new:
            self._waiting.heard()
        self.score.add(answer, new)
        if self._bar is not None:
            self._bar.update(self._task, advance=1, score=self.score.text())
        elif not self._quiet and time.monotonic() - self._told >= LINE_EVERY_S:
            self._told = time.monotonic()
            print(self.line(), file=self._stream, flush=True)

    def line(self) -> str:
        """One line for a log: how far, the score, and the time to go at the pace so far."""
        done = self.score.answered
        pace = self.score.new / max(time.monotonic() - self._started, 1e-9)
        to_go = f", {_span((self._total - done) / pace)} to go" if pace else ""
        return f"{self._title}: {done} of {self._total}, {self.score.text()}{to_go}"


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
