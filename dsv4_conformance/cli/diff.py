"""``dsv4-conformance diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsv4_conformance.errors import BadInput, ExitCode

FAIL_ON = "regressed,uncovered,gone"


def diff(
    one: Annotated[Path, typer.Argument(metavar="A", help="Journal of the run before, or its results folder.")],
    other: Annotated[Path, typer.Argument(metavar="B", help="Journal of the run after.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write diff.html and diff.md there, too.")
    ] = None,
    form: Annotated[str, typer.Option("--format", metavar="text|markdown", help="What is printed.")] = "text",
    fail_on: Annotated[
        str, typer.Option(metavar="CLASSES", help="Exit code 1 if there is any of these, separated by commas.")
    ] = FAIL_ON,
) -> int:
    """Say what changed between two runs, case by case.

    Classes: regressed, uncovered (checked before, declared not applicable now), gone, drifted (still passes, with an
    error larger by half a budget or more), otherwise (fails in another way), fixed, covered, new.

    Exit code: 0 nothing got worse; 1 something did, B did not end, or a journal contradicts itself; 2 bad input; 5
    nothing was checked; 7 no case in common.

    Example: dsv4-conformance diff last-release/journal.jsonl dsv4-results/journal.jsonl -o diff
    """
    from dsv4_conformance.report.comparing import CHANGES, compare
    from dsv4_conformance.report.diff_text import as_markdown, as_page, text
    from dsv4_conformance.report.gathering import journal_path
    from dsv4_conformance.report.writing import write

    wanted = [word for word in fail_on.split(",") if word]
    unknown = next((word for word in wanted if word not in CHANGES), None)
    if unknown is not None:
        raise BadInput(f"--fail-on {unknown!r} is no class of changes; choose among {', '.join(CHANGES)}.")
    if form not in ("text", "markdown"):
        raise BadInput(f"--format {form!r} is unknown; choose text or markdown.")
    found = compare(journal_path(one), journal_path(other))
    if output is not None:
        write(
            output,
            {
                "diff.html": lambda file: file.write(as_page(found)),
                "diff.md": lambda file: file.write(as_markdown(found)),
            },
        )
    typer.echo(as_markdown(found) if form == "markdown" else "\n".join(text(found)))
    if output is not None:
        typer.echo(f"page: {output / 'diff.html'}")
    if not found.common and all(run.total for run in found.gathered.runs):
        typer.echo("The two runs have no case in common: compare runs of one profile, seed and version.", err=True)
        return ExitCode.INVALID_COMPARISON
    if not found.checked:
        return ExitCode.NOTHING_CHECKED
    worse = any(found.counts[change] for change in CHANGES if change in wanted)
    return ExitCode.FAILED if worse or not found.reliable else ExitCode.QUALIFIES
