"""Suites that lead a schedule of their own survive schedules that anybody may draw."""

import pytest
import torch

from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.errors import NotApplicable
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.runner.subject import Subject
from tests.suites.runs import functions

LATER = next(f for f in functions() if f.name == "test_no_row_depends_on_a_later_token").function


@pytest.mark.parametrize("schedule", ["p0:129 p1:4 r0 p0:7", "p0:5 r0 p1:20 d1"])
def test_sequences_may_end_or_begin_again_shorter(schedule: str) -> None:
    subject = Subject(Builtin("cpu"), torch.device("cpu"), "INV-41")
    LATER(subject, LayerCase("AttentionLayer", 0, schedule))
    assert subject.record()["checked"]


def test_a_schedule_that_ends_with_nobody_does_not_apply() -> None:
    with pytest.raises(NotApplicable, match="is there at its end"):
        LATER(Subject(Builtin("cpu"), torch.device("cpu"), "INV-41"), LayerCase("AttentionLayer", 0, "p0:5 r0"))
