"""``dsv4-conformance accuracy``: run an accuracy task against a server, or see first whether that would work."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsv4_conformance.cli.accuracy_asking import asked, deadline_of, extra_needed, invalid_is_7, notes_of, say
from dsv4_conformance.cli.accuracy_power import power
from dsv4_conformance.cli.accuracy_rehearse import rehearse
from dsv4_conformance.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from dsv4_conformance.accuracy.client import Endpoint as Asked
    from dsv4_conformance.accuracy.records import RunHeader

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

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
@invalid_is_7
@extra_needed
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
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Seed of the first pass; the next has N + 1. A fresh one, if not given."),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Only the first N questions.")] = None,
    questions: Annotated[
        str | None,
        typer.Option(
            metavar="ID,ID,...", help="Only these, to look into them: their answers have a file of their own."
        ),
    ] = None,
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
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="Of the build, such as commit=...: tells it from others."),
    ] = None,
    same_build: Annotated[
        bool, typer.Option("--same-build", help="Go on although address or notes changed: it is the same build.")
    ] = False,
    golden: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Golden folder, to see whether there is a golden.")
    ] = None,
    retry_errors: Annotated[bool, typer.Option("--retry-errors", help="Ask again what got no usable reply.")] = False,
    unverified_data: Annotated[
        bool, typer.Option("--unverified-data", help="Take questions that golden/ does not know.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
) -> int:
    """Ask a server a task's questions and record its answers. They are kept in DIR/TASK.jsonl; run again, it goes on.

    Answers of another build, told by address, notes and what the server says of itself, are not gone on with.

    Exit code: 0 every request is answered or recorded as an error, 1 the server stopped answering or answered nothing,
    2 bad input, 7 the server does not think as asked, its replies name several models, it was exchanged in mid-run or
    did not say at the end who it is, or the file was edited, 130 or 143 Ctrl-C or SIGTERM: what was answered is kept.
    """
    from dsv4_conformance import resources
    from dsv4_conformance.accuracy.run import Settings
    from dsv4_conformance.accuracy.soundness import problems, unclosed
    from dsv4_conformance.cli.accuracy_text import forewarned, one_by_one, told

    chosen = _ids(questions)
    folder = golden or resources.golden_dir()
    if not folder.is_dir():
        raise BadInput(f"There is no folder {folder}; name a golden folder with --folder, or leave it out.")

    def check(header: RunHeader) -> None:
        if not chosen and not limit:
            for line in forewarned(folder, header, repeats):
                typer.echo(line, err=True)

    settings = Settings(
        task=task,
        endpoint=_endpoint(endpoint, kind, concurrency, tries, deadline_of(task, deadline)),
        results=results.expanduser(),
        model=model,
        repeats=repeats,
        seed=seed,
        limit=limit,
        generation=_overrides(thinking, reasoning_effort, temperature, top_p, max_tokens, generation),
        weights=weights,
        notes=notes_of(note or []),
        verify=not unverified_data,
        retry_errors=retry_errors,
        quiet=quiet,
        check=check,
        questions=chosen,
        same_build=same_build,
    )
    finished = asked(settings)
    say([*told(finished), *(one_by_one(finished) if chosen else ())])
    if found := [*problems(finished.run), *filter(None, [unclosed(finished.run)])]:
        typer.echo(f"dsv4-conformance: INVALID: {'; '.join(found)}.", err=True)
        return ExitCode.INVALID_COMPARISON
    if finished.score.statuses["error"] == finished.score.answered:
        typer.echo("dsv4-conformance: No request got a usable reply; mend the server, then --retry-errors.", err=True)
        return ExitCode.FAILED
    return ExitCode.QUALIFIES


@app.command("probe")
@extra_needed
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
    """See whether a server can be run against. Five small requests tell its model, seeds, thinking and template.

    Exit code: 0 it can, 2 bad input, 7 it does not think as asked.
    """
    from dsv4_conformance.accuracy import tasks
    from dsv4_conformance.accuracy.bodies import settings_of
    from dsv4_conformance.accuracy.harness import generation_of
    from dsv4_conformance.accuracy.probe import NotAsAsked, probe
    from dsv4_conformance.accuracy.progress import Waiting

    server = _endpoint(endpoint, kind, 8, 2, deadline_of(task))
    overrides = _overrides(thinking, reasoning_effort, temperature, top_p, max_tokens, generation)
    body = settings_of(generation_of(tasks.task_file(tasks.task(task), server.kind), overrides))
    try:
        with Waiting(f"probing {server.address}"):
            found = probe(server, model, body, seed=secrets.randbelow(2**30))
    except NotAsAsked as error:
        typer.echo(f"dsv4-conformance: {error}", err=True)
        return ExitCode.INVALID_COMPARISON
    seeds = {
        "honoured": "honoured: repeats can be reproduced",
        "no effect": "no effect: every reply is another, repeats are independent",
        "all the same": "all the same: no seed changes the reply, so repeats are copies of one pass",
    }
    rows = {"model": found.served, "seeds": seeds[found.seeds], "thinking": found.thinking, "template": found.template}
    rows["server"] = ", ".join(f"{name} {text}" for name, text in found.says.items()) or "says nothing of itself"
    say(f"{name:<8}  {text}" for name, text in rows.items())
    return ExitCode.QUALIFIES


def _endpoint(url: str, kind: str, concurrency: int, tries: int, deadline_s: float) -> Asked:
    from dsv4_conformance.accuracy.client import Endpoint as Asked

    if kind not in ("chat", "completions"):
        raise BadInput(f"--kind is {kind!r}; use chat or completions.")
    asked = Asked(url, "chat" if kind == "chat" else "completions", concurrency, tries, deadline_s)
    _ = asked.root  # refuses what is no address before anything else is said
    return asked


def _ids(words: str | None) -> tuple[str, ...]:
    if words is None:
        return ()
    found = tuple(word for word in (part.strip() for part in words.split(",")) if word)
    if not found:
        raise BadInput("--questions names none; give ids such as gsm8k-test-3,gsm8k-test-7.")
    return found


def _overrides(
    thinking: bool | None,
    reasoning_effort: str | None,
    temperature: float | None,
    top_p: float | None,
    max_tokens: int | None,
    generation: str,
) -> dict[str, Any]:
    """Overrides of the task file under lm-eval's names. Raises BadInput for what cannot be sent, or is said twice."""
    from dsv4_conformance.accuracy.bodies import overrides_of

    try:
        overrides = json.loads(generation)
    except ValueError as error:
        raise BadInput(f"--generation is not JSON ({error}); give an object like '{{\"top_k\": 20}}'.") from None
    if not isinstance(overrides, dict):
        raise BadInput("--generation is no JSON object; give one like '{\"top_k\": 20}'.")
    overrides = overrides_of(overrides)
    given: dict[str, Any] = {
        "reasoning_effort": reasoning_effort,
        "temperature": temperature,
        "top_p": top_p,
        "max_gen_toks": max_tokens,
        "chat_template_kwargs": None if thinking is None else {"thinking": thinking},
    }
    given = {name: value for name, value in given.items() if value is not None}
    if twice := [name for name in given if name in overrides]:
        raise BadInput(f"--generation sets {twice[0]}, and an option sets it as well; keep one of them.")
    return overrides_of(overrides | given)


app.command()(power)
app.command()(rehearse)
