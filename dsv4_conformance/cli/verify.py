"""``dsv4-conformance verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsv4_conformance.errors import ExitCode


def verify(
    submission: Annotated[Path, typer.Argument(metavar="SUBMISSION", help="Folder that `report --submission` made.")],
    golden: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Accuracy goldens that are not the shipped ones.")
    ] = None,
    waivers: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Waivers of the runs that are not the shipped ones.")
    ] = None,
) -> int:
    """Recompute a submission: plan, results, verdicts, waivers, environment, git state, goldens, report.

    Refuses gaps and edits, a sentence each. Exit code: 0 accepted, 1 refused, 2 no submission, 7 of another version.

    Example: dsv4-conformance verify release-1.4
    """
    from dsv4_conformance.report.overview import run_lines
    from dsv4_conformance.report.submission import MANIFEST, read_manifest, sha256
    from dsv4_conformance.report.verifying import verify as verified

    manifest = read_manifest(submission)
    found, gathered = verified(submission, manifest, golden, waivers)
    for sentence in found.refusals:
        typer.echo(f"refused: {sentence}")
    for sentence in dict.fromkeys(found.notes):
        typer.echo(f"note: {sentence}")
    if not found.refusals:
        typer.echo(f"holds: {', '.join(found.checked)}")
        for line in run_lines(gathered.runs if gathered else ()):
            typer.echo(line)
        typer.echo(f"ACCEPTED: {len(manifest.runs)} run(s), {len(manifest.files)} files")
        typer.echo(f"to sign: sha256 {sha256(submission / MANIFEST)} ({MANIFEST})")
        return ExitCode.QUALIFIES
    typer.echo(f"REFUSED: {len(found.refusals)} reason(s)")
    return ExitCode.INVALID_COMPARISON if found.incomparable else ExitCode.FAILED
