"""Options that several commands share, under the words that pytest knows with the prefix --dsv4-."""

from __future__ import annotations

from typing import Annotated

import typer

Impl = Annotated[str, typer.Option(metavar="NAME|MODULE:ATTR", help="Implementation under test.")]
Profile = Annotated[str, typer.Option(metavar="NAME", help="How much to run, and what is mandatory.")]
AnyProfile = Annotated[str | None, typer.Option(metavar="NAME", help="Profile to search; all, if not given.")]
Seed = Annotated[str, typer.Option(metavar="N", help="Stream that random cases come from; 0 is the published one.")]
Results = Annotated[str, typer.Option(metavar="DIR", help="Folder of the journal; older journals in it are kept.")]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Device of the implementation.")]
