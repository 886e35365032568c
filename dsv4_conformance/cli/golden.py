"""``dsv4-conformance golden``: recorded expected data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsv4_conformance.cli import golden_accuracy
from dsv4_conformance.errors import BadInput, ExitCode

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def golden() -> None:
    """Recorded expected data: check it, or record it anew."""


@app.command()
def tensors(
    write: Annotated[bool, typer.Option("--write/--check", help="Record anew, or compare byte for byte.")] = False,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why recorded files change; goes to the CHANGELOG.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Golden folder; that of the checkout or package, if not given.")
    ] = None,
) -> int:
    """Compare the golden tensors with their cases, or record them. They are computed anew; --write records them.

    Exit code: 0 as recorded, 1 something differs, 2 bad input.
    """
    from dsv4_conformance import resources
    from dsv4_conformance.golden import tensors as goldens
    from dsv4_conformance.golden.cases import GOLDENS

    place = folder or resources.golden_dir()
    if write:
        changed = goldens.write(place, reason)
        for line in changed or [f"{place}: nothing changed"]:
            typer.echo(line)
        return ExitCode.QUALIFIES
    if reason is not None:
        raise BadInput("--reason goes with --write.")
    found = goldens.problems(place)
    for sentence in found:
        typer.echo(sentence, err=True)
    if found:
        typer.echo('Where that is meant: dsv4-conformance golden tensors --write --reason "..."', err=True)
    else:
        typer.echo(f"{len(GOLDENS)} golden files: computed anew, the same byte for byte")
    return ExitCode.FAILED if found else ExitCode.QUALIFIES


for _command in (golden_accuracy.record, golden_accuracy.show, golden_accuracy.verify, golden_accuracy.compare):
    app.command()(_command)
