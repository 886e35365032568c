"""Schedules as text: what is read, what is refused, what sequences hold at most."""

import re

import pytest

from dsv4_conformance.cases.schedule import Step, longest, sequences, steps
from dsv4_conformance.errors import BadInput

EVERY = "p0:70+1:5~3 d0+12~1 v0:4 k0:72+1:3 f0>2:256 r1 x i d3"


# Kills: a kind, a part, padding or a target that is read as another.
def test_every_kind_of_step_is_read() -> None:
    assert steps(EVERY) == (
        Step("prefill", ((0, 70), (1, 5)), 3),
        Step("decode", ((0, 1), (12, 1)), 1),
        Step("verify", ((0, 4),)),
        Step("keep", ((0, 72), (1, 3))),
        Step("fork", ((0, 256),), target=2),
        Step("release", ((1, 0),)),
        Step("poison"),
        Step("idle"),
        Step("decode", ((3, 1),)),
    )
    assert steps("") == () and steps("  x \n x ") == (Step("poison"), Step("poison"))


# Kills: text that steps do not read back, counts that decode and release do not have.
def test_a_step_is_written_as_it_is_read() -> None:
    assert " ".join(step.text() for step in steps(EVERY)) == EVERY


WRONG = (
    "p0 d0:1 v0 k0 r0:3 q0:1 p0: p:3 p0:-3 p0:3~ k0:3~1 r0~1 x1 i~1 f0>1 f0:1>2 p0:3+ p0:3,1:2 P0:3 p0:3+1 0:3 "
    "f0>1:2~3 f0>1:2+3"
)


# Kills: words that are read in part, with parts left out or made up; a sentence that does not say which.
def test_a_word_that_is_no_step_is_named() -> None:
    for word in WRONG.split():
        with pytest.raises(BadInput, match=re.escape(f"step {word!r} of a schedule cannot be read; write it as in")):
            steps(f"p0:1 {word} d0")


# Kills: lengths that keep, fork and release do not change, the length at the end taken for the longest.
@pytest.mark.parametrize(
    ("schedule", "most"),
    [
        ("", 0),
        ("x i", 0),
        ("p0:3 d0 v0:4 k0:5 d0", 8),
        ("p0:300 f0>1:256 p1:10", 300),
        ("p0:300 f0>1:256 p1:50", 306),
        ("p0:40 r0 p0:9", 40),
        ("p0:40 k0:38 d0 d0 d0", 41),
        ("p0:5+1:6 p1:7", 13),
    ],
)
def test_longest_is_the_most_that_a_sequence_ever_holds(schedule: str, most: int) -> None:
    assert longest(schedule) == most


# Kills: the highest number for a count, targets of forks left out, a sequence counted at each of its steps.
@pytest.mark.parametrize(
    ("schedule", "count"), [("", 0), ("i x", 0), ("p3:1 d3", 1), ("p0:256 f0>5:256", 2), ("p0:1+2:1 r2 p2:3", 2)]
)
def test_sequences_are_counted_by_number(schedule: str, count: int) -> None:
    assert sequences(schedule) == count
