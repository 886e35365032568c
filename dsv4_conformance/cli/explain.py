"""``dsv4-conformance explain``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Annotated

import typer

from dsv4_conformance.spec.requirements import Requirement, load_registry

EXACTNESS = {
    "E": "bit for bit",
    "A": "within the error budget of a low-precision kernel",
    "B": "within the rounding of float32 arithmetic",
    "C": "equal sets",
    "S": "by a statistical test (docs/accuracy.md)",
}


def explain(requirement: Annotated[str, typer.Argument(metavar="REQUIREMENT", help="Such as INV-02.")]) -> None:
    """Print what a requirement demands, where it comes from, which public bugs broke it, and what checks it."""
    found = load_registry().get(requirement.upper())
    for line in _sentence(found):
        typer.echo(line)
    for line in _tests(found):
        typer.echo(line)


def _sentence(found: Requirement) -> Iterator[str]:
    yield f"{found.id} [{found.level}] {found.title}"
    yield ""
    yield from textwrap.wrap(found.text, 100)
    yield ""
    yield f"binds:   {', '.join(found.surfaces)}"
    yield f"holds:   {EXACTNESS[found.exactness]}"
    numbered = any(source.startswith("spec ") for source in found.source)
    hint = " (docs/semantics.md has the same section numbers)" if numbered else ""
    yield f"source:  {', '.join(found.source)}{hint}"
    yield "" if found.bugs else "no public bug is known to have broken it"
    for bug in found.bugs:
        yield from textwrap.wrap(f"{bug.engine}: {bug.summary}", 100)
        yield f"    {bug.url}"


def _tests(found: Requirement) -> Iterator[str]:
    from dsv4_conformance.cases.plan import expand
    from dsv4_conformance.cases.profiles import load_profiles
    from dsv4_conformance.cli.suite_functions import suite_functions

    functions = [f for f in suite_functions() if f.spec.requirement == found.id]
    for function in functions:
        yield ""
        yield f"{function.path}::{function.name}"
        yield from textwrap.wrap(
            (function.function.__doc__ or "").strip(), 96, initial_indent="    ", subsequent_indent="    "
        )
        counts = {
            profile.name: sum(1 for _ in expand(function.spec, function.name, profile, 0))
            for profile in load_profiles().values()
        }
        yield f"    cases: {', '.join(f'{name} {count}' for name, count in counts.items() if count)}"
    if not functions:
        yield "no suite checks it"
