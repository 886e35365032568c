"""``dsv4-conformance golden record|show|verify|compare``: accuracy goldens. Imports neither torch nor lm-eval."""

from __future__ import annotations

import json
import math
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4_conformance.cli.accuracy_asking import (
    asked,
    confirmed,
    deadline_of,
    extra_needed,
    invalid_is_7,
    notes_of,
    reuse,
    say,
)
from dsv4_conformance.errors import BadInput, ExitCode
from dsv4_conformance.texts import counted

if TYPE_CHECKING:
    from dsv4_conformance.accuracy.golden_record import Golden
    from dsv4_conformance.accuracy.records import AccuracyRun
    from dsv4_conformance.accuracy.run import Settings

Folder = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Golden folder; that of the checkout or package, if not given.")
]


@invalid_is_7
@extra_needed
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
    same_build: Annotated[
        bool, typer.Option("--same-build", help="Go on although address or notes changed: it is the same build.")
    ] = False,
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
    """Record an accuracy golden. It is of a finished run or, with --task and --endpoint, of one that is made first.

    Before a run is made, says how many requests, tokens and hours it will take, and asks. A golden that changes gets a
    paired verdict, old to new, in the CHANGELOG.

    Exit code: 0 recorded, 1 the server stopped answering, 2 bad input, 7 the server does not think as asked, or the
    run's file was edited or has no closing line, 130 the answer was no, or Ctrl-C: no golden was written.
    """
    from dsv4_conformance.accuracy import golden_files, golden_record
    from dsv4_conformance.accuracy.golden_change import change
    from dsv4_conformance.accuracy.reading import load

    place = folder or _shipped()
    notes = notes_of(note or [])
    if not 0 < speed < math.inf:
        raise BadInput(f"--speed is {speed}; give the server's tokens per second, a number above 0.")
    if passes is not None and passes < 2:
        raise BadInput(f"--passes is {passes}; a golden needs 2 or more, or it has no noise of its own.")
    if run is None:
        if task is None or endpoint is None:
            raise BadInput("Give the file of a finished run, or --task and --endpoint to make one.")
        run = _made(_settings(task, endpoint, model, weights, passes, results, notes, same_build), speed, yes=yes)
    found = load(run, texts=False)
    from dsv4_conformance.accuracy.tally import complete_passes

    runs = passes or max(complete_passes(found), found.repeats)
    named = name or f"{found.header.model.rsplit('/', 1)[-1]}.{found.header.task}"
    fake = simulated or any(answer.served.startswith("simulated") for answer in found.answers[:1])
    new = golden_record.golden_of(found, runs, named, _provenance(found, notes), simulated=fake)
    verdict = ""
    if named in golden_files.names(place):
        verdict = change(golden_files.load(place, named), new)
    saved = golden_files.save(place, new, reason, verdict)
    lines = [*_described(new)]
    lines.append(f"{saved.path}: {'nothing changed' if saved.old == saved.new else f'{saved.old} -> {saved.new}'}")
    if verdict and saved.old != saved.new:
        lines.append(textwrap.fill(verdict, 110))
    say(lines)
    try:
        golden_files.find(place, new.model, new.task)
    except golden_files.Several as error:
        typer.echo(f"dsv4-conformance: {error}", err=True)
    return ExitCode.QUALIFIES


def show(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="All goldens in a line each, if not given.")
    ] = None,
    folder: Folder = None,
) -> int:
    """Show an accuracy golden, or list all. Tells source, settings, scores, noise, and what runs against it can see.

    Exit code: 0 shown, 2 bad input.
    """
    from dsv4_conformance.accuracy import golden_files

    place = golden_files.existing(folder or _shipped())
    if name is not None:
        say(_described(golden_files.load(place, name)))
        return ExitCode.QUALIFIES
    lines = []
    for known in golden_files.names(place):
        golden = golden_files.load(place, known)
        kind = " (simulated server, no model)" if golden.simulated else ""
        lines.append(f"{known}: {golden.task}, {100 * golden.score:.2f} % in {golden.runs} passes{kind}")
    say(lines)
    return ExitCode.QUALIFIES


def verify(folder: Folder = None) -> int:
    """Check every accuracy golden. Each has to be unedited, consistent, listed in MANIFEST.json, and explained in
    CHANGELOG.md.

    Exit code: 0 sound, 1 something is wrong, 2 bad input.
    """
    from dsv4_conformance.accuracy import anchors, golden_files

    place = folder or _shipped()
    found = list(golden_files.problems(place))
    for sentence in found:
        typer.echo(sentence, err=True)
    if not found:
        say(
            [
                f"{counted(len(golden_files.names(place)), 'accuracy golden')}: unedited, consistent, listed and "
                "explained",
                f"{counted(len(anchors.load(place)), 'public score')} as anchors, no gate reference among them",
            ]
        )
    return ExitCode.FAILED if found else ExitCode.QUALIFIES


@invalid_is_7
def compare(
    run: Annotated[Path, typer.Argument(metavar="RUN.jsonl", help="The file of an accuracy run.")],
    golden: Annotated[str | None, typer.Option(metavar="NAME", help="Default: the golden of the run's model.")] = None,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="pre-merge or release: margins and looks.")
    ] = "pre-merge",
    folder: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> int:
    """Judge an accuracy run against a golden. A paragraph says what was found.

    Exit code: 0 PASS, 1 FAIL, 2 bad input, 6 INCONCLUSIVE, 7 INVALID: not comparable, and the field is named.
    """
    from dsv4_conformance.accuracy import golden_files
    from dsv4_conformance.accuracy.anchors import remark
    from dsv4_conformance.accuracy.gate import judge
    from dsv4_conformance.accuracy.profiles import load_rules, rule_of
    from dsv4_conformance.accuracy.reading import load
    from dsv4_conformance.accuracy.verdict_text import lines, paragraph

    place = folder or _shipped()
    if profile not in load_rules():
        raise BadInput(f"{profile!r} has no accuracy rules; use {' or '.join(load_rules())}.")
    found = load(run, texts=False)
    task, model = found.header.task, found.header.model
    golden_files.existing(place)
    reference = golden_files.load(place, golden) if golden else golden_files.find(place, model, task)
    if reference is None:
        have = ", ".join(golden_files.names(place)) or "none"
        raise BadInput(
            f"No golden of {model!r} for {task} is in {place}; name one with --golden ({have}), or record it."
        )
    golden_files.check(place, reference.name)
    judgement = judge(reference, found, rule_of(profile, task), profile)
    if as_json:
        say([json.dumps(judgement.numbers() | {"paragraph": paragraph(judgement)}, indent=2)])
        return judgement.exit_code
    said = [textwrap.fill(paragraph(judgement), 110, break_on_hyphens=False, break_long_words=False)]
    said += ["", *lines(judgement)] if judgement.findings else []
    if judgement.score is not None and (told := remark(place, task, judgement.score.candidate)):
        said.append(textwrap.fill(told, 110))
    say(said)
    return judgement.exit_code


def _shipped() -> Path:
    from dsv4_conformance import resources

    return resources.golden_dir()


def _settings(
    task: str,
    endpoint: str,
    model: str | None,
    weights: str,
    passes: int | None,
    results: Path,
    notes: dict[str, str],
    same_build: bool,
) -> Settings:
    from dsv4_conformance.accuracy.client import Endpoint
    from dsv4_conformance.accuracy.profiles import rule_of
    from dsv4_conformance.accuracy.run import Settings

    return Settings(
        task,
        Endpoint(endpoint, deadline_s=deadline_of(task)),
        results.expanduser(),
        model=model,
        repeats=passes or rule_of("release", task).golden_runs,
        weights=weights,
        notes=notes,
        retry_errors=True,
        same_build=same_build,
    )


def _made(settings: Settings, speed: float, *, yes: bool) -> Path:
    """Make the run of a golden, after telling what it costs and what it will be good for; its file."""
    from dsv4_conformance.accuracy.cost import cost_of
    from dsv4_conformance.accuracy.profiles import load_rules

    cost = cost_of(settings.task, settings.repeats, speed=speed)
    typer.echo(f"{settings.task}, {counted(settings.repeats, 'pass', 'passes')}: {cost.sentence()}.")
    for profile, rules in load_rules().items():
        if settings.task in rules and settings.repeats < rules[settings.task].golden_runs:
            typer.echo(f"Too short for profile {profile}, which needs {rules[settings.task].golden_runs} passes.")
    with confirmed("Begin?", yes=yes):
        finished = asked(settings)
    typer.echo(f"{reuse(finished)}.")
    return finished.path


def _provenance(run: AccuracyRun, notes: dict[str, str]) -> dict[str, str]:
    header = run.header
    told = {"started": header.started, "recorded": datetime.now(UTC).isoformat(timespec="seconds")}
    told |= {f"version {name}": value for name, value in header.versions.items()}
    told |= {f"observed {name}": value for name, value in header.observed.items()}
    told |= {f"server {name}": value for name, value in header.server.items()}
    return told | header.notes | notes


def _described(golden: Golden) -> list[str]:
    from dsv4_conformance.accuracy.golden_text import described

    return described(golden)
