"""``dsv4-conformance accuracy``: run an accuracy task against a server, or see first whether that would work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsv4_conformance.cli.accuracy_power import power
from dsv4_conformance.cli.accuracy_rehearse import rehearse
from dsv4_conformance.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from dsv4_conformance.accuracy.client import Endpoint as Asked
    from dsv4_conformance.accuracy.run import Finished

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

DEADLINES_S = {"gsm8k": 600.0, "aime25": 14400.0}

TaskName = Annotated[str, typer.Option("--task", metavar="gsm8k|aime25", help="Question set.")]
Endpoint = Annotated[str, typer.Option(metavar="URL", help="OpenAI-compatible server, as in http://HOST:8000/v1.")]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="Model to ask for; the only one served, if not given.")]
Kind = Annotated[str, typer.Option(metavar="chat|completions", help="Which endpoint of the server.")]
Thinking = Annotated[
    bool | None, typer.Option("--thinking/--no-thinking", help="Ask for thinking or none; the task's, if not given.")
]
Effort = Annotated[str | None, typer.Option("--reasoning-effort", metavar="LEVEL", help="Sent as reasoning_effort.")]
Generation = Annotated[
    str, typer.Option("--generation", metavar="JSON", help="Further generation settings; null removes one.")
]
Temperature = Annotated[float | None, typer.Option(metavar="T", help="Sampling temperature; the task's, if not given.")]
TopP = Annotated[float | None, typer.Option(metavar="P", help="Nucleus share; the task's, if not given.")]
MaxTokens = Annotated[int | None, typer.Option(metavar="N", help="Token limit of a reply; the task's, if not given.")]


@app.callback()
def accuracy() -> None:
    """Accuracy of a served model on GSM8K and AIME25."""


@app.command("run")
def run_command(
    endpoint: Endpoint,
    task: TaskName = "gsm8k",
    model: Model = None,
    kind: Kind = "chat",
    repeats: Annotated[int, typer.Option(metavar="K", help="Passes over the questions, each with its seed.")] = 1,
    results: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the answers; a run there is resumed.")] = Path(
        "dsv4-accuracy"
    ),
    concurrency: Annotated[int, typer.Option(metavar="N", help="Requests at once.")] = 64,
    deadline: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="For one request with its retries; 600, aime25 14400.")
    ] = None,
    tries: Annotated[int, typer.Option(metavar="N", help="Tries of a request that fails on the way.")] = 5,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the first pass; the next has N + 1.")] = 1000,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Only the first N questions.")] = None,
    thinking: Thinking = None,
    reasoning_effort: Effort = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    max_tokens: MaxTokens = None,
    generation: Generation = "{}",
    weights: Annotated[
        str, typer.Option(metavar="TEXT", help="Revision and accuracy class of the weights; has to match the golden.")
    ] = "undeclared",
    note: Annotated[
        list[str] | None, typer.Option(metavar="NAME=TEXT", help="To remember about the server, such as its commit.")
    ] = None,
    retry_errors: Annotated[bool, typer.Option("--retry-errors", help="Ask again what got no usable reply.")] = False,
    unverified_data: Annotated[
        bool, typer.Option("--unverified-data", help="Take questions that golden/ does not know.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
) -> int:
    """Ask a server all questions of a task and record every answer in DIR/TASK.jsonl. Run again, it goes on.

    Exit code: 0 every request is answered or recorded as an error, 1 the server stopped answering, 2 bad input, 7 the
    server does not think as asked.
    """
    from dsv4_conformance.accuracy.probe import NotAsAsked
    from dsv4_conformance.accuracy.pump import ServerGone
    from dsv4_conformance.accuracy.run import Settings, run_task

    settings = Settings(
        task=task,
        endpoint=_endpoint(endpoint, kind, concurrency, tries, deadline or DEADLINES_S.get(task, 600.0)),
        results=results.expanduser(),
        model=model,
        repeats=repeats,
        seed=seed,
        limit=limit,
        generation=_overrides(thinking, reasoning_effort, temperature, top_p, max_tokens, generation),
        weights=weights,
        notes=_notes(note or []),
        verify=not unverified_data,
        retry_errors=retry_errors,
        quiet=quiet,
    )
    try:
        finished = run_task(settings)
    except NotAsAsked as error:
        typer.echo(f"dsv4-conformance: {error}", err=True)
        return ExitCode.INVALID_COMPARISON
    except ServerGone as error:
        typer.echo(
            f"dsv4-conformance: The server stopped answering ({error}). What it answered is kept in "
            f"{settings.results}; run the same command again to go on.",
            err=True,
        )
        return ExitCode.FAILED
    for line in _told(finished):
        typer.echo(line)
    return ExitCode.QUALIFIES


@app.command("probe")
def probe_command(
    endpoint: Endpoint,
    task: TaskName = "gsm8k",
    model: Model = None,
    kind: Kind = "chat",
    thinking: Thinking = None,
    reasoning_effort: Effort = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    max_tokens: MaxTokens = None,
    generation: Generation = "{}",
) -> int:
    """See with five small requests whether a server can be run against: model, seeds, thinking, template.

    Exit code: 0 it can, 2 bad input, 7 it does not think as asked.
    """
    from dsv4_conformance.accuracy import tasks
    from dsv4_conformance.accuracy.bodies import settings_of
    from dsv4_conformance.accuracy.harness import generation_of
    from dsv4_conformance.accuracy.probe import NotAsAsked, probe

    asked = _endpoint(endpoint, kind, 8, 2, DEADLINES_S.get(task, 600.0))
    overrides = _overrides(thinking, reasoning_effort, temperature, top_p, max_tokens, generation)
    body = settings_of(generation_of(tasks.task_file(tasks.task(task), asked.kind), overrides))
    try:
        found = probe(asked, model, body, seed=1000)
    except NotAsAsked as error:
        typer.echo(f"dsv4-conformance: {error}", err=True)
        return ExitCode.INVALID_COMPARISON
    seeds = {
        "honoured": "honoured: repeats can be reproduced",
        "no effect": "no effect: every reply is another, repeats are independent",
        "all the same": "all the same: no seed changes the reply, so repeats are copies of one pass",
    }
    typer.echo(f"model     {found.served}")
    typer.echo(f"seeds     {seeds[found.seeds]}")
    typer.echo(f"thinking  {found.thinking}")
    typer.echo(f"template  {found.template}")
    return ExitCode.QUALIFIES


def _endpoint(url: str, kind: str, concurrency: int, tries: int, deadline_s: float) -> Asked:
    from dsv4_conformance.accuracy.client import Endpoint as Asked

    if kind not in ("chat", "completions"):
        raise BadInput(f"--kind is {kind!r}; use chat or completions.")
    return Asked(url, "chat" if kind == "chat" else "completions", concurrency, tries, deadline_s)


def _overrides(
    thinking: bool | None,
    reasoning_effort: str | None,
    temperature: float | None,
    top_p: float | None,
    max_tokens: int | None,
    generation: str,
) -> dict[str, Any]:
    """Overrides of the task file under lm-eval's names; the options win over ``generation``."""
    try:
        overrides = json.loads(generation)
    except ValueError as error:
        raise BadInput(f"--generation is not JSON ({error}); give an object like '{{\"top_k\": 20}}'.") from None
    if not isinstance(overrides, dict):
        raise BadInput("--generation is no JSON object; give one like '{\"top_k\": 20}'.")
    if "max_tokens" in overrides:
        overrides["max_gen_toks"] = overrides.pop("max_tokens")
    given = {
        "reasoning_effort": reasoning_effort,
        "temperature": temperature,
        "top_p": top_p,
        "max_gen_toks": max_tokens,
        "chat_template_kwargs": None if thinking is None else {"thinking": thinking},
    }
    return overrides | {name: value for name, value in given.items() if value is not None}


def _notes(words: list[str]) -> dict[str, str]:
    for word in words:
        if "=" not in word:
            raise BadInput(f"--note is {word!r}; give NAME=TEXT.")
    return {name: text for name, _, text in (word.partition("=") for word in words)}


def _told(finished: Finished) -> list[str]:
    score, run = finished.score, finished.run
    lines = [f"{run.header.task}: {score.correct} of {score.answered}, {score.text()}"]
    fallbacks = sum(answer.fallback > 0 for answer in run.answers)
    if fallbacks:
        lines.append(f"{fallbacks} answers did not stand in the form asked for and were found by a fall-back rule")
    if score.statuses["error"]:
        first = next(answer for answer in run.answers if answer.status == "error")
        lines.append(f"first error, at {first.item}: {first.error.removesuffix('.')}; --retry-errors asks these again")
    if note := run.header.observed.get("data", ""):
        lines += [note] if note.endswith(".") else []  # a sentence, not only a place
    return [*lines, f"answers: {finished.path} (fingerprint {run.header.fingerprint_hash[:12]})"]


app.command()(power)
app.command()(rehearse)
