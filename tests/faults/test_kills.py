"""Faults that need no whole layer are killed by the requirement they name; so are some of layers."""

import pytest

from dsv4_conformance.faults.catalogue import all_faults
from dsv4_conformance.faults.fault import Fault
from dsv4_conformance.faults.trial import trial

ELSEWHERE = {"dispatch", "formats", "formulas", "planner", "prefix_reuse"}
"""Areas that tests/faults/test_extents.py runs."""
LAYERS = ("S01", "S04", "S11", "T05", "S27", "O23", "S75", "V46")
QUICK = [
    fault
    for fault in all_faults().values()
    if fault.area not in ELSEWHERE and ("AttentionLayer" not in fault.surfaces or fault.id in LAYERS)
]


# Kills: a check or a case taken out that alone shows a public bug; a model that does nothing.
@pytest.mark.parametrize("fault", QUICK, ids=lambda fault: fault.id)
def test_fault_is_killed_by_its_requirement(fault: Fault) -> None:
    failures = trial(fault.implementation, fault.surfaces, "kill", first=fault.breaks)
    found = next((failure for failure in failures if failure.requirement == fault.breaks), None)
    assert found is not None
    assert found.raised <= (fault.symptom == "raises"), found.reason
