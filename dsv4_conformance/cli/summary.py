"""``dsv4-conformance summary``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsv4_conformance.errors import BadInput


def summary(
    journals: Annotated[
        list[Path], typer.Argument(metavar="JOURNAL...", help="Journals of runs, or their results folders.")
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write here instead of printing.")] = None,
) -> None:
    """Write runs as Markdown: device, versions, date, verdict, and a row per requirement."""
    from dsv4_conformance.plugin.journal import read_journal
    from dsv4_conformance.report.gathering import journal_path
    from dsv4_conformance.report.markdown import markdown

    text = "\n".join(markdown(read_journal(journal_path(path))) for path in journals)
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = f"Cannot write {str(output)!r} ({error.strerror}); name a file in a writable folder."
        raise BadInput(reason) from error
