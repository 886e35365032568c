"""``dsv4-conformance faults``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsv4_conformance.cli.options import Results
from dsv4_conformance.errors import BadInput, ExitCode
from dsv4_conformance.plugin.options import DEFAULT_RESULTS

LONGEST_CASE_S = 120.0


def faults(
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="This fault alone, such as S01; repeatable.")
    ] = None,
    workers: Annotated[
        str, typer.Option("-n", "--workers", metavar="N|auto", help="Processes; auto: one per CPU.")
    ] = "1",
    full: Annotated[
        bool, typer.Option("--full", help="Profile default in place of kill, and what only one requirement catches.")
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="End a fault's trial when the requirement that it must break has failed.")
    ] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the faults and run nothing.")] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time a case may take; then its process is ended.")
    ] = LONGEST_CASE_S,
    results: Results = f"{DEFAULT_RESULTS}/faults",
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the matrix as Markdown.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the matrix as an HTML page.")] = None,
) -> int:
    """Do the suites catch public bugs? Each is re-created on the built-in implementation and must be killed, on a CPU.

    Exit code: 0 all are killed by the requirement they must break, 1 one survives, is caught by a crash only or by
    other requirements only, 2 bad input, 3 the unchanged implementation fails.
    """
    from dsv4_conformance.faults import command
    from dsv4_conformance.faults.catalogue import chosen

    selected = chosen(ids or ())
    if listing:
        command.listed(selected, typer.echo)
        return ExitCode.QUALIFIES
    if not timeout > 0:
        raise BadInput(f"--timeout is {timeout:g}; give the seconds that a case may take.")
    command.check_files(markdown, html)
    profile, count = "default" if full else "kill", command.processes(workers)
    matrix = command.try_all(selected, profile, count, timeout, Path(results).expanduser(), typer.echo, stop)
    if full:
        command.say_only(matrix, typer.echo)
    command.write_tables(matrix, markdown, html)
    for problem in matrix.problems:
        typer.echo(problem, err=True)
    return ExitCode.FAILED if matrix.problems else ExitCode.QUALIFIES
