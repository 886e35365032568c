"""Starts a run again under compute-sanitizer, so that all its processes are watched."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.errors import BadInput, ExitCode
from dsv4_conformance.plugin.options import read_options
from dsv4_conformance.plugin.sanitizer import LOGS
from dsv4_conformance.plugin.settings import resolve

PROGRAM = "DSV4_COMPUTE_SANITIZER"
"""Variable with the program, where it is neither on the path nor in CUDA's folder."""
ARGUMENTS = "DSV4_SANITIZER_ARGS"
"""Variable with further arguments for it."""
PRINTED = "10000"


def launch(config: pytest.Config) -> int | None:
    """Run pytest under the tool that --dsv4-sanitizer names; its exit code, None if there is nothing to launch."""
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
    command = [program, "--tool", options.sanitizer, "--target-processes", "all", "--log-file", f"{logs}/%p.log"]
    command += ["--print-limit", PRINTED]
    # What calls of the API return is the suites' own business; libraries try calls that may fail.
    command += ["--report-api-errors", "no"] if options.sanitizer == "memcheck" else []
    command += shlex.split(os.environ.get(ARGUMENTS, ""))
    environment = {**os.environ, LOGS: str(logs)}
    # Inside one cached block of memory the tool could not tell tensors apart.
    environment.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.suspend_global_capture(in_=True)
    words = [*command, sys.executable, "-m", "pytest", *config.invocation_params.args]
    try:
        code = subprocess.run(words, env=environment, check=False).returncode
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
    return folder
