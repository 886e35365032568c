"""``dsv4-conformance ranks``: a tensor-parallel layer on as many processes and GPUs as it has ranks."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv4_conformance.errors import BadInput

GEOMETRIES = ("tiny", "tiny64", "tiny128", "flash", "pro")


def ranks(
    impl: Annotated[str, typer.Option(help="Implementation under test.")] = "builtin",
    tp: Annotated[int, typer.Option(min=2, help="Attention-TP ranks: processes, and GPUs on cuda.")] = 2,
    geometry: Annotated[str, typer.Option(help=", ".join(GEOMETRIES))] = "tiny64",
    schedule: Annotated[str, typer.Option(help="What every rank runs, as in docs/cli.md.")] = "p0:300+1:5 d0+1 v0:3 d1",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> int:
    """Run the layer on TP ranks at once, over NCCL (gloo on a CPU), and compare with one rank and with the oracle."""
    from dsv4_conformance.cases.schedule import steps

    steps(schedule)
    if geometry not in GEOMETRIES:
        raise BadInput(f"Unknown geometry {geometry!r}: choose one of {', '.join(GEOMETRIES)}.")
    from dsv4_conformance.implementations.registry import check_device, load

    implementation = load(impl)
    where = check_device(implementation, device)
    if "AttentionLayer" not in implementation.surfaces:
        raise BadInput(f"implementation {impl!r} does not offer AttentionLayer, so it has no ranks to run.")
    return _judge(impl, tp, geometry, schedule, where)


def _judge(impl: str, tp: int, geometry: str, schedule: str, where: str) -> int:
    from dsv4_conformance.cases.layer_case import LayerCase
    from dsv4_conformance.cases.layer_inputs import CASE_GEOMETRIES
    from dsv4_conformance.runner.ranks import run_ranks

    CASE_GEOMETRIES[geometry].local_heads(tp)
    failed = 0
    for ratio in (0, 4, 128):
        for precision, quantised in (("float32", False), ("bfloat16", True)):
            case = LayerCase("AttentionLayer", ratio, schedule, geometry, precision, quantised, tp)  # type: ignore[arg-type]
            verdict = run_ranks(impl, case, where)
            if ratio == 0 and precision == "float32":
                for name in verdict.devices:
                    typer.echo(f"  {name}")
            worst = ", ".join(f"{name} {share:.1e}" for name, share in verdict.worst.items())
            label = f"C{ratio} {precision}{' on fp8 pages' if quantised else ''}, tp={tp}"
            typer.echo(f"{label}: {'FAIL ' + verdict.sentence if verdict.sentence else 'equals tp=1 (' + worst + ')'}")
            failed += verdict.sentence is not None
    return 1 if failed else 0
