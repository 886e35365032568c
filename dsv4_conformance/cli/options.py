"""Options that several commands share, under the words that pytest knows with the prefix --dsv4-."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Impl = Annotated[str, typer.Option(metavar="NAME|MODULE:ATTR", help="Implementation under test.")]
Profile = Annotated[str, typer.Option(metavar="NAME", help="How much to run, and what is mandatory.")]
AnyProfile = Annotated[str | None, typer.Option(metavar="NAME", help="Profile to search; all, if not given.")]
Seed = Annotated[str, typer.Option(metavar="N", help="Stream that random cases come from; 0 is the published one.")]
Results = Annotated[str, typer.Option(metavar="DIR", help="Folder of the journal; older journals in it are kept.")]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Device of the implementation.")]
Endpoint = Annotated[
    str | None, typer.Option(metavar="URL", help="Server whose accuracy is judged too, as in http://HOST:8000/v1.")
]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="The served model that has goldens.")]
GoldenFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="Golden folder of accuracy runs.")]
Answers = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Keep answers here, and take those of this very build from here.")
]
Weights = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Declared revision and accuracy class of the weights.")
]
Timeout = Annotated[
    str | None, typer.Option(metavar="SECONDS", help="Time a case may take; then its process is ended. 300 by default.")
]
Memory = Annotated[str | None, typer.Option(metavar="GIB", help="Host memory that a process with cases may take.")]
Surface = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Run the cases of this surface alone; can be given several times."),
]
Sanitizer = Annotated[
    str | None,
    typer.Option(metavar="TOOL", help="Run under compute-sanitizer: memcheck, racecheck, initcheck or synccheck."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run whose journal is in the results folder.")]
Shard = Annotated[str | None, typer.Option(metavar="I/N", help="Run the I-th of N parts of the plan.")]
Durations = Annotated[
    str | None, typer.Option(metavar="JOURNAL", help="An earlier journal whose times balance the shards.")
]
Waivers = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Waivers: a TOML file or a folder of them."),
]


def given_words(**values: str | bool | None) -> list[str]:
    """pytest's words for options of these names, none for what was not given."""
    words = [(f"--dsv4-{name}", value) for name, value in values.items() if value not in (None, False)]
    return [word for option, value in words for word in ([option] if value is True else [option, str(value)])]


def endpoint_words(
    endpoint: str | None, model: str | None, golden: Path | None, answers: Path | None, weights: str | None
) -> list[str]:
    """pytest's words for the served model, none for what was not given."""
    values = {"endpoint": endpoint, "model": model, "golden": golden, "answers": answers, "weights": weights}
    return [word for name, value in values.items() if value is not None for word in (f"--dsv4-{name}", str(value))]
