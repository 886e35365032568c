"""``dsv4-conformance lint``: can a profile's data show every known mistake, and is the registry sound?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4_conformance.cli.options import Device, Profile, Seed
from dsv4_conformance.errors import BadInput, ExitCode
from dsv4_conformance.plugin.options import DEFAULT_PROFILE, read_seed

if TYPE_CHECKING:
    from dsv4_conformance.numerics.lint import Lint


def lint(
    profile: Profile = DEFAULT_PROFILE,
    seed: Seed = "0",
    device: Device = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="Print problems only.")] = False,
) -> int:
    """Check that every mistake is rejected by 3 error budgets on some case of every requirement that it applies to."""
    from dsv4_conformance.cases.plan import expand
    from dsv4_conformance.cases.profiles import get_profile
    from dsv4_conformance.cli.suite_functions import suite_functions
    from dsv4_conformance.numerics.lint import lint_plan
    from dsv4_conformance.spec.requirements import lint as lint_registry
    from dsv4_conformance.spec.requirements import load_registry

    chosen, number, where = get_profile(profile), read_seed(seed), _device(device)
    functions = suite_functions()
    problems = lint_registry(load_registry(), {f.spec.requirement for f in functions})
    plan = ((f.function, case) for f in functions for case in expand(f.spec, f.name, chosen, number))
    found = lint_plan(plan, where)
    problems += _problems(found)
    for line in problems:
        typer.echo(line)
    if not quiet:
        for line in _remarks(found, chosen.name):
            typer.echo(line)
    return ExitCode.FAILED if problems else ExitCode.QUALIFIES


def _device(wanted: str) -> str:
    import torch

    if wanted not in ("auto", "cpu", "cuda"):
        raise BadInput(f"device {wanted!r} is unknown; use auto, cpu or cuda.")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise BadInput("There is no usable CUDA device here; use --device cpu.")
    return "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"


def _meaning(mistake: str) -> str:
    from dsv4_conformance.numerics.format_mutants import WRITERS
    from dsv4_conformance.numerics.mutants import MUTANTS

    described = MUTANTS.get(mistake) or WRITERS.get(mistake)
    text = (getattr(described, "__doc__", None) or "").strip()
    return f" ({text.splitlines()[0]})" if text else ""


def _problems(found: Lint) -> Iterator[str]:
    for requirement, mistakes in found.blind().items():
        for mistake, ratio in mistakes.items():
            yield (
                f"{requirement}: {mistake}{_meaning(mistake)} is rejected by {ratio:.3g} budgets at most; "
                "add a case whose data shows it."
            )
    for requirement, surface in found.unmeasured():
        yield f"{requirement} on {surface}: no case has margins, so that nothing says which mistakes it can reject."


def _remarks(found: Lint, profile: str) -> Iterator[str]:
    for (requirement, surface), mistakes in found.blind_on_one_surface().items():
        for mistake, ratio in mistakes.items():
            yield f"remark: {requirement} rejects {mistake} on another surface only ({surface}: {ratio:.3g} budgets)."
    mistakes_seen = {m for cases in found.margins.values() for margins in cases for m in margins}
    yield f"{profile}: {found.cases} cases, {len(found.requirements)} requirements, {len(mistakes_seen)} mistakes"
    if (weakest := found.weakest()) is not None:
        ratio, requirement, mistake = weakest
        yield f"weakest: {requirement} rejects {mistake} by {ratio:.3g} budgets at best"
