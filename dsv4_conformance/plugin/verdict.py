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


def exit_code(statuses: Collection[Status]) -> ExitCode:
    """1 before 3: what an implementation did wrong stays true when the harness stumbled over another case as well."""
    harness = Status.HARNESS_ERROR in statuses
    bad = [status for status in statuses if status not in QUALIFYING and status is not Status.HARNESS_ERROR]
    if any(status is not Status.NOT_RUN for status in bad):
        return ExitCode.FAILED
    if harness:
        return ExitCode.HARNESS_ERROR
    if bad:
        return ExitCode.FAILED
    if not any(status in CHECKED for status in statuses):
        return ExitCode.NOTHING_CHECKED
    return ExitCode.QUALIFIES


def sentence(code: int, profile: str, counts: Mapping[Status, int], partial: str = "", bad_input: str = "") -> str:
    """The verdict in one line. ``partial``: what keeps a good run from being a qualification, "" if nothing does;
    ``bad_input``: the sentence that ended the run early."""
    checked = sum(n for status, n in counts.items() if status in CHECKED)
    told = ", ".join(
        [f"{checked} checked", *(f"{n} {status}" for status, n in counts.items() if status is not Status.PASS)]
    )
    if bad_input:
        return f"STOPPED: {bad_input}"
    if code == ExitCode.NOTHING_CHECKED:
        return f"NOTHING WAS CHECKED in profile {profile}: {told}"
    if code != ExitCode.QUALIFIES:
        return f"DOES NOT QUALIFY in profile {profile}: {told}"
    if partial:
        return f"PASSED IN PART, which is no qualification: {told}; {partial}"
    return f"QUALIFIES in profile {profile}: {told}"
