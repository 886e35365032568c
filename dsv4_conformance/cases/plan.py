"""From a test and a profile to planned cases: data alone, the same list in every process."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from dsv4_conformance.cases.case import Case
from dsv4_conformance.cases.families import family
from dsv4_conformance.cases.fixed import fixed_cases
from dsv4_conformance.cases.identity import case_id
from dsv4_conformance.cases.profiles import Profile
from dsv4_conformance.suite import TestSpec


@dataclass(frozen=True)
class PlannedCase:
    """One row of the plan. ``case_id`` = requirement + hash of (test, case): what ``repro`` takes."""

    case_id: str
    requirement: str
    surface: str
    case: Case

    @property
    def label(self) -> str:
        """The pytest parameter id: readable, unique, ends with the case id."""
        return f"{self.case.label()}-{self.case_id}"


def expand(spec: TestSpec, test_name: str, profile: Profile, seed: int) -> Iterator[PlannedCase]:
    """The cases of one test under ``profile``, surface by surface, duplicates dropped; fixed cases come last.

    ``seed`` names the stream that random draws come from; 0 is the published one.
    """
    count = profile.cases_for(spec.requirement, spec.family)
    for surface in spec.surfaces:
        seen: set[str] = set()
        # A finite family may repeat itself before `count`; look a bounded way ahead for distinct cases.
        for case in islice(family(spec.family, surface, profile.size, seed), 4 * count):
            identifier = case_id(test_name, spec.requirement, case)
            if len(seen) == count:
                break
            if identifier not in seen:
                seen.add(identifier)
                yield PlannedCase(identifier, spec.requirement, surface, case)
        for case in fixed_cases(test_name, spec.requirement, surface) if count else ():
            identifier = case_id(test_name, spec.requirement, case)
            if identifier not in seen:
                seen.add(identifier)
                yield PlannedCase(identifier, spec.requirement, surface, case)
