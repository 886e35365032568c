"""Each wrong scheduler plan is rejected by INV-90, on the profile that must reject every fault."""

import pytest

from tests.miniatures import plans
from tests.miniatures.base import Miniature
from tests.suites.runs import first_failure

WRONG = (plans.PlanOfAnyShape, plans.PlanKeepsTheLists, plans.PlanKeepsTheQueries, plans.PlanBoundToOneUse)


@pytest.mark.parametrize("adapter", WRONG, ids=lambda adapter: adapter.__name__)
def test_a_wrong_plan_is_rejected(adapter: type[Miniature]) -> None:
    assert first_failure(adapter, "INV-90", "kill")


def test_the_right_one_is_not() -> None:
    assert first_failure(Miniature, "INV-90", "kill") is None
