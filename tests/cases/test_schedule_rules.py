"""What a schedule may do: each broken rule is refused with one sentence that names the step and the remedy."""

import pytest

from dsv4_conformance.cases.schedule_rules import Held, check_schedule
from dsv4_conformance.errors import BadInput


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("", "has no tokens; begin with a prefill such as p0:5."),
        ("x i", "has no tokens"),
        ("p0:5 d1", "step 'd1' of a schedule takes sequence 1, which holds no tokens; prefill it before."),
        ("p0:5 r0 d0", "step 'd0' of a schedule takes sequence 0, which holds no tokens"),
        ("v0:2", "step 'v0:2' of a schedule takes sequence 0, which holds no tokens"),
        ("k0:1 p0:2", "step 'k0:1' of a schedule takes sequence 0"),
        ("p0:5 r1", "step 'r1' of a schedule takes sequence 1"),
        ("p0:1+0:2", "step 'p0:1+0:2' of a schedule names a sequence twice; join its tokens into one part."),
        ("p0:0", "step 'p0:0' of a schedule gives sequence 0 no tokens"),
        ("p0:5 v0:9", "step 'v0:9' of a schedule verifies 9 drafts; at most 8 can be taken back."),
        ("p0:5 k0:6", "keeps 6 of the 5 tokens of sequence 0; keep 1 to 5"),
        ("p0:5 k0:0", "keeps 0 of the 5 tokens of sequence 0; keep 1 to 5"),
        ("p0:20 k0:11", "keeps 11 of the 20 tokens of sequence 0; keep 12 to 20"),
        ("p0:20 k0:13 p0:2 k0:11", "keeps 11 of the 15 tokens of sequence 0; keep 12 to 15"),
        ("p0:257 f0>1:256 k0:255", "keeps 255 of the 257 tokens of sequence 0; keep 256 to 257"),
        ("p0:257 f0>1:256 p1:3 k1:255", "keeps 255 of the 259 tokens of sequence 1; keep 256 to 259"),
        ("p0:255 f0>1:256", "shares 256 of the 255 tokens of sequence 0; share a multiple of 256 that it holds."),
        ("p0:300 f0>1:255", "shares 255 of the 300 tokens"),
        ("p0:300 f0>1:0", "shares 0 of the 300 tokens"),
        ("p0:300+1:1 f0>1:256", "starts sequence 1, which is alive; release it before."),
    ],
)
def test_a_schedule_that_cannot_be_run_is_refused(schedule: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_schedule(schedule)
    assert said in str(refused.value) and str(refused.value).count(".") <= 2 and "\n" not in str(refused.value)


# Kills: rules that refuse what is allowed, at their edges.
@pytest.mark.parametrize(
    "schedule",
    [
        "p0:1",
        "p0:20 k0:12",
        "p0:5 v0:8 k0:5 d0",
        "p0:3 k0:1",
        "p0:512 f0>1:256 f0>2:512 k0:512 k1:256 r0 f1>0:256 k0:256",
        "p0:300 f0>1:256 r0 p0:5 k0:1",
        "p0:4 k0:4",
        "p0:1 x i x",
    ],
)
def test_the_edges_are_allowed(schedule: str) -> None:
    check_schedule(schedule)


# Kills: a lookback that the adapter declares and nobody keeps.
def test_the_lookback_is_the_adapter_s() -> None:
    check_schedule("p0:9 v0:3 k0:9", lookback=3)
    with pytest.raises(BadInput, match="at most 3 can be taken back"):
        check_schedule("p0:9 v0:4", lookback=3)
    with pytest.raises(BadInput, match="keep 6 to 9"):
        check_schedule("p0:9 k0:5", lookback=3)


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("p0:300 f0>1:256", "means nothing to a Compressor"),
        ("p0:3 i", "means nothing"),
        ("p0:3~1", "~"),
        ("p0:3 x", "owns|own"),
    ],
)
def test_a_compressor_takes_less(schedule: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        check_schedule(schedule, "Compressor")
    check_schedule("x p0:3 r0 x p0:9 v0:2 k0:9 d0", "Compressor")


# Kills: a step that is refused half way and has changed what is held.
def test_a_refused_step_changes_nothing() -> None:
    from dsv4_conformance.cases.schedule import steps

    held = Held()
    held.take(steps("p0:5")[0])
    with pytest.raises(BadInput):
        held.take(steps("d0+1")[0])
    assert held.lengths == {0: 5}
