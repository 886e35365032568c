"""``dsv4-conformance simulate-server``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsv4_conformance.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from dsv4_conformance.accuracy.simulator.behaviour import Behaviour


def _share(what: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(metavar="SHARE", help=what, rich_help_panel=None)
    return option


def simulate_server(
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen at.")] = "127.0.0.1",
    task: Annotated[
        list[str] | None, typer.Option(metavar="gsm8k|aime25", help="Questions it knows; all there are, if not given.")
    ] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help="Name it serves the model under.")] = "simulated",
    template: Annotated[str, typer.Option(metavar="NAME", help="Another name: other token counts of prompts.")] = "v1",
    stream: Annotated[int, typer.Option(metavar="N", help="Another number: other draws of the same engine.")] = 0,
    engine_version: Annotated[str, typer.Option(metavar="TEXT", help="Version that it tells of itself.")] = "1",
    rename_after: Annotated[
        int | None, typer.Option(metavar="N", help="Answers until replies name another model.")
    ] = None,
    upgrade_after: Annotated[
        int | None, typer.Option(metavar="N", help="Answers until it tells another version of itself.")
    ] = None,
    drop: Annotated[float, typer.Option(metavar="POINTS", help="Points of score less, evenly.")] = 0.0,
    drop_unstable: Annotated[float, typer.Option(metavar="POINTS", help="Points less, on undecided questions.")] = 0.0,
    broken: Annotated[int, typer.Option(metavar="N", help="Questions that passed and never do.")] = 0,
    broken_item: Annotated[list[str] | None, typer.Option(metavar="ID", help="A question that never passes.")] = None,
    jitter: Annotated[bool, typer.Option("--jitter", help="Other numerics: questions move, the mean stays.")] = False,
    truncate: Annotated[float, _share("Replies cut off at the token limit.")] = 0.0,
    empty: Annotated[float, _share("Replies with null content.")] = 0.0,
    no_answer: Annotated[float, _share("Replies without an answer.")] = 0.0,
    filtered: Annotated[float, _share("Replies that a content filter cut off.")] = 0.0,
    unfinished: Annotated[float, _share("Replies without a finish_reason.")] = 0.0,
    parts: Annotated[bool, typer.Option("--parts", help="Send contents as lists of parts.")] = False,
    error_500: Annotated[float, typer.Option("--error-500", metavar="SHARE", help="Tries that get HTTP 500.")] = 0.0,
    malformed: Annotated[float, _share("Tries that get half a JSON.")] = 0.0,
    error_body: Annotated[float, _share("Tries that get an error in an HTTP 200.")] = 0.0,
    hang_up: Annotated[float, _share("Tries whose connection is closed.")] = 0.0,
    stall: Annotated[float, _share("Tries that get no reply for --stall-seconds.")] = 0.0,
    stall_seconds: Annotated[float, typer.Option(metavar="S", help="How long a stalled try waits.")] = 3600.0,
    refuse: Annotated[list[str] | None, typer.Option(metavar="ID", help="A question that gets HTTP 400.")] = None,
    down_after: Annotated[int | None, typer.Option(metavar="N", help="Answers until all is HTTP 503.")] = None,
    latency: Annotated[float, typer.Option(metavar="S", help="Mean time a reply takes.")] = 0.0,
    mean_tokens: Annotated[int | None, typer.Option(metavar="N", help="Mean tokens of an answer.")] = None,
    reasoning_chars: Annotated[int, typer.Option(metavar="N", help="Length of the reasoning's text.")] = 200,
    ignore_seeds: Annotated[bool, typer.Option("--ignore-seeds", help="Every reply is drawn anew.")] = False,
    one_seed: Annotated[bool, typer.Option("--one-seed", help="All seeds give the same reply.")] = False,
    ignore_thinking: Annotated[bool, typer.Option("--ignore-thinking", help="Never think.")] = False,
    always_thinking: Annotated[bool, typer.Option("--always-thinking", help="Think, asked or not.")] = False,
    unverified_data: Annotated[
        bool, typer.Option("--unverified-data", help="Take questions that golden/ does not know.")
    ] = False,
) -> int:
    """Serve simulated answers to the real questions, until Ctrl-C, to rehearse accuracy runs and test their verdicts.

    A SHARE goes from 0 to 1. The ready line on stdout gives the address. Exit code: 0 stopped, 2 bad input.
    """
    from dsv4_conformance.accuracy.simulator.behaviour import Behaviour

    behaviour = Behaviour(
        drop=drop,
        drop_unstable=drop_unstable,
        broken=broken,
        broken_items=tuple(broken_item or ()),
        jitter=jitter,
        stream=stream,
        mean_tokens=mean_tokens,
        truncate=truncate,
        empty=empty,
        no_answer=no_answer,
        filtered=filtered,
        unfinished=unfinished,
        parts=parts,
        error_500=error_500,
        malformed=malformed,
        error_body=error_body,
        hang_up=hang_up,
        stall=stall,
        stall_s=stall_seconds,
        refuse=tuple(refuse or ()),
        down_after=down_after,
        latency_s=latency,
        reasoning_chars=reasoning_chars,
        ignore_seeds=ignore_seeds,
        one_seed=one_seed,
        ignore_thinking=ignore_thinking,
        always_thinking=always_thinking,
        model=model,
        template=template,
        version=engine_version,
        rename_after=rename_after,
        upgrade_after=upgrade_after,
    )
    _serve(behaviour, host, port, task or [], verify=not unverified_data)
    return ExitCode.QUALIFIES


def _serve(behaviour: Behaviour, host: str, port: int, names: list[str], *, verify: bool) -> None:
    import asyncio
    import signal

    try:
        from dsv4_conformance.accuracy.simulator.server import Server, listening
    except ImportError as error:
        raise BadInput(
            f"The simulated server needs aiohttp ({error}); install it with `pip install 'dsv4-conformance[accuracy]'`."
        ) from None
    from dsv4_conformance.accuracy.simulator.loading import known_questions

    questions, told = known_questions(names, behaviour, verify=verify)

    async def serve() -> None:
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        async with listening(Server(questions, behaviour), host, port) as url:
            typer.echo(f"ready: {url} ({told}; {behaviour.told() or 'a sound engine'})")
            await stopped.wait()

    try:
        asyncio.run(serve())
    except OSError as error:
        raise BadInput(f"{host}:{port} cannot be listened at ({error.strerror}); give another --port.") from None
