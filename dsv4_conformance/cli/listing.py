"""``dsv4-conformance list``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from dsv4_conformance.cli.options import Device, Impl, Profile, Seed
from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.options import DEFAULT_IMPL, DEFAULT_PROFILE, Options, read_seed
from dsv4_conformance.texts import summary_of

WHAT = ("implementations", "requirements", "profiles", "cases")


def listing(
    what: Annotated[str, typer.Argument(metavar="|".join(WHAT))],
    impl: Impl = DEFAULT_IMPL,
    profile: Profile = DEFAULT_PROFILE,
    seed: Seed = "0",
    device: Device = "auto",
) -> None:
    """List implementations, requirements, profiles, or the cases that a run with these options would plan."""
    if what not in WHAT:
        raise BadInput(f"{what!r} cannot be listed; choose {', '.join(WHAT)}.")
    if what == "implementations":
        lines = _implementations()
    elif what == "requirements":
        lines = _requirements()
    elif what == "profiles":
        lines = _profiles()
    else:
        lines = _cases(Options(impl=impl, profile=profile, profile_given=True, seed=read_seed(seed), device=device))
    for line in lines:
        typer.echo(line)


def _implementations() -> Iterator[str]:
    from dsv4_conformance.implementations.registry import list_implementations

    for name, found in list_implementations():
        if isinstance(found, str):
            yield f"{name}: not usable: {found}"
            continue
        try:
            found.check_available()
        except BadInput as error:
            yield f"{name}: not usable: {error}"
            continue
        except (Exception, SystemExit) as error:
            yield f"{name}: not usable: its check_available() raised {summary_of(error)}."
            continue
        yield f"{name}: {found.identity.kind}, {' or '.join(found.devices)}; {', '.join(found.surfaces)}"


def _requirements() -> Iterator[str]:
    from dsv4_conformance.spec.requirements import load_registry

    for requirement in load_registry():
        yield f"{requirement.id:<8} {requirement.level:<6} {requirement.title}"


def _profiles() -> Iterator[str]:
    from dsv4_conformance.cases.profiles import load_profiles

    for profile in load_profiles().values():
        must = {kind: getattr(profile.mandatory, kind) for kind in ("kernel", "engine")}
        told = "; ".join(f"{kind}s must offer {', '.join(surfaces)}" for kind, surfaces in must.items() if surfaces)
        yield f"{profile.name:<10} {profile.summary}{f' ({told})' if told else ''}"


def _cases(options: Options) -> Iterator[str]:
    from dsv4_conformance.cli.suite_functions import suite_functions
    from dsv4_conformance.plugin.collection import Planner
    from dsv4_conformance.plugin.settings import resolve

    planner = Planner(resolve(options))
    for function in suite_functions():
        for item in planner.items(function.function, function.spec):
            note = "" if item.planned is not None else "  (surface not offered)"
            yield f"{item.case_id}  {item.surface:<14} {function.name}[{item.label}]{note}"
