"""``dsv4-conformance smoke``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer

from dsv4_conformance.cli.options import Device, Impl, Results
from dsv4_conformance.errors import ExitCode
from dsv4_conformance.plugin.options import DEFAULT_IMPL, DEFAULT_RESULTS


def smoke(impl: Impl = DEFAULT_IMPL, device: Device = "auto", results: Results = DEFAULT_RESULTS) -> int:
    """One case per surface: first on the built-in implementation, which must pass, then on the given one.

    If the built-in one fails, the harness or this installation is broken (exit code 3) and nothing is said about yours.
    """
    built_in = _once(DEFAULT_IMPL, "auto" if impl != DEFAULT_IMPL else device, results)
    if built_in not in (ExitCode.QUALIFIES, ExitCode.BAD_INPUT):
        typer.echo("The harness is broken here: the built-in implementation does not pass. Please report it.", err=True)
        return ExitCode.HARNESS_ERROR
    if impl == DEFAULT_IMPL or built_in == ExitCode.BAD_INPUT:
        return built_in
    typer.echo()
    code = _once(impl, device, results)
    if code == ExitCode.FAILED:
        typer.echo(f"The harness works; {impl} is wrong.")
    elif code == ExitCode.QUALIFIES:
        typer.echo(f"The harness works, and {impl} is wired up.")
    return code


def _once(impl: str, device: str, results: str) -> int:
    """Run profile smoke in a process of its own: two implementations must not share one."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in impl)
    typer.echo(f"smoke: {impl}")
    words = ["run", "--impl", impl, "--profile", "smoke", "--device", device]
    words += ["--results", str(Path(results) / f"smoke-{name}"), "--", "-q"]
    return subprocess.run([sys.executable, "-m", "dsv4_conformance.cli", *words], check=False).returncode
