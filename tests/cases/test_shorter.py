"""Shorter schedules: prefills in one, fewer tokens, and still schedules that can be run."""

import pytest

from dsv4_conformance.cases.schedule import BATCHES, steps
from dsv4_conformance.cases.schedule_rules import check_schedule
from dsv4_conformance.cases.shorter import shorter
from tests.cases.test_strategies import drawn


def size(schedule: str) -> tuple[int, int, int]:
    """Steps, shared prefixes and tokens."""
    parsed = steps(schedule)
    tokens = sum(count for step in parsed if step.kind in BATCHES for _, count in step.parts)
    return len(parsed), sum(step.kind == "fork" for step in parsed), tokens


# Kills: merging that loses tokens or rows of nobody, a sequence that is dropped, lengths to keep that stay as they
# were, candidates that cannot be run.
@pytest.mark.parametrize(
    ("schedule", "some"),
    [
        ("p0:1 p0:2+1:3~2 d0", {"p0:3+1:3~2 d0", "p0:1 p0:1+1:3~2 d0", "p0:1 p0:2+1:1~2 d0"}),
        ("p0:9 v0:3 k0:10 d0", {"p0:1 v0:3 k0:2 d0", "p0:8 v0:3 k0:9 d0"}),
        ("p0:9 k0:8 r0 p0:9 k0:7", {"p0:2 k0:1 r0 p0:9 k0:7", "p0:9 k0:8 r0 p0:3 k0:1"}),
        ("p0:256 p0:2 f0>1:256 k0:257", {"p0:258 f0>1:256 k0:257", "p0:256 p0:2 k0:257", "p0:256 p0:2 p1:1 k0:257"}),
        ("p0:3 d0 v0:3 k0:5 x d0", {"p0:3 v0:3 k0:4 x d0", "p0:3 d0 v0:3 x d0", "p0:3 d0 v0:3 k0:5 d0"}),
    ],
)
def test_shorter_schedules(schedule: str, some: set[str]) -> None:
    assert some <= set(shorter(schedule, "AttentionLayer"))


# Kills: a candidate that is longer than what it comes from (the search would not end), or that the rules refuse.
def test_every_candidate_is_shorter_and_can_be_run() -> None:
    seen = 0
    for schedule in drawn("AttentionLayer")[:60]:
        for candidate in shorter(schedule, "AttentionLayer"):
            check_schedule(candidate)
            assert size(candidate) < size(schedule)
            seen += 1
    assert seen > 500


# Kills: steps of a layer offered to a Compressor.
def test_a_compressor_s_candidates_are_its_own() -> None:
    assert "p0:2 x p0:1" in set(shorter("p0:2 r0 x p0:1", "AttentionLayer"))
    assert set(shorter("p0:2 r0 x p0:1", "Compressor")) == {"p0:2 r0 p0:1", "p0:2 r0 x", "p0:1 r0 x p0:1"}
