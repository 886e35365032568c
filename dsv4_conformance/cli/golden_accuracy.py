"""``dsv4-conformance golden record|show|verify|compare``: accuracy goldens. Imports neither torch nor lm-eval."""

from __future__ import annotations

import json
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4_conformance.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from dsv4_conformance.accuracy.golden_record import Golden
    from dsv4_conformance.accuracy.records import AccuracyRun

Folder = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Golden folder; that of the checkout or package, if not given.")
]


def record(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN.jsonl]", help="A finished run; without it, one is made first.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Default: MODEL.TASK.")] = None,
    task: Annotated[str | None, typer.Option(metavar="TASK", help="gsm8k or aime25, to make the run.")] = None,
    endpoint: Annotated[str | None, typer.Option(metavar="URL", help="The trusted server, to make the run.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model name to ask for.")] = None,
    weights: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Revision and accuracy class of the weights; runs must declare the same."),
    ] = "undeclared",
    passes: Annotated[
        int | None, typer.Option(metavar="K", help="Passes; default 8 for gsm8k, 64 for aime25, all of a given run.")
    ] = None,
    note: Annotated[
        list[str] | None, typer.Option(metavar="NAME=TEXT", help="Goes to the provenance: engine, commit, GPUs, ...")
    ] = None,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why a recorded golden changes; goes to the CHANGELOG.")
    ] = None,
    results: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the run's file is kept; an interrupted run goes on from it.")
    ] = Path("dsv4-golden"),
    folder: Folder = None,
    speed: Annotated[
        float, typer.Option(metavar="N", help="The server's tokens per second, for the estimate of hours.")
    ] = 3000.0,
    simulated: Annotated[bool, typer.Option("--simulated", help="The run is of the simulated server.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a run is made.")] = False,
) -> int:
    """Record a golden, from a finished run or, with --task and --endpoint, by making one.

    Before a run is made, says how many requests, tokens and hours it will take, and asks. A golden that changes gets a
    paired verdict, old to new, in the CHANGELOG.

    Exit code: 0 recorded, 2 bad input.
    """
    from dsv4_conformance.accuracy import golden_files, golden_record
    from dsv4_conformance.accuracy.golden_change import change
    from dsv4_conformance.accuracy.records import load

    place = folder or _shipped()
    if run is None:
        if task is None or endpoint is None:
            raise BadInput("Give the file of a finished run, or --task and --endpoint to make one.")
        run = _made(task, endpoint, model, weights, passes, results, speed, yes=yes)
    found = load(run, texts=False)
    from dsv4_conformance.accuracy.tally import complete_passes

    runs = passes or complete_passes(found)
    named = name or f"{found.header.model.rsplit('/', 1)[-1]}.{found.header.task}"
    fake = simulated or any(answer.served.startswith("simulated") for answer in found.answers[:1])
    new = golden_record.golden_of(found, runs, named, _provenance(found, note or []), simulated=fake)
    verdict = ""
    if named in golden_files.names(place):
        verdict = change(golden_files.load(place, named), new)
    saved = golden_files.save(place, new, reason, verdict)
    for line in _described(new):
        typer.echo(line)
    typer.echo(f"{saved.path}: {'nothing changed' if saved.old == saved.new else f'{saved.old} -> {saved.new}'}")
    if verdict and saved.old != saved.new:
        typer.echo(textwrap.fill(verdict, 110))
    return ExitCode.QUALIFIES


def show(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="All goldens in a line each, if not given.")
    ] = None,
    folder: Folder = None,
) -> int:
    """Show a golden: where it comes from, how it was asked, scores, measured noise, what runs against it can see."""
    from dsv4_conformance.accuracy import golden_files

    place = folder or _shipped()
    if name is not None:
        for line in _described(golden_files.load(place, name)):
            typer.echo(line)
        return ExitCode.QUALIFIES
    for known in golden_files.names(place):
        golden = golden_files.load(place, known)
        kind = " (simulated server, no model)" if golden.simulated else ""
        typer.echo(f"{known}: {golden.task}, {100 * golden.score:.2f} % in {golden.runs} passes{kind}")
    return ExitCode.QUALIFIES


def verify(folder: Folder = None) -> int:
    """Check every accuracy golden: unedited, consistent, listed in MANIFEST.json, explained in CHANGELOG.md.

    Exit code: 0 sound, 1 something is wrong, 2 bad input.
    """
    from dsv4_conformance.accuracy import anchors, golden_files

    place = folder or _shipped()
    found = list(golden_files.problems(place))
    for sentence in found:
        typer.echo(sentence, err=True)
    if not found:
        number = len(golden_files.names(place))
        typer.echo(f"{number} accuracy goldens: unedited, consistent, listed and explained")
        typer.echo(f"{len(anchors.load(place))} public scores as anchors, no gate reference among them")
    return ExitCode.FAILED if found else ExitCode.QUALIFIES


def compare(
    run: Annotated[Path, typer.Argument(metavar="RUN.jsonl", help="The file of an accuracy run.")],
    golden: Annotated[str | None, typer.Option(metavar="NAME", help="Default: the golden of the run's model.")] = None,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="pre-merge or release: margins and looks.")
    ] = "pre-merge",
    folder: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> int:
    """Judge a run against a golden and say in a paragraph what was found.

    Exit code: 0 PASS, 1 FAIL, 2 bad input, 6 INCONCLUSIVE, 7 INVALID: not comparable, and the field is named.
    """
    from dsv4_conformance.accuracy import golden_files
    from dsv4_conformance.accuracy.anchors import remark
    from dsv4_conformance.accuracy.gate import judge
    from dsv4_conformance.accuracy.profiles import load_rules, rule_of
    from dsv4_conformance.accuracy.records import load
    from dsv4_conformance.accuracy.verdict_text import lines, paragraph

    place = folder or _shipped()
    if profile not in load_rules():
        raise BadInput(f"{profile!r} has no accuracy rules; use {' or '.join(load_rules())}.")
    found = load(run, texts=False)
    task, model = found.header.task, found.header.model
    reference = golden_files.load(place, golden) if golden else golden_files.find(place, model, task)
    if reference is None:
        have = ", ".join(golden_files.names(place)) or "none"
        raise BadInput(
            f"No golden of {model!r} for {task} is in {place}; name one with --golden ({have}), or record it."
        )
    judgement = judge(reference, found, rule_of(profile, task), profile)
    if as_json:
        typer.echo(json.dumps(judgement.numbers() | {"paragraph": paragraph(judgement)}, indent=2))
        return judgement.exit_code
    typer.echo(textwrap.fill(paragraph(judgement), 110))
    for line in ["", *lines(judgement)] if judgement.findings else []:
        typer.echo(line)
    if judgement.score is not None and (told := remark(place, task, judgement.score.candidate)):
        typer.echo(textwrap.fill(told, 110))
    return judgement.exit_code


def _shipped() -> Path:
    from dsv4_conformance import resources

    return resources.golden_dir()


def _made(
    task: str,
    endpoint: str,
    model: str | None,
    weights: str,
    passes: int | None,
    results: Path,
    speed: float,
    *,
    yes: bool,
) -> Path:
    """Make the run of a golden, after telling what it costs; its file."""
    from dsv4_conformance.accuracy.cost import cost_of
    from dsv4_conformance.accuracy.profiles import rule_of

    runs = passes or rule_of("release", task).golden_runs
    cost = cost_of(task, runs, speed=speed)
    typer.echo(f"{task}, {runs} passes: {cost.sentence()}.")
    if not yes and not typer.confirm("Begin?"):
        raise typer.Abort
    from dsv4_conformance.accuracy.client import Endpoint
    from dsv4_conformance.accuracy.run import Settings, run_task

    settings = Settings(
        task, Endpoint(endpoint), results, model=model, repeats=runs, weights=weights, retry_errors=True
    )
    return run_task(settings).path


def _provenance(run: AccuracyRun, notes: list[str]) -> dict[str, str]:
    header = run.header
    told = {"started": header.started, "recorded": datetime.now(UTC).isoformat(timespec="seconds")}
    told |= {f"version {name}": value for name, value in header.versions.items()}
    told |= {f"observed {name}": value for name, value in header.observed.items()}
    told |= header.notes
    for text in notes:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise BadInput(f"The note {text!r} is no NAME=TEXT.")
        told[key.strip()] = value.strip()
    return told


def _described(golden: Golden) -> list[str]:
    from dsv4_conformance.accuracy.golden_text import described

    return described(golden)
