"""Is a run one measurement? What its own answers say against it, whatever it is compared with."""

from __future__ import annotations

from collections import Counter

from dsv4_conformance.accuracy.records import AccuracyRun


def other_models(run: AccuracyRun) -> str:
    """A clause if replies name another model than the run is about, empty if not."""
    usable = [answer for answer in run.answers if answer.status != "error"]
    names = Counter(answer.served for answer in usable)
    wanted = run.header.fingerprint.get("model", "")
    if set(names) <= {""} or set(names) == {wanted}:
        return ""
    told = ", ".join(f"{name or 'none'!r} in {count:,}" for name, count in names.most_common(4))
    first = next(answer for answer in usable if answer.served != wanted)
    return (
        f"served: the run is of the model {wanted!r} and the replies name {told} of {len(usable):,}, another one at "
        f"{first.item} of pass {first.repeat + 1} first; more than one server answers at this address"
    )
