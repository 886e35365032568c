"""Layers that are wrong only the second time, on another rank or in a crowd are rejected; the built-in one is not."""

import pytest
import torch

from dsv4_conformance.errors import ConformanceFailure, NotApplicable
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.runner.session import Session
from dsv4_conformance.runner.subject import Subject
from tests.miniatures import layer_turns
from tests.suites.test_wrong_layer import fewest, suite

WRONG = [
    ("CapturedDecodeHasRank0Sinks", "INV-54", "layer_rank_graphs"),
    ("SparsePrefillKeepsItsFirstSinks", "INV-54", "layer_ranks"),
    ("ChunksHaveRank0Sinks", "INV-155", "layer_budgets"),
    ("BrokenPrefillKeepsTheSinksOfItsCapture", "INV-54", "layer_rank_graphs"),
    ("OneMetadataForBothGraphs", "INV-54", "layer_rank_graphs"),
    ("EqualLengthsShareABase", "INV-42", "layer_crowds"),
    ("WindowsEndAtTheEighth", "INV-42", "layer_crowds"),
    ("ForksTakeTheLastTailOnly", "INV-30", "layer_forks"),
    ("DecodeKeepsTheFirstPagesTailOnly", "INV-30", "layer_forks"),
    ("ReplaysKeepRejectedPages", "INV-92", "layer_rejections"),
    ("SinksRefreshedOnOddRanks", "INV-54", "layer_ranks"),
    ("LaterLayersAttendToTheOldBuffer", "INV-80", "layer_prefills"),
]
FAMILIES = sorted({(requirement, family) for _, requirement, family in WRONG})


def failures(adapter: type[Builtin], requirement: str, family: str) -> list[str]:
    """The first sentence that rejects an adapter, if one does."""
    torch.manual_seed(0)
    session = Session(adapter, "cpu")
    for function in suite(requirement, family):
        for case in fewest(function):
            subject = Subject(session.implementation, session.device, requirement)
            try:
                function.function(subject, case.case)
            except NotApplicable:
                continue
            except ConformanceFailure as failure:
                return [str(failure)]
    return []


# Kills: ranks, graphs and updates that are each tested, but not together; steps of a few sequences of unlike lengths.
@pytest.mark.parametrize(("name", "requirement", "family"), WRONG)
def test_a_layer_that_is_wrong_the_second_time_is_rejected(name: str, requirement: str, family: str) -> None:
    assert failures(getattr(layer_turns, name), requirement, family)


@pytest.mark.parametrize(("requirement", "family"), FAMILIES)
def test_the_built_in_layer_is_not(requirement: str, family: str) -> None:
    assert not failures(Builtin, requirement, family)


# Kills: growth that an earlier, larger case has done already.
def test_a_workspace_that_has_grown_before_is_none() -> None:
    torch.manual_seed(0)
    session = Session(layer_turns.LaterLayersAttendToTheOldBuffer, "cpu")
    for rows in session.implementation.__dict__.setdefault("_workspaces", {}).values():
        rows.get(100_000)
    (function,) = suite("INV-80", "layer_prefills")
    subject = Subject(session.implementation, session.device, "INV-80")
    before = session.implementation
    with pytest.raises(ConformanceFailure):
        for case in fewest(function):
            function.function(subject, case.case)
    assert subject.implementation is not before and session.implementation is before
