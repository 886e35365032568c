"""``dsv4-conformance matrix``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dsv4_conformance.cli.options import Profile, Seed
from dsv4_conformance.plugin.options import DEFAULT_PROFILE


def matrix(
    rows: Annotated[
        list[str],
        typer.Argument(
            metavar="ROW...",
            help="An implementation to run here; IMPL@ENV, in tox environment ENV; or ENV alone, as in sglang-0.5.23.",
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder of rows and matrix.")],
    profile: Profile = DEFAULT_PROFILE,
    seed: Seed = "0",
    workers: Annotated[str, typer.Option("-n", "--workers", metavar="N|auto", help="Processes of a row.")] = "auto",
    minutes: Annotated[
        float, typer.Option(min=0, metavar="M", help="Time of one row, its environment included; 0: any.")
    ] = 0,
    again: Annotated[bool, typer.Option("--again", help="Run rows that are complete, too.")] = False,
    project: Annotated[
        Path, typer.Option(metavar="DIR", help="Checkout whose tox.ini makes the environments.")
    ] = Path(),
    pytest_arguments: Annotated[
        list[str] | None, typer.Option("--pytest", metavar="WORD", help="Passed to pytest, such as -x; repeatable.")
    ] = None,
) -> int:
    """Run several implementations or releases, each in an environment of its own, and print requirement by row.

    Rows that are complete for this profile, seed and commit are kept, and one that was cut off is gone on with. Writes
    DIR/matrix.md, DIR/matrix.json, the report of all rows and DIR/ROW/journal.jsonl.

    Exit code: 0 every row qualifies, 1 one does not, 3 one could not run, 2 bad input.

    Example: dsv4-conformance matrix builtin sglang-0.5.14 sglang-0.5.23 -o matrix
    """
    from dsv4_conformance.implementations.registry import names
    from dsv4_conformance.matrix.rows import read_rows
    from dsv4_conformance.matrix.running import Asked, run_rows
    from dsv4_conformance.matrix.telling import data_of, exit_code, markdown_of
    from dsv4_conformance.report.gathering import gather
    from dsv4_conformance.report.writing import files, write

    found = read_rows(rows, names())
    asked = Asked(output, profile, seed, workers, minutes, project.resolve(), tuple(pytest_arguments or ()))
    done = run_rows(found, asked, again, lambda text: typer.echo(text, err=True))
    journals = [one.journal for one in done if one.journal is not None]
    gathered = gather(journals) if journals else None
    words = ["dsv4-conformance", "matrix", *rows, "--profile", profile, "--seed", seed, "-o", output.name]
    text = markdown_of(done, gathered, shlex.join(words))
    told = {"matrix.md": text, "matrix.json": data_of(done, gathered, shlex.join(words))}
    writers = {name: lambda file, said=said: file.write(said) for name, said in told.items()}
    write(output, {**(files(gathered) if gathered is not None else {}), **writers})
    typer.echo(text)
    typer.echo(f"matrix: {output / 'matrix.md'}", err=True)
    return exit_code(done, gathered)
