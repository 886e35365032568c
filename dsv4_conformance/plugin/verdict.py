"""From the statuses of all planned cases to the verdict: status per requirement, exit code, one sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from dsv4_conformance.errors import ExitCode
from dsv4_conformance.status import CHECKED, QUALIFYING, Status

SEVERITY = (
    Status.CRASH,
    Status.TIMEOUT,
    Status.OUT_OF_MEMORY,
    Status.FAIL,
    Status.STALE_WAIVER,
    Status.UNSUPPORTED_REQUIRED,
    Status.HARNESS_ERROR,
    Status.INVALID,
    Status.INCONCLUSIVE,
    Status.NOT_RUN,
    Status.QUARANTINED,
    Status.WARN,
    Status.WAIVED,
    Status.PASS,
    Status.NOT_APPLICABLE,
)
"""Worst first: a requirement has the worst status of its cases."""


def by_requirement(statuses: Iterable[tuple[str, Status]]) -> dict[str, Status]:
    """The status of each requirement from (requirement, status) pairs, sorted by requirement."""
    seen: dict[str, list[Status]] = defaultdict(list)
    for requirement, status in statuses:
        seen[requirement].append(status)
    return {requirement: min(seen[requirement], key=SEVERITY.index) for requirement in sorted(seen, key=order)}


def order(requirement: str) -> tuple[str, int]:
    """Sort key that puts INV-100 after INV-65."""
    area, _, number = requirement.rpartition("-")
    return (area, int(number)) if number.isdecimal() else (requirement, 0)


def exit_code(statuses: Collection[Status], *, harness_failed: bool = False) -> ExitCode:
    """The exit code of a run whose planned cases ended so; ``harness_failed``: something outside any case went wrong.

    1 before 3: what an implementation did wrong stays true when the harness stumbled as well. 3 before a mere
    gap, and before 7 and 6: an accuracy comparison that is invalid, or says nothing. A gap beside those is 1.
    """
    bad = set(statuses) - QUALIFYING
    undecided = bad & {Status.INVALID, Status.INCONCLUSIVE}
    if bad - {Status.NOT_RUN, Status.HARNESS_ERROR, *undecided}:
        return ExitCode.FAILED
    if harness_failed or Status.HARNESS_ERROR in bad:
        return ExitCode.HARNESS_ERROR
    if undecided and bad == undecided:
        return ExitCode.INVALID_COMPARISON if Status.INVALID in undecided else ExitCode.INCONCLUSIVE
    if bad:
        return ExitCode.FAILED
    if not CHECKED & set(statuses):
        return ExitCode.NOTHING_CHECKED
    return ExitCode.QUALIFIES


def sentence(code: int, profile: str, counts: Mapping[Status, int], note: str = "") -> str:
    """The verdict in one line.

    ``note``: after bad input the sentence that ended the run; else what the counts do not tell. A good run with a note
    is no qualification.
    """
    checked = sum(n for status, n in counts.items() if status in CHECKED)
    others = [f"{n} {status}" for status, n in counts.items() if status is not Status.PASS]
    told = ", ".join([f"{checked} checked", *others]) + (f"; {note}" if note else "")
    if code == ExitCode.BAD_INPUT:
        return f"STOPPED: {note}"
    if code == ExitCode.NOTHING_CHECKED:
        return f"NOTHING WAS CHECKED in profile {profile}: {told}"
    if code == ExitCode.INCONCLUSIVE:
        return f"INCONCLUSIVE, which is no qualification, in profile {profile}: {told}"
    if code == ExitCode.INVALID_COMPARISON:
        return f"INVALID COMPARISON of accuracy, no qualification, in profile {profile}: {told}"
    if code != ExitCode.QUALIFIES:
        return f"DOES NOT QUALIFY in profile {profile}: {told}"
    return f"PASSED IN PART, which is no qualification: {told}" if note else f"QUALIFIES in profile {profile}: {told}"
