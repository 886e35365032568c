"""Layers that are wrong only the second time, on another rank or in a crowd are rejected; the built-in one is not."""

import pytest
import torch

from dsv4_conformance.errors import ConformanceFailure
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.mla.workspace import SparsePrefillWorkspace
from dsv4_conformance.runner.session import Session
from dsv4_conformance.runner.subject import Subject
from tests.miniatures import layer_turns
from tests.suites.test_wrong_layer import fewest, rejection_of, suite

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
    ("OlderPrefillGraphsLoseTheirInput", "INV-92", "layer_prefill_replays"),
    ("SinksRefreshedOnOddRanks", "INV-54", "layer_ranks"),
    ("LaterLayersAttendToTheOldBuffer", "INV-80", "layer_prefills"),
]
FAMILIES = sorted({(requirement, family) for _, requirement, family in WRONG})


# Kills: ranks, graphs and updates that are each tested, but not together; steps of a few sequences of unlike lengths.
@pytest.mark.parametrize(("name", "requirement", "family"), WRONG)
def test_a_layer_that_is_wrong_the_second_time_is_rejected(name: str, requirement: str, family: str) -> None:
    assert rejection_of(getattr(layer_turns, name), requirement, family)


@pytest.mark.parametrize(("requirement", "family"), FAMILIES)
def test_the_built_in_layer_is_not(requirement: str, family: str) -> None:
    assert rejection_of(Builtin, requirement, family) is None


# Kills: growth that an earlier, larger case has done already, so that nothing grows in this one.
def test_a_workspace_that_has_grown_before_is_none() -> None:
    torch.manual_seed(0)
    session = Session(layer_turns.LaterLayersAttendToTheOldBuffer, "cpu")
    grown = {}
    for precision, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        grown[precision] = SparsePrefillWorkspace(session.device, dtype)
        grown[precision].get(10_000)
    session.implementation.__dict__["_workspaces"] = grown
    (function,) = suite("INV-80", "layer_prefills")
    with pytest.raises(ConformanceFailure):
        for case in fewest(function):
            function.function(Subject(session.implementation, session.device, "INV-80"), case.case)
    assert session.implementation.__dict__["_workspaces"] is grown
