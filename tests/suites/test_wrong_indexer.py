"""Each wrong indexer is rejected by the requirement for its mistake, on kill, the start of the default profile."""

import pytest

from dsv4_conformance.implementations.api import Implementation
from tests.miniatures import indexer, indexer_selection, low_precision
from tests.suites.runs import first_failure

# Session -> the requirements that must reject it, each alone.
WRONG = {
    "TopkMinusOne": ("INV-32", "INV-37"),
    "TopkOfAnotherModel": ("INV-32",),
    "EntriesOneTokenLate": ("INV-31", "INV-37"),
    "UnfinishedGroupSeen": ("INV-31", "INV-37"),
    "CountOfTheLastToken": ("INV-31", "INV-37"),
    "ReluAfterTheWeight": ("INV-36",),
    "ReluAfterTheSum": ("INV-36",),
    "NoRelu": ("INV-36",),
    "SigmoidOfTheWeights": ("INV-34",),
    "SignOfTheWeightsLost": ("INV-34",),
    "WeightScaleForgotten": ("INV-33", "INV-37"),
    "WeightsOfTheNextHead": ("INV-33",),
    "HadamardOnKeysAlone": ("INV-33",),
    "HadamardOnQueriesAlone": ("INV-33",),
    "HadamardNowhere": ("INV-33",),
    "QueriesNotRoped": ("INV-37",),
    "QueriesRopedAtTheCallsStart": ("INV-37",),
    "KeyScalesForgotten": ("INV-37",),
    "KeysOfAnotherSequence": ("INV-37",),
    "StaleKeysAfterARejection": ("INV-37",),
    "ScoresReadWhereAllAreSelected": ("INV-31",),
    "SelectsTwice": ("INV-31", "INV-32"),
    "EntriesBeyondTheLength": ("INV-32",),
    "HolesInFront": ("INV-32",),
    "TailNotFilled": ("INV-31", "INV-32"),
    "CandidatesClipped": ("INV-32",),
    "ScoresInBf16": ("INV-32",),
    "LowestScores": ("INV-32", "INV-34"),
    "NanBecomesAnIndex": ("INV-32",),
    "HoleOfThePageBefore": ("INV-35",),
    "HolesAsSlotZero": ("INV-35",),
    "SlotsThroughFloat32": ("INV-35",),
    "SlotsOfTheFirstRow": ("INV-35",),
    "SlotsOfTheFirstSequence": ("INV-35",),
}
BOTH = vars(indexer) | vars(indexer_selection)
REQUIREMENTS = [f"INV-{n}" for n in range(31, 38)]


def adapter(name: str) -> type[Implementation]:
    return indexer.adapter(BOTH[name])


# Kills: any check taken out of the suite, any case that its mistakes need, any band widened.
@pytest.mark.parametrize(("name", "requirement"), [(name, r) for name, rs in WRONG.items() for r in rs])
def test_wrong_indexer_is_rejected(name: str, requirement: str) -> None:
    assert first_failure(adapter(name), requirement, "kill") is not None


# Kills: checks that only the built-in implementation passes. These are written apart from it,
# one in bfloat16.
@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_a_right_indexer_of_another_build_passes(requirement: str) -> None:
    assert first_failure(indexer.Indexing, requirement, "kill") is None
    assert first_failure(low_precision.RoundedIndexing, requirement, "kill") is None


# Kills: a mistake that no requirement is named for, a requirement that no mistake is named for.
def test_every_mistake_has_a_requirement_and_every_requirement_a_mistake() -> None:
    sessions = {
        name
        for name, value in BOTH.items()
        if isinstance(value, type) and issubclass(value, indexer.Small) and value is not indexer.Small
    }
    assert sessions == set(WRONG)
    assert {r for rs in WRONG.values() for r in rs} == set(REQUIREMENTS)


# Kills: sentences without the token, the entry or the number.
@pytest.mark.parametrize(
    ("name", "requirement", "said"),
    [
        ("EntriesOneTokenLate", "INV-31", "token 3 sees 1 entries and does not select just those"),
        ("SelectsTwice", "INV-32", "more than once"),
        ("EntriesBeyondTheLength", "INV-32", "outside its"),
        ("WeightScaleForgotten", "INV-33", "times the noise that is allowed"),
        ("HolesAsSlotZero", "INV-35", "paged selections of sequence 0 are not its slots of the raw ones"),
    ],
)
def test_the_sentence_says_what_is_wrong(name: str, requirement: str, said: str) -> None:
    failure = first_failure(adapter(name), requirement)
    assert failure is not None and said in failure, failure
