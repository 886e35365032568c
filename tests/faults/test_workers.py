"""Trials in processes: what a crash, a hang and a survivor come to, beside a fault that is killed as it should be."""

from collections.abc import Iterator

import pytest

from dsv4_conformance.faults.catalogue import all_faults
from dsv4_conformance.faults.fault import registered
from dsv4_conformance.faults.outcome import Outcome
from dsv4_conformance.faults.workers import Task, run

MODULE = "tests.faults.misbehaving"
LIMIT_S = 5.0
"""For a case; those that end take milliseconds."""


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Outcome]]:
    """All of them, tried by two processes of which several are lost on the way."""
    all_faults()
    before = set(registered())
    import tests.faults.misbehaving  # noqa: F401

    all_faults.cache_clear()
    added = set(registered()) - before
    try:
        names = [*sorted(added), "S29"]
        tasks = [Task(name, "kill", False, ("SlotMapping",)) for name in names]
        found = run(tasks, 2, LIMIT_S, [MODULE])
        yield {outcome.id: outcome for outcome in found}
    finally:
        for name in added:
            del registered()[name]
        all_faults.cache_clear()


# Kills: a crash that ends the run, that is charged to another fault or counts as a kill.
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("S44", "it was caught by a crash only: signal 11 ended the process in case INV-"),
        ("S19", "it was caught by a crash only: a case took more than 5 s in case INV-"),
        ("S67", "it survives"),
        ("S65", "INV-100, which it must break, holds; INV-65 failed"),
        ("S25", "INV-65 was broken by an exception only"),
    ],
)
def test_what_is_no_kill_says_so(outcomes: dict[str, Outcome], name: str, said: str) -> None:
    assert outcomes[name].problem.startswith(said)


# Kills: a fault that is lost because the process before it died, kills without their case and command.
def test_a_kill_names_its_case(outcomes: dict[str, Outcome]) -> None:
    killed = outcomes["S29"]
    assert killed.problem == "" and killed.first is not None
    assert killed.first.folder == "kv_cache" and killed.cases > 0
    assert killed.reproducer == f"dsv4-conformance repro {killed.first.case_id} --impl fault:S29"
