"""Each wrong layer is rejected by the requirement that is there for its mistake, in the profiles default and kill."""

import pytest
import torch

from dsv4_conformance.cases.plan import PlannedCase
from dsv4_conformance.cli.suite_functions import SuiteFunction
from dsv4_conformance.errors import ConformanceFailure, NotApplicable
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.runner.session import Session
from dsv4_conformance.runner.subject import Subject
from tests.miniatures import layer, layer_state
from tests.suites.runs import functions, planned

# Adapter -> (requirement, family of cases) pairs, each of which must reject it alone.
WRONG = {
    "SinkSliceWithoutTheRank": [("INV-53", "layer_ranks")],
    "SinkBuiltForEveryStep": [("INV-53", "layer_ranks")],
    "UnifiedPathWithAllSinks": [("INV-53", "layer_ranks")],
    "SinkNeverReadAgain": [("INV-54", "layer_ranks")],
    "SinkMovedByAnUpdate": [("INV-54", "layer_ranks")],
    "SinkCopiedAtCapture": [("INV-54", "layer_decodes")],
    "OneScaleForAllHeads": [("INV-51", "layer_ranks")],
    "PaddedHeadsTimesZero": [("INV-51", "layer_ranks")],
    "OutputColumnsOfRank0": [("INV-50", "layer_ranks")],
    "HeadsDealtOutToGroups": [("INV-47", "layer_exact")],
    "QueriesWithoutTheirNorm": [("INV-46", "layer_exact")],
    "KeysRopedBeforeTheirNorm": [("INV-45", "layer_first_tokens")],
    "NoInverseRope": [("INV-43", "layer_exact"), ("INV-44", "layer_first_tokens"), ("INV-45", "layer_first_tokens")],
    "InverseRopeAtTheOldestKey": [("INV-42", "layer_schedules")],
    "TableOfCompressedLayersEverywhere": [("INV-42", "layer_schedules")],
    "TableOfWindowLayersEverywhere": [("INV-42", "layer_schedules")],
    "ScaleOf576": [("INV-42", "layer_schedules")],
    "WindowOf127": [("INV-40", "layer_window")],
    "WindowOf129": [("INV-40", "layer_window")],
    "PageEdgeOneTokenLate": [("INV-40", "layer_window")],
    "EntriesSeenOneTokenLate": [("INV-42", "layer_schedules")],
    "EntriesSeenOneTokenEarly": [("INV-41", "layer_exact"), ("INV-42", "layer_schedules")],
    "TopkOneTooFew": [("INV-49", "layer_indexed")],
    "IndexKeysOfAnotherPage": [("INV-42", "layer_steps")],
    "ApeTwice": [("INV-42", "layer_schedules")],
    "StateNotRolledBack": [("INV-42", "layer_schedules")],
    "StateOfAReleasedSequence": [("INV-71", "layer_schedules")],
    "PageGivenBackWhileInUse": [("INV-42", "layer_schedules")],
    "OtherTokensOverSlot0": [("INV-42", "layer_schedules")],
    "ForkWithoutTheTail": [("INV-30", "layer_prefixes"), ("INV-30", "compressed_prefixes")],
    "ForkDoesNotHoldItsPages": [("INV-30", "layer_prefixes")],
    "PageTableOfTheFirstSequence": [("INV-48", "layer_exact")],
    "PaddingHasNegativeLengths": [("INV-81", "layer_exact")],
    "PaddingStoredOverSlot0": [("INV-81", "layer_exact")],
    "PaddingStoredOverTheLastToken": [("INV-81", "layer_exact")],
    "WorkspaceAssumedZero": [("INV-71", "layer_schedules")],
    "EntriesUpToCapacity": [("INV-71", "layer_schedules")],
    "GatheredOnceForAllLayers": [("INV-80", "layer_prefills")],
    "ChunkCacheOfTheBatchBefore": [("INV-70", "layer_prefills")],
    "C128GatherFromTheFirstRow": [("INV-70", "layer_prefills")],
    "ListOfTheCapture": [("INV-92", "layer_decodes")],
    "LengthsOfTheCapture": [("INV-92", "layer_decodes")],
    "PlanOfTheCapture": [("INV-92", "layer_decodes")],
    "RowsBeyondTheBatchKept": [("INV-92", "layer_decodes")],
    "BoundsOfTheCapture": [("INV-92", "layer_prefill_replays")],
    "TableOfTheCapture": [("INV-92", "layer_prefill_replays")],
    "CacheMovedAfterCapture": [("INV-93", "layer_decodes"), ("INV-93", "layer_prefill_replays")],
}
SAID = {
    "SinkBuiltForEveryStep": "the sink was built again at another address",
    "SinkMovedByAnUpdate": "the refreshed sink lies at another address",
    "EntriesSeenOneTokenLate": "selection: row 3 names 0 entries instead of 1",
    "IndexKeysOfAnotherPage": "selection: row",
    "PaddedHeadsTimesZero": "o: nan where",
    "PaddingHasNegativeLengths": "open_layer().step raised RuntimeError: CUDA error",
    "CacheMovedAfterCapture": "cache.window moved while a captured graph holds the old address",
    "TableOfWindowLayersEverywhere": "q: error",
}
BOTH = {
    name: value
    for module in (layer, layer_state)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, layer.Layered) and value.__module__ == module.__name__
}
RIGHT = {"Layered", "OtherTokensOverTheDummySlot"}
ON_CUDA = {"INV-94", "INV-165", "INV-166"}
ELSEWHERE = {"INV-152", "INV-155"}
"""Rejected by the layers of test_wrong_extents.py and of tests/faults."""
"""Memory counters and waiting: nothing to judge on a CPU."""


def suite(requirement: str, family: str) -> list[SuiteFunction]:
    """The suite's functions for a requirement of whole layers over one family of cases."""
    return [
        function
        for function in functions()
        if (function.spec.requirement, function.spec.family) == (requirement, family)
        and "AttentionLayer" in function.spec.surfaces
    ]


def fewest(function: SuiteFunction) -> tuple[PlannedCase, ...]:
    """The cases of profile default or kill, whichever has fewer: they are the first ones of the other, too."""
    few, many = sorted((planned(function, profile) for profile in ("default", "kill")), key=len)
    assert few == many[: len(few)]
    return few


def rejection(name: str, requirement: str, family: str, most: int | None = None) -> str | None:
    """``rejection_of`` a layer of the miniatures."""
    return rejection_of(BOTH[name], requirement, family, most)


def rejection_of(adapter: type[Builtin], requirement: str, family: str, most: int | None = None) -> str | None:
    """What the first case that rejects an adapter says; None if it passes all, or the first ``most``."""
    torch.manual_seed(0)
    session, checked = Session(adapter, "cpu"), 0
    for function in suite(requirement, family):
        for case in fewest(function)[:most]:
            subject = Subject(session.implementation, session.device, requirement)
            try:
                function.function(subject, case.case)
            except NotApplicable:
                continue
            except ConformanceFailure as failure:
                return str(failure)
            checked += bool(subject.record()["checked"])
    assert checked, f"{requirement} was not checked on {family}"
    return None


# Kills: any check or case taken out of the suites that alone shows a mistake; schedules, ratios or flavours in an order
# in which the smaller profile misses it. The first ones of layer_schedules alone once had no more than 64 entries.
@pytest.mark.parametrize(
    ("name", "requirement", "family"), [(name, *where) for name, places in WRONG.items() for where in places]
)
def test_wrong_layer_is_rejected(name: str, requirement: str, family: str) -> None:
    failure = rejection(name, requirement, family)
    assert failure is not None
    assert SAID.get(name, "") in failure and "\n" not in failure


# Kills: a check that page 0, which belongs to nobody (spec §9.1), keeps its bytes: engines may write to it.
def test_what_is_written_to_the_dummy_page_does_not_matter() -> None:
    assert rejection("OtherTokensOverTheDummySlot", "INV-81", "layer_exact", most=1) is None


# Kills: a wrong layer that nobody runs, a requirement of whole layers that rejects nothing here.
def test_every_layer_is_named_and_every_requirement_rejects_one() -> None:
    assert set(BOTH) - RIGHT == set(WRONG)
    whole = {f.spec.requirement for f in functions() if "AttentionLayer" in f.spec.surfaces}
    assert whole - ON_CUDA - ELSEWHERE == {requirement for places in WRONG.values() for requirement, _ in places}
