"""Wrong addresses, plans, counts and dialects are rejected by the requirement that is there for them."""

import pytest

from tests.miniatures import extents
from tests.miniatures.base import Miniature
from tests.suites.runs import first_failure

WRONG: dict[type[Miniature], tuple[str, ...]] = {
    extents.GathersByCapacity: ("INV-141", "INV-142"),
    extents.PageOffsetInFloat32: ("INV-140",),
    extents.LosesATokenPerChunk: ("INV-144",),
    extents.PagesKnownByThemselves: ("INV-147",),
    extents.PagesKnownByTheLastTwo: ("INV-147",),
    extents.PagesKnownButForAToken: ("INV-147",),
    extents.OneKeyTooMany: ("INV-152",),
    extents.ReadsSinksAsTheyLie: ("INV-153",),
    extents.TakesEveryHeadCount: ("INV-153",),
    extents.FnuzUnderflowIsNan: ("INV-151",),
    extents.FnuzReadAsFn: ("INV-61", "INV-151"),
}


# Kills: the check of a requirement taken out; what the faults of tests/faults/test_extents.py do not reach.
@pytest.mark.parametrize(("adapter", "requirement"), [(a, r) for a, rs in WRONG.items() for r in rs])
def test_a_wrong_adapter_is_rejected(adapter: type[Miniature], requirement: str) -> None:
    assert first_failure(adapter, requirement, "kill")


# Kills: suites that know one fp8 dialect.
@pytest.mark.parametrize("requirement", ["INV-60", "INV-61", "INV-62", "INV-63", "INV-64", "INV-150", "INV-151"])
def test_pages_of_the_other_dialect_pass_as_declared(requirement: str) -> None:
    assert first_failure(extents.FnuzPages, requirement, "kill") is None
