"""``dsv4-conformance run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsv4_conformance.cli.options import (
    Answers,
    Device,
    Durations,
    Endpoint,
    GoldenFolder,
    Impl,
    Memory,
    Model,
    Profile,
    Results,
    Resume,
    Sanitizer,
    Seed,
    Shard,
    Surface,
    Timeout,
    Waivers,
    Weights,
    endpoint_words,
    given_words,
)
from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.options import DEFAULT_IMPL, DEFAULT_PROFILE, DEFAULT_RESULTS


def run(
    impl: Impl = DEFAULT_IMPL,
    profile: Profile = DEFAULT_PROFILE,
    seed: Seed = "0",
    results: Results = DEFAULT_RESULTS,
    device: Device = "auto",
    workers: Annotated[
        str, typer.Option("-n", "--workers", metavar="N|auto", help="Processes; auto: one per GPU, else per CPU.")
    ] = "0",
    surface: Surface = None,
    timeout: Timeout = None,
    memory: Memory = None,
    resume: Resume = False,
    shard: Shard = None,
    durations: Durations = None,
    waivers: Waivers = None,
    sanitizer: Sanitizer = None,
    endpoint: Endpoint = None,
    model: Model = None,
    golden: GoldenFolder = None,
    answers: Answers = None,
    weights: Weights = None,
    pytest_arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- PYTEST ARGUMENTS]", help="Passed to pytest, such as -k or -x.")
    ] = None,
) -> int:
    """Run the suites on an implementation, from any folder. Writes journal.jsonl and junit.xml to the results folder.

    Exit code: 0 qualifies, 1 a failure or a gap, 2 bad input, 3 the harness failed, 5 nothing was checked, 6
    accuracy inconclusive, 7 accuracy not comparable.
    """
    from dsv4_conformance.cli.guarded import guarded
    from dsv4_conformance.cli.pytest_run import run_pytest

    if workers not in ("auto", "logical") and not workers.isdecimal():
        raise BadInput(f"-n {workers!r} is no number of processes; give 0 or more, or auto.")
    options = {"impl": impl, "profile": profile, "seed": seed, "results": results, "device": device}
    words = [word for name, value in options.items() for word in (f"--dsv4-{name}", value)]
    words += ["-n", workers, "--dist", "worksteal"] if workers != "0" else []
    words += given_words(
        timeout=timeout,
        memory=memory,
        resume=resume,
        shard=shard,
        durations=durations,
        waivers=waivers,
        sanitizer=sanitizer,
    )
    words += [f"--dsv4-surface={name}" for name in surface or ()]
    words += endpoint_words(endpoint, model, golden, answers, weights)
    words += ["--junitxml", str(Path(results).expanduser() / "junit.xml")]
    return guarded(lambda: run_pytest([*words, *(pytest_arguments or [])]), Path(results).expanduser())
