"""Profiles: which requirements, how many cases, which surfaces are mandatory. Data in profiles.toml."""

import difflib
import tomllib
from functools import cache
from importlib import resources
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from dsv4_conformance.errors import BadInput

Size = Literal["laptop", "gpu"]
TIMED = "timed_"
"""How families begin whose cases are timed; only timed profiles run them."""


class Mandatory(BaseModel):
    """Surfaces an implementation must offer, by its kind."""

    model_config = ConfigDict(extra="forbid")
    kernel: list[str]
    engine: list[str]


class Profile(BaseModel):
    """One profile; ``count`` cases per (test, surface) unless ``counts`` names the case family or the requirement."""

    model_config = ConfigDict(extra="forbid")
    name: str
    summary: str
    size: Size
    count: int = Field(gt=0)
    counts: dict[str, int] = {}
    only: list[str] | None = None
    timed: bool = False
    """Times are compared: every process needs a GPU of its own."""
    mandatory: Mandatory

    def cases_for(self, requirement: str, family: str) -> int:
        """Cases per surface for one test of ``requirement`` over ``family``; 0 if the profile does not select it."""
        if self.only is not None and requirement not in self.only:
            return 0
        if family.startswith(TIMED) and not self.timed:
            return 0
        return self.counts.get(family, self.counts.get(requirement, self.count))


@cache
def load_profiles() -> dict[str, Profile]:
    """All profiles by name, in the order of the data file."""
    text = resources.files("dsv4_conformance.cases").joinpath("profiles.toml").read_text(encoding="utf-8")
    return {name: Profile(name=name, **table) for name, table in tomllib.loads(text).items()}


def get_profile(name: str) -> Profile:
    """The profile called ``name``; BadInput with the nearest names otherwise."""
    profiles = load_profiles()
    if name not in profiles:
        near = difflib.get_close_matches(name, profiles, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(profiles)}."
        raise BadInput(f"Unknown profile {name!r}: {hint}")
    return profiles[name]
