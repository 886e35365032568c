"""Collection: a suite function becomes one pytest item per planned case, the same list in every process."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dsv4_conformance.cases.plan import PlannedCase, expand
from dsv4_conformance.cases.profiles import TIMED, Profile, load_profiles
from dsv4_conformance.errors import BadInput, HarnessError
from dsv4_conformance.plugin.settings import Settings
from dsv4_conformance.plugin.waivers import Waiver
from dsv4_conformance.spec.requirements import Requirement
from dsv4_conformance.suite import ENDPOINT, TestSpec


@dataclass(frozen=True)
class PlannedItem:
    """One item. ``planned`` is None where the implementation does not offer ``surface``: then nothing runs."""

    case_id: str
    requirement: Requirement
    surface: str
    label: str
    planned: PlannedCase | None


class Planner:
    """Expands suite functions and remembers what it left out."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.not_selected: dict[str, str] = {}
        self.seen: set[str] = set()
        """Requirements of all functions that were collected, whether or not any case of theirs is planned."""
        self.found: set[str] = set()
        self._items: dict[Callable[..., Any], list[PlannedItem]] = {}
        self._specs: dict[Callable[..., Any], TestSpec] = {}

    def items(self, function: Callable[..., Any], spec: TestSpec) -> list[PlannedItem]:
        """The items of one test function, [] if this run selects none of its cases.

        Raises HarnessError if the function names a requirement that the registry lacks.
        """
        self.seen.add(spec.requirement)
        if function not in self._items:
            self._specs[function] = spec
            self._items[function] = list(self._expand(function.__name__, spec))
        chosen = self.settings.options.surfaces
        # The others are deselected, as by -k: they stay in what was expanded.
        return [item for item in self._items[function] if not chosen or item.surface in chosen]

    def expanded(self) -> Counter[str]:
        """How many items each requirement got."""
        return Counter(item.requirement.id for items in self._items.values() for item in items)

    def missing_cases(self) -> list[str]:
        """Case ids that the user asked for and no collected test has."""
        return [case_id for case_id in self.settings.options.cases if case_id not in self.found]

    def unmatched(self) -> list[str]:
        """Ids of waivers that match no case of any profile.

        Nobody can say so with another seed than the published one, with chosen cases, or where tests were left out.
        """
        settings = self.settings
        if settings.options.seed or settings.options.cases or not self.seen.issuperset(settings.registry.ids):
            return []
        return [waiver.id for waiver in settings.waivers.all if not any(self._all_cases_of(waiver))]

    def _all_cases_of(self, waiver: Waiver) -> Iterable[bool]:
        """For each case that there may be, whether ``waiver`` is for it; those of this run first."""
        mine = [(function.__name__, item) for function, items in self._items.items() for item in items]
        for name, item in mine:
            yield waiver.matches(item.requirement.id, item.case_id, item.surface, f"{name}[{item.label}]")
        for function, spec in self._specs.items():
            if spec.requirement != waiver.requirement:
                continue
            for profile in load_profiles().values():
                if profile.cases_for(spec.requirement, spec.family):
                    for case in expand(spec, function.__name__, profile, self.settings.options.seed):
                        test = f"{function.__name__}[{case.label}]"
                        yield waiver.matches(spec.requirement, case.case_id, case.surface, test)

    def _expand(self, name: str, spec: TestSpec) -> Iterable[PlannedItem]:
        try:
            requirement = self.settings.registry.get(spec.requirement)
        except BadInput as error:
            raise HarnessError(f"{name} checks {spec.requirement}, which the registry does not have: {error}") from None
        if self.settings.options.cases:
            yield from self._asked_for(name, spec, requirement)
            return
        profile = self.settings.profile
        if not profile.cases_for(spec.requirement, spec.family):
            self.not_selected[spec.requirement] = f"profile {profile.name} does not select it"
            return
        settings = self.settings
        if spec.family.startswith(TIMED) and settings.device != "cuda":
            self.not_selected[spec.requirement] = "times are compared on a GPU only, and this run is on the CPU"
            return
        if ENDPOINT in spec.surfaces and not (settings.offers(ENDPOINT) or settings.is_mandatory(ENDPOINT)):
            self.not_selected[spec.requirement] = "no server was named with --dsv4-endpoint"
            return
        offered = [surface for surface in spec.surfaces if self.settings.offers(surface)]
        present = TestSpec(spec.requirement, tuple(offered), spec.family)
        planned = list(expand(present, name, profile, self.settings.options.seed))
        for surface in spec.surfaces:
            mine = [self._item(requirement, case) for case in planned if case.surface == surface]
            if surface not in offered:
                yield self._absent(name, requirement, surface)
            elif not mine:
                what = f"{spec.requirement} on {surface} ({name})"
                self.not_selected[what] = f"family {spec.family!r} has no case of size {profile.size} there"
            yield from mine

    def _asked_for(self, name: str, spec: TestSpec, requirement: Requirement) -> Iterable[PlannedItem]:
        """The cases among --dsv4-case; in the given profile, else in the smallest that has them."""
        options = self.settings.options
        wanted = {case_id for case_id in options.cases if case_id.startswith(f"{spec.requirement}-")}
        for surface in spec.surfaces:
            absent = self._absent(name, requirement, surface)
            if absent.case_id in wanted and not self.settings.offers(surface):
                self.found.add(absent.case_id)
                yield absent
        profiles = [self.settings.profile] if options.profile_given else _smallest_first()
        mine: set[str] = set()
        for profile in profiles:
            if not wanted - mine or not profile.cases_for(spec.requirement, spec.family):
                continue
            for case in expand(spec, name, profile, options.seed):
                if case.case_id in wanted - mine:
                    mine.add(case.case_id)
                    yield self._item(requirement, case)
        self.found |= mine

    def _item(self, requirement: Requirement, case: PlannedCase) -> PlannedItem:
        offered = self.settings.offers(case.surface)
        return PlannedItem(case.case_id, requirement, case.surface, case.label, case if offered else None)

    def _absent(self, name: str, requirement: Requirement, surface: str) -> PlannedItem:
        text = f"{name}\n{requirement.id}\n{surface} not offered"
        case_id = f"{requirement.id}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        return PlannedItem(case_id, requirement, surface, f"{surface}-not-offered-{case_id}", None)


def _smallest_first() -> list[Profile]:
    return sorted(load_profiles().values(), key=lambda profile: (profile.size == "gpu", profile.count))
