"""The same bits over many launches of other shapes in between (INV-102)."""

from dsv4_conformance.cases.case import AttentionCase
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import ATTENTION, requirement

TURNS = {"cpu": 2, "cuda": 25}


@requirement("INV-102", on=ATTENTION, cases="launches")
def test_many_launches_of_other_shapes_change_no_bit(subject: Subject, case: AttentionCase) -> None:
    """INV-102 (SHOULD): three calls of different rows, heads and widths take turns; each gives its first bits again."""
    others = [
        case,
        case.with_(b=1, s_q=1, seed=case.seed + 1),
        case.with_(h_q=max(case.h_q // 2, 1), seed=case.seed + 2),
    ]
    calls = [subject.build(other) for other in others]
    first = [subject.judge(call) for call in calls]
    for turn in range(TURNS[subject.device.type]):
        for place in range(len(calls)):
            at = (place + turn) % len(calls)
            subject.same_bits(first[at], subject.run(calls[at]), f"in turn {turn + 2} of three calls that take turns")
