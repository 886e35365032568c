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


def endpoint_words(
    endpoint: str | None, model: str | None, golden: Path | None, answers: Path | None, weights: str | None
) -> list[str]:
    """pytest's words for the served model, none for what was not given."""
    values = {"endpoint": endpoint, "model": model, "golden": golden, "answers": answers, "weights": weights}
    return [word for name, value in values.items() if value is not None for word in (f"--dsv4-{name}", str(value))]
