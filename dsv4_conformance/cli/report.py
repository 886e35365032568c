"""``dsv4-conformance report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsv4_conformance.errors import BadInput, ExitCode


def report(
    journals: Annotated[
        list[Path], typer.Argument(metavar="JOURNAL...", help="journal.jsonl files of runs, or folders that hold one.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder of the report.")],
    faults: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Kill matrix, as JSON or JSON lines; repeatable.")
    ] = None,
    submission: Annotated[
        bool, typer.Option("--submission", help="Add the journals and a manifest, so that `verify` can recompute it.")
    ] = False,
) -> int:
    """Tell runs side by side: one HTML page, Markdown, JUnit, CTRF-style JSON and badges, from their journals.

    Exit code: 0 if every run qualifies, else that of the first run that does not; 2 bad input.

    Example: dsv4-conformance report h200/journal.jsonl b200/journal.jsonl -o report
    """
    from dsv4_conformance.report.faults import of_journals, read_faults
    from dsv4_conformance.report.gathering import gather, journal_path
    from dsv4_conformance.report.overview import verdict_lines
    from dsv4_conformance.report.submission import MANIFEST, collect, seal
    from dsv4_conformance.report.writing import PAGE, files, remove_other_badges, write

    paths, matrices = [journal_path(path) for path in journals], list(faults or [])
    tables = [read_faults(path) for path in matrices]
    gathered = gather(paths)
    if submission:
        paths, matrices = collect(output, paths, matrices)
        gathered, tables = gather(paths), [read_faults(path) for path in matrices]
    elif (output / MANIFEST).is_file():
        raise BadInput(
            f"{output} holds a submission, whose files must stay as they are; name another folder with -o, or make it "
            "anew with --submission."
        )
    written = write(output, files(gathered, [*tables, *of_journals(gathered)]))
    remove_other_badges(output, written)
    for line in verdict_lines(gathered):
        typer.echo(line)
    typer.echo(f"report: {output / PAGE}")
    if submission:
        sealed = seal(output, gathered, matrices)
        typer.echo(f"submission: {output / MANIFEST}, sha256 {sealed.sha256}")
        for name in sealed.unsigned:
            typer.echo(f"removed: {name}, which signed the manifest before this one; sign again")
    wrong = next((verdict for verdict in gathered.verdicts if not verdict.good), None)
    return ExitCode.QUALIFIES if wrong is None else wrong.code or ExitCode.FAILED
