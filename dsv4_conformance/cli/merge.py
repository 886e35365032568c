"""``dsv4-conformance merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def merge(
    journals: Annotated[
        list[Path], typer.Argument(metavar="JOURNAL...", help="Journals of shards, or their results folders.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder of the merged journal.")],
) -> int:
    """Make one journal of the shards of a run. Refused if they do not belong together; what is missing is NOT_RUN.

    The exit code is that of a run with these results.
    """
    from dsv4_conformance.plugin.merging import merge as merged
    from dsv4_conformance.plugin.merging import write
    from dsv4_conformance.report.gathering import journal_path

    journal = merged([journal_path(path) for path in journals])
    path = write(journal, output)
    assert journal.footer is not None
    typer.echo(f"{journal.footer.verdict}\njournal: {path}")
    return journal.footer.exit_code
