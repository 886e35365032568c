"""Faults of addresses, plans, prefixes, dispatch and byte forms: each is killed by the requirement that it names."""

import pytest

from dsv4_conformance.faults import dispatch, formats, formulas, planner, prefix_reuse
from dsv4_conformance.faults.fault import Fault, registered
from tests.suites.runs import first_failure

AREAS = [module.__name__.rpartition(".")[2] for module in (dispatch, formats, formulas, planner, prefix_reuse)]
FAULTS = [fault for fault in registered().values() if fault.area in AREAS]


# Kills: any check of INV-140 to INV-155 taken out.
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_fault_is_killed_by_its_requirement(fault: Fault) -> None:
    said = first_failure(fault.implementation, fault.breaks, "kill")
    assert said is not None
    assert (" raised " in said) == (fault.symptom == "raises"), said


# Kills: a module whose faults are registered nowhere.
def test_every_module_has_faults() -> None:
    assert {fault.area for fault in FAULTS} == set(AREAS)
