"""``dsv4-conformance replay``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsv4_conformance.cli.options import Device, Impl
from dsv4_conformance.errors import BadInput, ExitCode
from dsv4_conformance.plugin.options import DEFAULT_IMPL, Options, read_seed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv4_conformance.cases.compressor_case import CompressorCase
    from dsv4_conformance.cases.layer_case import LayerCase
    from dsv4_conformance.plugin.settings import Settings
    from dsv4_conformance.runner.subject import Subject

SURFACES = ("AttentionLayer", "Compressor")
RATIOS = {"AttentionLayer": (0, 4, 128), "Compressor": (4, 128)}
STAGES = {"AttentionLayer": ("q", "o", "out"), "Compressor": ("entries",)}
"""What is judged, in order, if the adapter shows it."""


def replay(
    ratio: Annotated[int, typer.Option(metavar="0|4|128", help="Compress ratio of the layer.")],
    schedule: Annotated[str, typer.Option(metavar="STEPS", help="Such as 'p0:5 d0 v0:4 k0:7', as in docs/cli.md.")],
    impl: Impl = DEFAULT_IMPL,
    precision: Annotated[str, typer.Option(metavar="float32|bfloat16", help="Of the layer's arithmetic.")] = "float32",
    quantised: Annotated[bool, typer.Option("--quantised", help="fp8 cache pages in place of exact rows.")] = False,
    geometry: Annotated[str, typer.Option(metavar="NAME", help="tiny, tiny64, tiny128, flash or pro.")] = "tiny",
    tp: Annotated[int, typer.Option(min=1, help="Attention-TP ranks.")] = 1,
    rank: Annotated[int, typer.Option(min=0, help="The rank that is run.")] = 0,
    path: Annotated[str, typer.Option(metavar="auto|paged|sparse", help="Attention path of prefills.")] = "auto",
    graph_rows: Annotated[int, typer.Option(min=0, help="Rows of a captured step that decodes; 0: eager.")] = 0,
    surface: Annotated[str, typer.Option(metavar="|".join(SURFACES), help="What is run.")] = SURFACES[0],
    dim: Annotated[int, typer.Option(metavar="128|512", help="Of a Compressor's entries.")] = 512,
    seed: Annotated[str, typer.Option(metavar="N", help="Weights and tokens, as a failure's command says.")] = "0",
    device: Device = "auto",
) -> int:
    """Run one layer through a schedule, and say how far its rows are from the definition.

    Exit code: 0 right, 1 wrong, 2 bad input, 5 the case lies outside what the implementation declares.
    """
    from dsv4_conformance.plugin.settings import resolve

    _one_of("surface", surface, SURFACES)
    _one_of("ratio", ratio, RATIOS[surface])
    number = read_seed(seed)
    case: LayerCase | CompressorCase
    if surface == "Compressor":
        from dsv4_conformance.cases.compressor_case import CompressorCase

        _one_of("dim", dim, (128, 512))
        case = CompressorCase(surface, ratio, schedule, dim, seed=number)
    else:
        case = _layer(ratio, schedule, geometry, precision, quantised, tp, rank, path, number)
    settings = resolve(Options(impl=impl, seed=number, device=device))
    if surface not in settings.implementation.surfaces:
        raise BadInput(f"implementation {impl!r} does not offer {surface}, so there is nothing to replay.")
    return _judge(settings, case, graph_rows)


def _one_of(name: str, given: object, known: Sequence[object]) -> None:
    if given not in known:
        raise BadInput(f"{name} {given!r} is unknown; choose one of {', '.join(map(str, known))}.")


def _layer(
    ratio: int,
    schedule: str,
    geometry: str,
    precision: str,
    quantised: bool,
    tp: int,
    rank: int,
    path: str,
    seed: int,
) -> LayerCase:
    from dsv4_conformance.cases.layer_case import LayerCase
    from dsv4_conformance.cases.layer_inputs import CASE_GEOMETRIES

    _one_of("geometry", geometry, tuple(CASE_GEOMETRIES))
    _one_of("precision", precision, ("float32", "bfloat16"))
    _one_of("path", path, ("auto", "paged", "sparse"))
    CASE_GEOMETRIES[geometry].local_heads(tp)
    _one_of("rank", rank, range(tp))
    return LayerCase(
        "AttentionLayer",
        ratio,
        schedule,
        geometry=geometry,
        precision=precision,  # type: ignore[arg-type]
        quantised=quantised,
        tp=tp,
        rank=rank,
        path=path,  # type: ignore[arg-type]
        seed=seed,
    )


def _judge(settings: Settings, case: LayerCase | CompressorCase, graph_rows: int) -> int:
    from dsv4_conformance.cases.layer_case import LayerCase
    from dsv4_conformance.cases.plan import PlannedCase
    from dsv4_conformance.cases.schedule import steps
    from dsv4_conformance.cases.schedule_rules import check_schedule
    from dsv4_conformance.errors import ConformanceFailure, NotApplicable
    from dsv4_conformance.runner.declared import check_declared
    from dsv4_conformance.runner.properties import judge_schedule, lookback
    from dsv4_conformance.runner.session import Session

    widest = max((len(step.parts) for step in steps(case.schedule) if step.kind == "decode"), default=0)
    if 0 < graph_rows < widest:
        raise BadInput(f"graph_rows is {graph_rows} and a step decodes {widest} sequences; capture as many rows.")
    session = Session(settings.implementation, settings.device)
    subject = session.subject(PlannedCase("replay", "INV-42", case.surface, case))
    check_schedule(case.schedule, case.surface, lookback(subject, case.surface))
    typer.echo(
        f"{settings.implementation.identity.name} on {settings.device}: {case.label()}, seed {settings.options.seed}"
    )
    wrong = outside = ""
    try:
        if isinstance(case, LayerCase):
            check_declared(subject, case)  # what is asked for, and not the nearest that is declared
        judge_schedule(subject, case, graph_rows)
    except ConformanceFailure as failure:
        wrong = str(failure)
    except NotApplicable as error:
        outside = str(error)
    for line in _stages(subject, case.surface):
        typer.echo(line)
    if outside:
        typer.echo(f"NOTHING WAS CHECKED: {outside}")
        return ExitCode.NOTHING_CHECKED
    typer.echo(f"WRONG: {wrong}" if wrong else "RIGHT: every row that the schedule gives lies within its error budget.")
    return ExitCode.FAILED if wrong else ExitCode.QUALIFIES


def _stages(subject: Subject, surface: str) -> list[str]:
    """A line for every stage: the worst error of all its rows, in budgets."""
    record = subject.record()
    metrics, budgets = record["metrics"], record["budget"]
    names = [*STAGES[surface], *(name for name in budgets if name not in (*STAGES[surface], "derivation"))]
    return [
        f"  {name:<20} {metrics[f'{name}_ratio']:.3g} budgets: error {metrics[f'{name}_error']:.3g}, "
        f"{budgets[name]:.3g} allowed"
        if name in budgets
        else f"  {name:<20} not judged"
        for name in names
    ]
