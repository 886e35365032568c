"""Each wrong adapter is rejected, by the requirement that is there for its mistake, on a CPU."""

import pytest

from dsv4_conformance.implementations.api import Implementation
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.numerics.format_mutants import WRITERS
from dsv4_conformance.numerics.mutants import MUTANTS
from tests import miniatures
from tests.suites.runs import first_failure, requirements

# Adapter -> the requirements that must reject it, each alone.
SEMANTIC = {
    "Zeros": ("INV-01",),
    "SinkDropped": ("INV-01", "INV-05"),
    "SinkOfAnotherRank": ("INV-01", "INV-53"),
    "SinkScaled": ("INV-01", "INV-05"),
    "SinkInLse": ("INV-01", "INV-04"),
    "WindowMinusOne": ("INV-01", "INV-09"),
    "WindowPlusOne": ("INV-01", "INV-17"),
    "KeyDropped": ("INV-01", "INV-10"),
    "MinusOneAsSlot0": ("INV-01", "INV-11"),
    "TopkLengthIgnored": ("INV-01", "INV-14"),
    "LastBlockLost": ("INV-01", "INV-12"),
    "ExtraScopeLost": ("INV-01", "INV-13"),
    "ScaleExponentPlusOne": ("INV-01", "INV-18"),
    "ScaleExponentMinusOne": ("INV-01", "INV-18"),
    "RopePairingWrong": ("INV-01", "INV-09"),
    "NeighboursKeys": ("INV-01", "INV-17"),
    "LseBase2": ("INV-01", "INV-101"),
    "SoftmaxScaleOf576": ("INV-01", "INV-19"),
}
KERNELS = {
    "HolesMaskedInLogitsOnly": ("INV-15",),
    "TailsMaskedInLogitsOnly": ("INV-14", "INV-15"),
    "WeightsInFp8": ("INV-01",),
    "AccumulatesInBf16": ("INV-01",),
    "LogitsInBf16": ("INV-01", "INV-09"),
    "NoCareForRowsWithoutKeys": ("INV-06",),
    "InfiniteSinkBecomesNan": ("INV-03",),
    "SinkLimitsAreNotExact": ("INV-02", "INV-03"),
    "SinkInTheMaximum": ("INV-04",),
    "RepeatedIndexCountsOnce": ("INV-10",),
    "RepeatsAcrossABlockSEdgeCountOnce": ("INV-10",),
    "LosesAKeyThatIsAloneInItsBlock": ("INV-14",),
    "HoleEndsTheList": ("INV-11",),
    "MaximumOverTheBatch": ("INV-17",),
    "MaximumOverTheHeads": ("INV-51",),
    "AnotherKernelFor128Heads": ("INV-55",),
    "PageSizeTakenForGranted": ("INV-18",),
    "NoisyFromRunToRun": ("INV-102",),
}
BITS = {
    "SinkOfMinusInfinityTakesAnotherPath": ("INV-02",),
    "InfiniteSinksReachOtherHeads": ("INV-03",),
    "TailsReachTheBits": ("INV-14",),
    "PoisonReachesTheBits": ("INV-15",),
    "PaddedQueriesReachTheBits": ("INV-51",),
    "LonelyRowsAreAlmostZero": ("INV-06",),
    "LonelyLseIsMinusInfinity": ("INV-06",),
    "LonelyMaximumIsFinite": ("INV-06",),
    "SinkReachesTheMaximum": ("INV-04",),
}
FORMATS = {
    "PacksScalesPlusOne": ("INV-60", "INV-63"),
    "PacksScalesMinusOne": ("INV-60", "INV-63"),
    "PacksScalesBesideEachToken": ("INV-60",),
    "PacksRopeFirst": ("INV-60",),
    "PacksRopeInHalves": ("INV-60",),
    "PacksWithoutScaling": ("INV-60", "INV-62"),
    "PacksTowardsZero": ("INV-62",),
    "PacksMinusOneIntoSlot0": ("INV-60",),
    "PacksAtAStrideOf584P": ("INV-60",),
    "PacksWithTheScaleFloor": ("INV-63",),
    "UnpacksWithTheNextTilesScale": ("INV-61",),
    "UnpacksThroughFp16": ("INV-61",),
    "UnpacksRopeThroughFp8": ("INV-61",),
    "PacksDoubleTokens": ("INV-100",),
    "IndexScalesBesideEachKey": ("INV-64",),
    "IndexScalesArePowersOfTwo": ("INV-64",),
    "UnpacksIndexKeysWithoutScale": ("INV-64",),
    "IndexPagesAreClearedFirst": ("INV-64",),
    "IndexCodesAreTruncated": ("INV-64",),
    "SlotsOfRatio4ForAll": ("INV-65",),
    "SlotOfAHoleIsASlot": ("INV-65",),
    "PadsToAllHeads": ("INV-52",),
    "PadsInFront": ("INV-51",),
    "SinkOfRank0Everywhere": ("INV-53",),
    "SinkSliceOfPaddedWidth": ("INV-53",),
    "SinkCopiedOnEveryCall": ("INV-53",),
    "SinkCopiedWithoutTensorParallelism": ("INV-53",),
    "SinkNeverRefreshed": ("INV-54",),
    "SinkMovedByARefresh": ("INV-54",),
}
CONTRACT = {
    "ScalesQueriesInPlace": ("INV-100",),
    "ClearsPadBytes": ("INV-100",),
    "FillsHolesInPlace": ("INV-100",),
    "TransposedLse": ("INV-101",),
    "OutInFloat32": ("INV-101",),
    "ReturnsNothingForLse": ("INV-101",),
    "WritesBeyondItsOutput": ("INV-100",),
    "WritesBeforeItsLse": ("INV-100",),
    "IgnoresTheGivenOutput": ("INV-101",),
    "LeavesTheLastRowUnwritten": ("INV-01",),
    "ReturnsUninitialisedRows": ("INV-01",),
    "DeclaresBase2": ("INV-101",),
    "DeclaresMinusInfinity": ("INV-06",),
    "DeclaresEveryHeadCount": ("INV-101",),
    "DeclaresEveryWidth": ("INV-12",),
    "DeclaresBitwiseHeads": ("INV-19",),
    "Raises": ("INV-01",),
    "RefusesWhatItDeclares": ("INV-101",),
    "RemembersTheFirstCall": ("INV-01",),
    "KeepsResultsOfTheLastCall": ("INV-01",),
}
ALL = SEMANTIC | KERNELS | BITS | FORMATS | CONTRACT
RIGHT = {"Miniature", "Kernel", "WithoutAttention", "Nudged", "Lonely"}


def adapter(name: str) -> type[Implementation]:
    found: type[Implementation] = getattr(miniatures, name)
    return found


# Kills: any check taken out of the suites, any budget widened beyond what its mistakes need.
@pytest.mark.parametrize(("name", "requirement"), [(name, r) for name, rs in ALL.items() for r in rs])
def test_wrong_implementation_is_rejected(name: str, requirement: str) -> None:
    profile = "default" if name == "AccumulatesInBf16" else "kill"  # the first few of its cases are too short
    assert first_failure(adapter(name), requirement, profile) is not None


NOT_ON_A_CPU = {"INV-94", *(f"INV-{n}" for n in (*range(130, 135), *range(160, 167)))}
"""Waiting for a device; a served model; times."""


# Kills: checks that reject what is right. (All cases of the default profile are what `tox run -e conformance` runs.)
@pytest.mark.parametrize("requirement", [r for r in requirements() if r not in NOT_ON_A_CPU])
def test_built_in_implementation_passes_the_same_checks(requirement: str) -> None:
    assert first_failure(Builtin, requirement, "kill", most=1) is None


# Kills: checks that only the built-in implementation passes. This kernel is written apart from it, in float32.
@pytest.mark.parametrize("requirement", ["INV-01", "INV-15", "INV-51"])
def test_a_right_kernel_of_another_build_passes(requirement: str) -> None:
    assert first_failure(miniatures.Kernel, requirement) is None


# Kills: nudges that a budget rejects: then the checks for equal bits would not be needed to see them.
@pytest.mark.parametrize("name", [name for name in BITS if "Bits" in name or name.startswith(("SinkOf", "Infinite"))])
def test_nudged_bits_stay_within_every_budget(name: str) -> None:
    assert first_failure(adapter(name), "INV-01") is None


# Kills: a mistake of numerics/ without an adapter here, an adapter that no requirement is named for.
def test_every_mistake_has_an_adapter_and_every_adapter_a_requirement() -> None:
    assert set(SEMANTIC) == {"".join(word.capitalize() for word in name.split("_")) for name in MUTANTS}
    assert len(WRITERS) == 6 and len([name for name in FORMATS if name.startswith("Packs")]) >= 6
    adapters = {
        name
        for name, value in vars(miniatures).items()
        if isinstance(value, type) and issubclass(value, miniatures.Miniature)
    }
    assert adapters - RIGHT == set(ALL) | {"ZerosAdapter"}


# Kills: sentences without the place, the mistake or the promise that was broken.
@pytest.mark.parametrize(
    ("name", "requirement", "said"),
    [
        ("SinkDropped", "INV-01", "sink_dropped (The sink ignored.)"),
        ("TopkLengthIgnored", "INV-01", "topk_length_ignored"),
        ("ScalesQueriesInPlace", "INV-100", "ScalesQueriesInPlace.decode changed its input q"),
        ("FillsHolesInPlace", "INV-100", "changed its input window indices"),
        ("TransposedLse", "INV-101", "returned lse of shape"),
        ("WritesBeyondItsOutput", "INV-100", "wrote outside its output out"),
        ("IgnoresTheGivenOutput", "INV-101", "declares accepts_out and did not return the out it was given"),
        ("Raises", "INV-01", "raised RuntimeError: CUDA error: an illegal memory access was encountered"),
        ("RefusesWhatItDeclares", "INV-101", "raised NotApplicable: this shape is not tuned yet"),
        ("LeavesTheLastRowUnwritten", "INV-01", "NaN where 0 is right at query row 5, head 0"),
    ],
)
def test_the_sentence_says_what_is_wrong(name: str, requirement: str, said: str) -> None:
    failure = first_failure(adapter(name), requirement)
    assert failure is not None and said in failure, failure
    assert "\n" not in failure
