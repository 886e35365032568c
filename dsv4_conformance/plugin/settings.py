"""From options to what a run needs: adapter, device, profile, registry; every refusal is one sentence. No torch."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from dsv4_conformance import resources
from dsv4_conformance.cases.profiles import Profile, get_profile
from dsv4_conformance.errors import BadInput, HarnessError
from dsv4_conformance.implementations import registry as implementations
from dsv4_conformance.implementations.api import Implementation
from dsv4_conformance.plugin.options import Options
from dsv4_conformance.plugin.waivers import Waivers, read_waivers
from dsv4_conformance.spec.requirements import Registry, load_registry
from dsv4_conformance.suite import ENDPOINT
from dsv4_conformance.texts import summary_of

CASE_ID = re.compile(r"(INV-\d{2,3})-[0-9a-f]{8}")


@dataclass(frozen=True)
class Settings:
    """A run's fixed points. ``device`` is "cpu" or "cuda", never "auto"."""

    options: Options
    implementation: type[Implementation]
    device: str
    profile: Profile
    registry: Registry
    waivers: Waivers = field(default_factory=Waivers)

    def offers(self, surface: str) -> bool:
        """Whether ``surface`` can be tested: the adapter declares it, or for a server, the user named one."""
        if surface == ENDPOINT:
            return bool(self.options.endpoint.url)
        return surface in self.implementation.surfaces

    def is_mandatory(self, surface: str) -> bool:
        """Whether the profile fails an implementation of this kind that does not offer ``surface``."""
        required: list[str] = getattr(self.profile.mandatory, self.implementation.identity.kind)
        return surface in required


def resolve(options: Options, device: str | None = None) -> Settings:
    """Settings for ``options``; ``device`` as another process has resolved it already, None to resolve it here.

    Raises BadInput for an unknown profile, implementation, device or case id, and for an engine that is not there.
    """
    profile = get_profile(options.profile)
    registry = load_registry()
    for case_id in options.cases:
        match = CASE_ID.fullmatch(case_id)
        if match is None:
            raise BadInput(f"{case_id!r} is no case id; one looks like INV-02-1a2b3c4d and ends each failure's report.")
        registry.get(match[1])
    implementation = implementations.load(options.impl)
    if device is None:
        device = implementations.check_device(implementation, options.device)
        _check_engine(options.impl, implementation)
    today = datetime.now(UTC).date()
    path = options.waivers or shipped_waivers()
    given = read_waivers(path, registry, today) if path is not None else []
    mine = [waiver for waiver in given if waiver.selector.concerns(implementation.identity.name, device)]
    return Settings(options, implementation, device, profile, registry, Waivers(mine, today))


def shipped_waivers() -> Path | None:
    """The folder of waivers that hold where none were given, None if there is none."""
    try:
        folder = resources.golden_dir() / "waivers"
    except HarnessError:
        return None
    return folder if folder.is_dir() else None


def _check_engine(name: str, implementation: type[Implementation]) -> None:
    try:
        implementation.check_available()
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        said = summary_of(error)
        raise BadInput(f"implementation {name!r} is not available: its check_available() raised {said}.") from None
