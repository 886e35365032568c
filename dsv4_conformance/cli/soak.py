"""``dsv4-conformance soak``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4_conformance.cases.fixed import VARIABLE
from dsv4_conformance.cli.options import Device, Impl, Timeout
from dsv4_conformance.errors import BadInput, ExitCode
from dsv4_conformance.plugin.options import DEFAULT_IMPL, read_seed

if TYPE_CHECKING:
    from dsv4_conformance.soak.files import Log, Progress

INTERRUPTED = 130
EVERY_S = 10.0


def soak(
    impl: Impl = DEFAULT_IMPL,
    cases: Annotated[
        int, typer.Option(min=1, metavar="N", help="Cases to judge at least; they are drawn in twenties.")
    ] = 1000,
    seed: Annotated[str, typer.Option(metavar="N", help="Stream of the cases; another number draws others.")] = "0",
    minutes: Annotated[float | None, typer.Option(min=0.01, metavar="M", help="Stop after so many minutes.")] = None,
    workers: Annotated[
        str, typer.Option("-n", "--workers", metavar="N|auto", help="Processes; auto: one per GPU, else per CPU.")
    ] = "1",
    surface: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Draw from this surface alone; can be given several times.")
    ] = None,
    size: Annotated[str, typer.Option(metavar="auto|laptop|gpu", help="Menu of shapes; auto: by the device.")] = "auto",
    results: Annotated[str, typer.Option(metavar="DIR", help="Folder of the log and of failed cases.")] = "dsv4-soak",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the soak in the results folder.")] = False,
    max_failures: Annotated[int, typer.Option(min=1, metavar="N", help="Stop when so many cases failed.")] = 100,
    timeout: Timeout = None,
    device: Device = "auto",
) -> int:
    """Judge fresh random cases of every kind that an implementation offers; shrink and keep what fails.

    Exit code: 0 nothing failed, 1 something did, 2 bad input, 3 the harness failed, 5 nothing was checked, 130 after
    Ctrl-C, with the summary of what was done.
    """
    from dsv4_conformance.implementations.registry import check_device, load
    from dsv4_conformance.plugin.option_values import read_number
    from dsv4_conformance.soak.files import Log, Plan
    from dsv4_conformance.soak.pool import Limits, Pool
    from dsv4_conformance.soak.worker import Setup

    if size not in ("auto", "laptop", "gpu"):
        raise BadInput(f"size {size!r} is unknown; choose auto, laptop or gpu.")
    implementation = load(impl)
    where = check_device(implementation, device)
    implementation.check_available()
    chosen = ("gpu" if where == "cuda" else "laptop") if size == "auto" else size
    only = tuple(surface or ())
    for name in only:
        if name not in implementation.surfaces:
            offered = ", ".join(implementation.surfaces)
            raise BadInput(f"implementation {impl!r} does not offer {name!r}; it offers {offered}.")
    number = read_seed(seed)
    setups = [Setup(impl, where, chosen, number, only, gpu) for gpu in _gpus(workers, where)]
    plan = Plan(impl, implementation.identity.version, number, where, chosen, only)
    log = Log(Path(results).expanduser(), plan, resume)
    limits = Limits(
        cases,
        None if minutes is None else 60 * minutes,
        read_number("--timeout", timeout, 300.0, 86400.0),
        max_failures,
    )
    told = _Told(log, cases, f"--impl {impl} --device {where}")
    try:
        Pool(setups, log, limits, told.progress).run()
    except KeyboardInterrupt:
        typer.echo("interrupted; go on with the same command and --resume")
        told.summary()
        return ExitCode.FAILED if log.progress.failed else INTERRUPTED
    except BadInput as error:
        if not log.progress.statuses:
            raise
        told.summary()
        typer.echo(f"dsv4-conformance: {error}", err=True)
        return ExitCode.FAILED if log.progress.failed else ExitCode.BAD_INPUT
    told.summary()
    return _code(log.progress)


def _gpus(workers: str, device: str) -> list[str | None]:
    """The GPU of each worker, None on a CPU. Raises BadInput for a number of workers that makes no sense."""
    from dsv4_conformance.implementations.gpus import visible_gpus

    gpus: list[str] = visible_gpus() if device == "cuda" else []
    if workers == "auto":
        count = len(gpus) or len(os.sched_getaffinity(0))
    elif workers.isdecimal() and 0 < int(workers) <= 256:
        count = int(workers)
    else:
        raise BadInput(f"-n {workers!r} is no number of processes; give 1 to 256, or auto.")
    return [gpus[place % len(gpus)] if gpus else None for place in range(count)]


def _code(progress: Progress) -> int:
    if progress.failed - progress.statuses["HARNESS_ERROR"] > 0:
        return ExitCode.FAILED
    if progress.statuses["HARNESS_ERROR"]:
        return ExitCode.HARNESS_ERROR
    return ExitCode.QUALIFIES if progress.judged else ExitCode.NOTHING_CHECKED


class _Told:
    """Lines about a soak: now and then while it runs, and in the end."""

    def __init__(self, log: Log, wanted: int, words: str) -> None:
        self._log, self._wanted, self._words = log, wanted, words
        self._started = self._last = time.monotonic()
        self._before = log.progress.judged

    def progress(self) -> None:
        """At most every ten seconds."""
        now = time.monotonic()
        if now - self._last >= EVERY_S:
            self._last = now
            done = self._log.progress
            rate = (done.judged - self._before) / (now - self._started)
            left = f", {(self._wanted - done.judged) / rate / 60:.0f} min left" if rate else ""
            typer.echo(f"{done.judged:,} of {self._wanted:,} judged, {done.failed} failed, {rate:.1f}/s{left}")

    def summary(self) -> None:
        """What was judged, and every failure that has a file."""
        done = self._log.progress
        seconds = time.monotonic() - self._started
        rate = (done.judged - self._before) / seconds if seconds else 0.0
        told = ", ".join(f"{count:,} {status}" for status, count in sorted(done.statuses.items()))
        typer.echo(
            f"{done.judged:,} cases judged in {seconds / 60:.1f} min, {rate:.1f} per second: {told or 'nothing'}"
        )
        for name, count in done.surfaces.most_common():
            typer.echo(f"  {name:<26} {count:>8,}")
        shown = {file: f"FAIL {test}: {sentence[:400]}" for file, test, sentence in done.files}
        for file, line in shown.items():
            typer.echo(f"{line}\n  dsv4-conformance repro {self._log.folder / file} {self._words}")
        if shown:
            typer.echo(f"  each of these files can become a fixed case: {VARIABLE}=FOLDER (docs/soak.md)")
        if done.failed > len(shown):
            typer.echo(f"{done.failed - len(shown)} more cases of these tests failed, and are counted only.")
        typer.echo(f"{done.failed} failed")
