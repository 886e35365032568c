"""``dsv4-conformance accuracy rehearse``: the gate from end to end against the simulated server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsv4_conformance.cli.accuracy_asking import extra_needed
from dsv4_conformance.errors import BadInput
from dsv4_conformance.texts import counted


@extra_needed
def rehearse(
    task: Annotated[str, typer.Option(metavar="TASK", help="gsm8k or aime25.")] = "gsm8k",
    profile: Annotated[str, typer.Option(metavar="NAME", help="pre-merge or release.")] = "pre-merge",
    trials: Annotated[int, typer.Option(metavar="N", help="Runs per scenario.")] = 20,
    scenario: Annotated[
        list[str] | None, typer.Option(metavar="WORDS", help="Only scenarios whose name has these words.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(metavar="DIR", help="Golden folder with goldens of it.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Write tables in Markdown.")] = False,
    paragraphs: Annotated[bool, typer.Option("--paragraphs", help="Print each verdict's paragraph, too.")] = False,
) -> None:
    """Rehearse the gate from end to end. Real questions, client and files; a simulated engine whose truth is known.

    Needs the questions, as `accuracy run` does. Every trial draws new answers; the golden is the shipped one.
    """
    from dsv4_conformance import resources
    from dsv4_conformance.accuracy import rehearsal
    from dsv4_conformance.accuracy.power import Rates
    from dsv4_conformance.accuracy.power_text import markdown, plain
    from dsv4_conformance.accuracy.verdict_text import paragraph

    if trials < 1:
        raise BadInput(f"{trials} trials show nothing; give 1 or more.")
    place = folder or resources.golden_dir()
    found: dict[str, dict[str, Rates]] = {}
    seconds = []
    for chosen in rehearsal.scenarios(task, scenario or []):
        done = []
        for one in rehearsal.rehearse(task, profile, chosen, trials, place):
            done.append(one)
            seconds.append(one.seconds)
            typer.echo(f"{chosen.name} {len(done)}/{trials}: {one.judgement.verdict.name}", err=True)
            if paragraphs:
                typer.echo(paragraph(one.judgement))
        found[chosen.name] = {f"end to end, {profile}": rehearsal.rates(done)}
    for line in markdown(found) if as_markdown else plain(found):
        typer.echo(line)
    typer.echo("")
    typer.echo(f"{counted(len(seconds), 'run')} of {task}, {sum(seconds) / len(seconds):.1f} s each on average")
