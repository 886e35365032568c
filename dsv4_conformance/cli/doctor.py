"""``dsv4-conformance doctor``: what a deployment will do with attention, and what is wrong with it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4_conformance.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from dsv4_conformance.spec.geometry import Geometry


def doctor(
    config: Annotated[str, typer.Option(metavar="PATH|NAME", help="A model's config.json or its folder, or a name.")],
    tp: Annotated[int, typer.Option(help="Ranks in all.")] = 1,
    dp: Annotated[int, typer.Option(help="Attention replicas among them (DP attention).")] = 1,
    cp: Annotated[int, typer.Option(help="Prefill context parallelism, within a replica.")] = 1,
    context: Annotated[int, typer.Option(help="Tokens a request may reach; 0 is the model's.")] = 0,
    requests: Annotated[int, typer.Option(help="Requests alive at once.")] = 1,
    device: Annotated[str, typer.Option(metavar="auto|sm90|sm100|sm120|hip|cpu", help="Kernels it runs on.")] = "auto",
    page_size: Annotated[int, typer.Option(help="Tokens per cache page.")] = 256,
    speculative_tokens: Annotated[int, typer.Option(help="Draft tokens per step.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> int:
    """Say what a deployment will do: heads, kernels, sparse prefill, bytes, suites; and all that is wrong with it.

    Reads DSV4_SPARSE_PREFILL. Exit code: 0 nothing is wrong, 1 problems, 2 the config cannot be read.
    """
    from dsv4_conformance.cli import doctor_text
    from dsv4_conformance.mla.config import examine
    from dsv4_conformance.mla.config_checks import Deployment

    geometry, wrong = _model(config)
    where = _device(device)
    deployment = Deployment(tp, dp, cp, where, page_size, context, requests, speculative_tokens)
    found = examine(geometry, deployment, os.environ)
    problems = [*wrong, *found.problems]
    if as_json:
        data = doctor_text.as_data(geometry, deployment, found, problems)
        typer.echo(json.dumps(data, indent=1))
    else:
        doctor_text.show(geometry, deployment, found, problems)
    return ExitCode.FAILED if problems else ExitCode.QUALIFIES


def _model(word: str) -> tuple[Geometry, list[str]]:
    from dsv4_conformance.mla.config_checks import read_config
    from dsv4_conformance.spec import config_json
    from dsv4_conformance.spec.geometry import GEOMETRIES, resolve

    if word in GEOMETRIES or not os.path.exists(word):
        return resolve(word), []
    path = config_json.locate(word)
    # A model's folder has its name; a file of another name was named for what it is.
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return read_config(config_json.load(path), name)


def _device(word: str) -> str:
    from dsv4_conformance.mla.config_kernels import kernels_of

    return kernels_of(word).device if word != "auto" else _visible_device()


def _visible_device() -> str:
    from dsv4_conformance.implementations.gpus import compute_capability, visible_gpus
    from dsv4_conformance.mla.config_kernels import DEVICES

    gpus = visible_gpus()
    if not gpus:
        return "cpu"
    major, minor = compute_capability(gpus[0])
    # Kernels are built per family: sm100 serves 10.0 and 10.3, sm120 12.0 and 12.1.
    name = f"sm{major}{minor if major < 10 else 0}"
    if name not in DEVICES:
        raise BadInput(f"the GPU here has compute capability {major}.{minor}; name a known device with --device.")
    return name
