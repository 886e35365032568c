"""The plan that a run must have had: expanded anew from the suites, for what its adapter declares."""

from __future__ import annotations

from typing import Any, cast

from dsv4_conformance.cases.profiles import get_profile
from dsv4_conformance.implementations.api import Identity, Implementation
from dsv4_conformance.plugin.journal import Header, PlanEntry
from dsv4_conformance.plugin.options import Options
from dsv4_conformance.plugin.settings import Settings
from dsv4_conformance.report.stream import JournalFile
from dsv4_conformance.spec.requirements import load_registry
from dsv4_conformance.suite import ENDPOINT


def expected_plan(journal: JournalFile) -> set[tuple[str, str]]:
    """(case id, surface) of every case that the installed suites plan for such a run.

    Raises BadInput for a profile that does not exist.
    """
    from dsv4_conformance.cli.suite_functions import suite_functions
    from dsv4_conformance.plugin.collection import Planner

    header = journal.header
    options = Options(profile=header.profile, profile_given=True, seed=header.seed)
    if any(_asked_a_server(entry) for entry in journal.plan()):
        options = _with_endpoint(options)
    settings = Settings(options, _stand_in(header), header.device, get_profile(header.profile), load_registry())
    planner = Planner(settings)
    return {
        (item.case_id, item.surface)
        for function in suite_functions()
        for item in planner.items(function.function, function.spec)
    }


def _asked_a_server(entry: PlanEntry) -> bool:
    return entry.surface == ENDPOINT and "-not-offered-" not in entry.nodeid


def _with_endpoint(options: Options) -> Options:
    from dataclasses import replace

    return replace(options, endpoint=replace(options.endpoint, url="http://recorded"))


def _stand_in(header: Header) -> type[Implementation]:
    """A class that declares what the adapter declared; the adapter itself need not be installed here."""
    told: dict[str, Any] = header.implementation.identity
    kind = told.get("kind", "kernel")
    identity = Identity(str(told.get("name")), str(told.get("version")), "", kind=cast(Any, kind))
    surfaces = dict.fromkeys(header.implementation.surfaces, None)
    return cast(type[Implementation], type("Recorded", (), {"identity": identity, "surfaces": surfaces}))
