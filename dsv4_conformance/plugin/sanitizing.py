"""Puts the processes that run cases under compute-sanitizer, each under a tool of its own.

A tool that follows a run's processes writes what they all do into one log, and nobody could tell whose it was. So
workers are started under one tool each, and only a run without workers is started again under one.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.errors import BadInput, ExitCode
from dsv4_conformance.plugin.options import read_options
from dsv4_conformance.plugin.sanitizer import LOG, LOGS
from dsv4_conformance.plugin.settings import resolve

PROGRAM = "DSV4_COMPUTE_SANITIZER"
"""Variable with the program, where it is neither on the path nor in CUDA's folder."""
ARGUMENTS = "DSV4_SANITIZER_ARGS"
"""Variable with further arguments for it."""
PRINTED = "10000"
CALLERS = "16"
"""Frames of the host kept of each finding; the kernel's place stands before them."""
NAMED = f'export {LOG}="$0/$$.log"; program="$1"; shift; exec "$program" --log-file "${LOG}" "$@"'
"""What the shell does: each tool gets a log with its own process id as name, which the watched process is told."""
WATCHED = pytest.StashKey[list[str]]()


def launch(config: pytest.Config) -> int | None:
    """Run pytest under the tool that --dsv4-sanitizer names; its exit code, None if there is nothing to launch.

    With workers there is nothing to launch here; :func:`wrap` will have them started under the tool.
    """
    if hasattr(config, "workerinput") or os.environ.get(LOGS) or config.getoption("collectonly"):
        return None
    try:
        options = read_options(config)
        if options.sanitizer is None:
            return None
        settings = resolve(options)
    except BadInput:
        return None  # pytest_sessionstart says it properly
    try:
        if settings.device != "cuda":
            raise BadInput("compute-sanitizer watches GPUs, and this run is on the CPU; leave out --dsv4-sanitizer.")
        program = _program()
        logs = _logs(options.results)
    except BadInput as error:
        print(f"dsv4-conformance: {error}", file=sys.stderr)
        return int(ExitCode.BAD_INPUT)
    os.environ[LOGS] = str(logs)
    watched = _watched(program, options.sanitizer, logs)
    if config.getoption("numprocesses", default=None) or config.getoption("tx", default=None):
        config.stash[WATCHED] = watched
        return None
    return _run([*watched, sys.executable, "-m", "pytest", *config.invocation_params.args], config)


def wrap(config: pytest.Config, specs: Iterable[Any]) -> None:
    """Have the workers that execnet will start from ``specs`` started under the tool, those that replace them too."""
    watched = config.stash.get(WATCHED, None)
    if watched is not None:
        for spec in specs:
            spec.python = shlex.join([*watched, spec.python or sys.executable])


def _watched(program: str, tool: str, logs: Path) -> list[str]:
    """The words before a command that is to run under the tool."""
    words = [program, "--tool", tool, "--target-processes", "all", "--print-limit", PRINTED]
    # The process, and the device's context, are to outlive a finding, so that it stays the fault of one case.
    words += ["--num-callers-host", CALLERS, "--destroy-on-device-error", "kernel"]
    # What calls of the API return is the suites' own business; libraries try calls that may fail.
    words += ["--report-api-errors", "no"] if tool == "memcheck" else []
    words += shlex.split(os.environ.get(ARGUMENTS, ""))
    return ["sh", "-c", NAMED, str(logs), *words]


def _run(words: list[str], config: pytest.Config) -> int:
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.suspend_global_capture(in_=True)
    try:
        code = subprocess.run(words, check=False).returncode
    finally:
        if capture is not None:
            capture.resume_global_capture()
    return code if code >= 0 else int(ExitCode.FAILED)


def _program() -> str:
    chosen = os.environ.get(PROGRAM)
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = shutil.which(chosen or "compute-sanitizer") or (
        None if chosen else shutil.which(f"{home}/bin/compute-sanitizer")
    )
    if found is None:
        raise BadInput(
            f"There is no {chosen or 'compute-sanitizer'}; it comes with the CUDA toolkit: set CUDA_HOME, or name the "
            f"program in {PROGRAM}."
        )
    return found


def _logs(results: Path) -> Path:
    folder = results / f"sanitizer-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise BadInput(
            f"The results folder {results} cannot be written ({error.strerror}); name another one."
        ) from None
    return folder.resolve()
