"""Layers that are wrong at an edge are rejected; one that gives old window rows back, and says so, is not."""

import pytest
import torch

from dsv4_conformance.errors import ConformanceFailure, NotApplicable
from dsv4_conformance.runner.session import Session
from dsv4_conformance.runner.subject import Subject
from tests.miniatures import layer_edges
from tests.suites.test_wrong_layer import fewest, suite

WRONG = [
    ("WeightsRoundedInPlace", "INV-42", "layer_schedules"),
    ("AnglesShiftedInPlace", "INV-42", "layer_schedules"),
    ("FullGraphIsWrong", "INV-92", "layer_decodes"),
    ("CaptureWritesLivePages", "INV-92", "layer_decodes"),
    ("ServedInOneFlavour", "INV-48", "layer_exact"),
    ("ServedInOneFlavour", "INV-50", "layer_ranks"),
    ("ServedInOneFlavour", "INV-30", "layer_prefixes"),
    ("ExactRowsInsteadOfPages", "INV-42", "layer_schedules"),
]


def outcomes(name: str, requirement: str, family: str) -> tuple[list[str], int]:
    """Sentences of the cases that reject an adapter, and how many cases were checked."""
    torch.manual_seed(0)
    session, checked = Session(getattr(layer_edges, name), "cpu"), 0
    for function in suite(requirement, family):
        for case in fewest(function):
            subject = Subject(session.implementation, session.device, requirement)
            try:
                function.function(subject, case.case)
            except NotApplicable:
                continue
            except ConformanceFailure as failure:
                return [str(failure)], checked + 1
            checked += bool(subject.record()["checked"])
    return [], checked


# Kills: an oracle that reads the weights or angles that the adapter changed; graphs that are never full, or captured
# only before there are sequences; cases that an adapter of one flavour skips; stored values that no page can hold.
@pytest.mark.parametrize(("name", "requirement", "family"), WRONG)
def test_a_layer_that_is_wrong_at_an_edge_is_rejected(name: str, requirement: str, family: str) -> None:
    failures, _ = outcomes(name, requirement, family)
    assert failures


# Kills: window rows asked for after an engine gave them back.
@pytest.mark.parametrize("family", ["layer_schedules", "layer_models"])
def test_a_frugal_layer_is_right(family: str) -> None:
    failures, checked = outcomes("GivesOldWindowRowsBack", "INV-42", family)
    assert not failures and checked
