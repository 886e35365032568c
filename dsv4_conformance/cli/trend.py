"""``dsv4-conformance trend``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsv4_conformance.errors import BadInput, ExitCode


def trend(
    journals: Annotated[
        list[Path], typer.Argument(metavar="A B C...", help="Journals of runs, or their results folders, in any order.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write trend.html and trend.md there, too.")
    ] = None,
    form: Annotated[str, typer.Option("--format", metavar="text|markdown", help="What is printed.")] = "text",
) -> int:
    """Show several runs over time: verdicts, and which requirements went wrong, came back or drifted.

    Exit code: 0, also if the last run does not qualify; 2 bad input, 5 no run has checked anything.

    Example: dsv4-conformance trend history/*.jsonl -o trend
    """
    from dsv4_conformance.report.gathering import journal_path
    from dsv4_conformance.report.trend_text import as_markdown, as_page, text
    from dsv4_conformance.report.trending import trend as trended
    from dsv4_conformance.report.writing import write

    if form not in ("text", "markdown"):
        raise BadInput(f"--format {form!r} is unknown; choose text or markdown.")
    found = trended([journal_path(path) for path in journals])
    if output is not None:
        write(
            output,
            {
                "trend.html": lambda file: file.write(as_page(found)),
                "trend.md": lambda file: file.write(as_markdown(found)),
            },
        )
    typer.echo(as_markdown(found) if form == "markdown" else "\n".join(text(found)))
    if output is not None:
        typer.echo(f"page: {output / 'trend.html'}")
    return ExitCode.QUALIFIES if any(run.checked for run in found.runs) else ExitCode.NOTHING_CHECKED
