"""Each wrong compressor is rejected by the requirement for its mistake, on kill, the start of the default profile."""

import pytest

from dsv4_conformance.implementations.api import Implementation
from tests.miniatures import compressor, low_precision, prefixes
from tests.suites.runs import first_failure

# Session -> the requirements that must reject it, each alone.
WRONG = {
    "ApeTwice": ("INV-20",),
    "ApeByPlaceInChunk": ("INV-20", "INV-25"),
    "OverlapReadInTheFirstWindow": ("INV-24", "INV-27"),
    "OldStateRead": ("INV-27",),
    "HalvesSwapped": ("INV-20", "INV-22"),
    "EntryOneTokenLate": ("INV-26",),
    "EntryOneTokenEarly": ("INV-26",),
    "UnfinishedWindowEmitted": ("INV-26",),
    "SoftmaxOverChannels": ("INV-23", "INV-24"),
    "OneWeightPerSlot": ("INV-23", "INV-25"),
    "SoftmaxWithoutMaximum": ("INV-23",),
    "MeanOfTheSlots": ("INV-20", "INV-25"),
    "MeanDividesByAllSlots": ("INV-24",),
    "TruncateForgotten": ("INV-20", "INV-26"),
    "RingWithoutRoomForDrafts": ("INV-20",),
    "DraftsWrittenBeforePooling": ("INV-20",),
    "ChunkLosesTheOverlap": ("INV-20",),
    "StateRowsByPlaceInCall": ("INV-21",),
    "WindowsCutOnTheJoinedAxis": ("INV-21",),
    "StateInBf16": ("INV-20",),
    "RopeAtTheLastToken": ("INV-20", "INV-29"),
    "RopeAtTheEntryNumber": ("INV-29",),
    "NotRoped": ("INV-29",),
    "RopeBeforeTheNorm": ("INV-29",),
    "NormBeforePooling": ("INV-28", "INV-24"),
}
PREFIXES = ("PrefixWithoutState", "PrefixWithTheLatestState", "PrefixOnTheOthersStateRow")
REQUIREMENTS = [f"INV-{n}" for n in range(20, 30)]


def adapter(name: str) -> type[Implementation]:
    return compressor.adapter(getattr(compressor, name))


# Kills: any check taken out of the suite, any case that its mistakes need, any budget widened.
@pytest.mark.parametrize(("name", "requirement"), [(name, r) for name, rs in WRONG.items() for r in rs])
def test_wrong_compressor_is_rejected(name: str, requirement: str) -> None:
    assert first_failure(adapter(name), requirement, "kill") is not None


# Kills: forks that nobody continues, continuations that no token follows, prefixes of one length only.
@pytest.mark.parametrize("name", PREFIXES)
def test_wrong_handover_of_a_prefix_is_rejected(name: str) -> None:
    wrong: type[Implementation] = getattr(prefixes, name)
    assert first_failure(wrong, "INV-30", "kill") is not None


# Kills: a prefix check that a right layer fails.
def test_right_handover_of_a_prefix_passes() -> None:
    assert first_failure(prefixes.Prefixed, "INV-30", "kill") is None


# Kills: checks that only the built-in implementation passes. These are written apart from it,
# one in bfloat16.
@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_a_right_compressor_of_another_build_passes(requirement: str) -> None:
    assert first_failure(compressor.Compressing, requirement, "kill") is None
    assert first_failure(low_precision.RoundedCompressing, requirement, "kill") is None


# Kills: a mistake that no requirement is named for, a requirement that no mistake is named for.
def test_every_mistake_has_a_requirement_and_every_requirement_a_mistake() -> None:
    sessions = {
        name
        for name, value in vars(compressor).items()
        if isinstance(value, type) and issubclass(value, compressor.Ring) and value is not compressor.Ring
    }
    assert sessions == set(WRONG)
    assert {r for rs in WRONG.values() for r in rs} == set(REQUIREMENTS)


# Kills: sentences without the place or the number.
@pytest.mark.parametrize(
    ("name", "requirement", "said"),
    [
        ("EntryOneTokenLate", "INV-26", "push of tokens 3 to 3 at ratio 4 returned 0 entries instead of 1"),
        ("RopeAtTheLastToken", "INV-29", "normed: error"),
        ("HalvesSwapped", "INV-22", "changed entries"),
    ],
)
def test_the_sentence_says_what_is_wrong(name: str, requirement: str, said: str) -> None:
    failure = first_failure(adapter(name), requirement)
    assert failure is not None and said in failure, failure
