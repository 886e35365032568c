"""``dsv4-conformance bench``: how fast the harness judges, and what the built-in layer adds to its kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dsv4_conformance.bench.grids import EVERY, GRIDS, PUBLISHED_RATE
from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.api import Implementation


def bench(
    what: Annotated[str, typer.Argument(help="What to measure: harness or mla.")],
    impl: Annotated[str, typer.Option(help="Implementation that the cases run on.")] = "builtin",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    grid: Annotated[str, typer.Option(help="decode, prefill or both.")] = "both",
    stride: Annotated[int, typer.Option(min=1, help="Take every STRIDE-th case of a grid.")] = 1,
    margins: Annotated[bool, typer.Option(help="Time the discrimination margins too, as the suites do.")] = True,
    output: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> int:
    """Measure. harness: cases per second in one process, generation, kernel, float64 oracle and verdict together.
    mla: the built-in layer's core against the bare kernels, head padding, sparse prefill, gathered bytes, replays."""
    if output is not None and not output.parent.is_dir():
        raise BadInput(f"Cannot write {str(output)!r}: its folder does not exist; name a file in a writable folder.")
    if what == "mla":
        return _measure_mla(impl, device, output)
    if what != "harness":
        raise BadInput(f"Unknown benchmark {what!r}: choose harness or mla.")
    names = list(GRIDS) if grid == "both" else [grid]
    if unknown := [name for name in names if name not in GRIDS]:
        raise BadInput(f"Unknown grid {unknown[0]!r}: choose decode, prefill or both.")
    from dsv4_conformance.implementations.registry import check_device, load

    implementation = load(impl)
    where = check_device(implementation, device)
    return _measure(implementation, where, names, stride, margins, output)


def _measure(
    implementation: type[Implementation], where: str, names: list[str], stride: int, margins: bool, output: Path | None
) -> int:
    import torch

    from dsv4_conformance.bench.harness import ceilings, measure
    from dsv4_conformance.runner.session import Session

    session = Session(implementation, where)
    kind = torch.cuda.get_device_name() if where == "cuda" else "CPU"
    copy, product = ceilings(session.device)
    typer.echo(f"{implementation.identity.name} {implementation.identity.version} on {kind}, torch {torch.__version__}")
    typer.echo(f"ceilings measured here: copy {copy / 1e12:.2f} TB/s, float64 product {product / 1e12:.1f} TFLOP/s")
    figures: dict[str, object] = {"device": kind, "torch": torch.__version__, "copy": copy, "float64": product}
    failed = 0
    for name in names:
        rate = measure(session.implementation, session.device, list(GRIDS[name]())[::stride], margins)
        failed += len(rate.failures)
        stages = ", ".join(f"{stage} {ms:.2f}" for stage, ms in rate.stage_ms.items())
        floor = max(rate.flops / product, rate.bytes_ / copy) * 1e3
        typer.echo(
            f"{name}: {rate.cases} cases in {rate.seconds:.1f} s = {rate.per_second:.1f} cases/s"
            f" ({'with' if margins else 'without'} margins; FlashMLA's own test: {PUBLISHED_RATE[name]} cases/s"
            f" on an H200), {len(rate.failures)} failed"
        )
        typer.echo(f"  ms per case by stage, synchronised, every {EVERY}th case: {stages}")
        typer.echo(
            f"  a mean case stores {rate.elements / 1e6:.0f} million key values; its oracle does {rate.flops / 1e9:.1f}"
            f" GFLOP and moves {rate.bytes_ / 1e9:.2f} GB: at least {floor:.2f} ms at these ceilings"
        )
        for sentence in rate.failures[:5]:
            typer.echo(f"  {sentence}")
        figures[name] = vars(rate) | {"per_second": rate.per_second, "floor_ms": floor}
    _write(output, figures)
    return 1 if failed else 0


def _measure_mla(impl: str, device: str, output: Path | None) -> int:
    if impl != "builtin":
        raise BadInput(f"bench mla measures the built-in layer, not {impl!r}; leave --impl out.")
    from dsv4_conformance.implementations.registry import check_device, load

    where = check_device(load(impl), device)
    import torch

    from dsv4_conformance.bench.mla_text import measure_mla

    chosen = torch.device(where)
    kind = torch.cuda.get_device_name() if where == "cuda" else "CPU"
    typer.echo(f"built-in layer on {kind}, torch {torch.__version__}")
    figures, missed = measure_mla(chosen, typer.echo)
    if where != "cuda":
        typer.echo("These are times of the torch kernels on a CPU, at small sizes: they say nothing about a GPU.")
        missed = []
    for sentence in missed:
        typer.echo(f"MISSED: {sentence}.")
    _write(output, {"device": kind, "torch": torch.__version__, **figures, "missed": missed})
    return 1 if missed else 0


def _write(output: Path | None, figures: dict[str, object]) -> None:
    if output is None:
        return
    try:
        output.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"Cannot write {str(output)!r} ({error.strerror}); name a file in a writable folder.") from error
