"""All files of a report, written to a folder at once: whole, or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TextIO

from dsv4_conformance.errors import BadInput
from dsv4_conformance.report import badges, ctrf, junit, overview, page
from dsv4_conformance.report.faults import FaultTable
from dsv4_conformance.report.gathering import Gathered

PAGE, MARKDOWN, JUNIT, CTRF, BADGES = "report.html", "report.md", "junit.xml", "ctrf.json", "badges"
Writer = Callable[[TextIO], object]
_BADGE = re.compile(r"[A-Z]-[\w.-]+\.svg", re.ASCII)


def files(gathered: Gathered, faults: Sequence[FaultTable] = ()) -> dict[str, Writer]:
    """Path below the folder -> what writes it. Equal journals give equal files, on any day."""
    found: dict[str, Writer] = {
        PAGE: lambda file: file.write(page.render(gathered, faults)),
        MARKDOWN: lambda file: file.write(overview.overview(gathered, faults)),
        JUNIT: lambda file: junit.write(gathered, file),
        CTRF: lambda file: ctrf.write(gathered, file),
    }
    for name, text in badges.badges(gathered).items():
        found[f"{BADGES}/{name}"] = lambda file, text=text: file.write(text)  # type: ignore[misc]
    return found


def write(folder: Path, writers: dict[str, Writer]) -> list[Path]:
    """Write the files, each replaced only when it is complete. Raises BadInput where the folder cannot be written."""
    written = []
    try:
        for name, writer in writers.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.partial")
            try:
                with partial.open("w", encoding="utf-8", newline="\n", errors="backslashreplace") as file:
                    writer(file)
                os.replace(partial, path)
            finally:
                partial.unlink(missing_ok=True)
            written.append(path)
    except OSError as error:
        raise BadInput(
            f"The report cannot be written to {folder} ({error.strerror}); name a folder that can be written with -o."
        ) from None
    return written


def remove_other_badges(folder: Path, written: Collection[Path]) -> None:
    """Remove badges that an earlier report has left, of runs that this one does not have. Raises BadInput."""
    for path in (folder / BADGES).glob("*.svg"):
        if path not in written and _BADGE.fullmatch(path.name):
            try:
                path.unlink()
            except OSError as error:
                raise BadInput(f"The old badge {path} cannot be removed ({error.strerror}); remove it.") from None
