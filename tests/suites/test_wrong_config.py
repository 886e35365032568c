"""Each engine that reads its configuration wrongly is rejected, by the requirement that is there for its mistake."""

import pytest

from dsv4_conformance.implementations.api import Implementation
from dsv4_conformance.implementations.builtin import Builtin
from tests.miniatures import Miniature, config, config_memory, config_told
from tests.suites.runs import first_failure, functions

# Adapter -> the requirements that must reject it, each alone.
WRONG = {
    "ContextParallelismLeavesItOn": ("INV-82",),
    "ContextParallelismSwitchesOffSilently": ("INV-82",),
    "ContextParallelismWarnsOnEveryRank": ("INV-82",),
    "ForcedOnWins": ("INV-82",),
    "OptOutIgnored": ("INV-116", "INV-82"),
    "AnyWordSwitchesOn": ("INV-116",),
    "OptOutInCapitalsIgnored": ("INV-116",),
    "OffByDefault": ("INV-117",),
    "TpForAttentionTp": ("INV-110",),
    "HeadsOfAllRanks": ("INV-110",),
    "PadsToAllOnFlashMla": ("INV-52",),
    "PadsToAllElsewhere": ("INV-52",),
    "TellsAnotherPageSize": ("INV-119",),
    "ContextOfTheOption": ("INV-120",),
    "WarnsOfWhatIsOffAlready": ("INV-82",),
    "WarnsWithoutAReason": ("INV-82",),
    "WarnsOfContextParallelismThatIsOff": ("INV-82",),
    "RefusesAtLength": ("INV-122",),
    "RefusesOtherPagesWithoutAName": ("INV-122",),
    "WritesToTheEnvironment": ("INV-123",),
    "YarnOnWindowLayers": ("INV-113",),
    "YarnWithDefaultFactor": ("INV-113",),
    "YarnWithTheReleasesFactor": ("INV-113",),
    "DefaultCompressTheta": ("INV-112",),
    "ReleasedThetaForAll": ("INV-112",),
    "OneThetaForAll": ("INV-112",),
    "FillsInMissingTheta": ("INV-122",),
    "DraftLayerTakesTheLastRatio": ("INV-111",),
    "RatioPatternFromTheIndex": ("INV-111",),
    "TopKOfPro": ("INV-114",),
    "WindowOf256": ("INV-114",),
    "YarnInTheScale": ("INV-115",),
    "PageSize64Accepted": ("INV-122",),
    "PageSizeReplacedSilently": ("INV-122",),
    "SplitsOutputGroups": ("INV-122",),
    "ClampsTheContext": ("INV-122",),
    "RefusesWithoutAName": ("INV-122",),
    "PagedCallsOfAnyLength": ("INV-118",),
    "C128PageOf256": ("INV-119",),
    "PagesWithoutTheirTail": ("INV-119",),
    "OneDraftLayer": ("INV-120",),
    "CacheSharedOutOverRanks": ("INV-120",),
    "StateOfCompleteGroupsForgotten": ("INV-120",),
    "WorkspaceOfC128Alone": ("INV-120",),
    "WorkspaceOfCapacity": ("INV-121",),
    "WindowGrowsWithContext": ("INV-121",),
    "StateGrowsWithContext": ("INV-121",),
    "RopeOfTheFirstModel": ("INV-123",),
    "PopsTheRopeParameters": ("INV-123",),
    "TellsNoRatios": ("INV-111",),
}
ADAPTERS: dict[str, type[Implementation]] = {
    name: value
    for module in (config, config_memory, config_told)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, Miniature)
}
RIGHT = {"Miniature", "Configured", "Warns"}
REQUIREMENTS = ["INV-52", "INV-82", *(f"INV-{number}" for number in range(110, 124))]


def adapter(name: str) -> type[Implementation]:
    return ADAPTERS[name]


# Kills: any check taken out of suites/config, a case taken out that alone shows a mistake, in the smaller profile.
@pytest.mark.parametrize(("name", "requirement"), [(name, r) for name, rs in WRONG.items() for r in rs])
def test_wrong_configuration_is_rejected(name: str, requirement: str) -> None:
    assert first_failure(adapter(name), requirement, "kill") is not None


# Kills: checks that reject what is right.
@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_right_configuration_passes(requirement: str) -> None:
    assert first_failure(Builtin, requirement) is None


# Kills: a wrong adapter that nobody runs, a requirement that nothing is rejected by.
def test_every_adapter_is_named_and_every_requirement_rejects_one() -> None:
    assert set(ADAPTERS) - RIGHT == set(WRONG)
    tested = {f.spec.requirement for f in functions() if "EngineConfig" in f.spec.surfaces}
    assert {r for rs in WRONG.values() for r in rs} == tested == set(REQUIREMENTS)


# Kills: sentences without the place or the number that is wrong.
@pytest.mark.parametrize(
    ("name", "requirement", "said"),
    [
        ("YarnOnWindowLayers", "INV-113", "layer 0 has True, not False"),
        ("DraftLayerTakesTheLastRatio", "INV-111", "layer 43 has 4, not 0"),
        ("TpForAttentionTp", "INV-110", "attention_tp is 8 with tp 8, dp 8, cp 1, not 1"),
        ("PageSize64Accepted", "INV-122", "page_size is 64; 64 was taken as it is"),
        ("DefaultCompressTheta", "INV-112", "layer 2 has 40000.0, not 160000.0"),
        ("ContextParallelismSwitchesOffSilently", "INV-82", "0 warnings say that sparse prefill is switched off"),
        ("RefusesWithoutAName", "INV-122", "names none of"),
        ("TellsNoRatios", "INV-111", "tells no compress_ratios"),
        ("FillsInMissingTheta", "INV-122", "took an input that it must refuse"),
    ],
)
def test_the_sentence_says_what_is_wrong(name: str, requirement: str, said: str) -> None:
    failure = first_failure(adapter(name), requirement, "kill")
    assert failure is not None and said in failure, failure
    assert "\n" not in failure
