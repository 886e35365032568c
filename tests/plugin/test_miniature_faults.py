"""The same with the real runner and suites: adapters that are right, except in cases where they ruin something."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4_conformance.plugin.journal import read_journal
from tests.miniatures.crashing import CPU, fault_of, wrongly_charged
from tests.plugin.conftest import ROOT

LIMIT_S = 8
CHOICES = {
    "0": "same_call_twice or masked_entries",
    "2": "row_without_keys",
}
"""Workers -> suite functions; between them their cases have most of the faults."""


@pytest.mark.parametrize("workers", CHOICES)
def test_every_fault_is_charged_to_its_own_case(tmp_path: Path, workers: str) -> None:
    words = ["run", "--impl", "tests.miniatures.crashing:EveryFault", "-n", workers, "--timeout", str(LIMIT_S)]
    done = subprocess.run(
        [sys.executable, "-m", "dsv4_conformance.cli", *words, "--", "-k", CHOICES[workers]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    journal, junit = tmp_path / "dsv4-results/journal.jsonl", tmp_path / "dsv4-results/junit.xml"
    assert wrongly_charged(journal, junit, CPU) == []
    faults = {fault_of(entry.nodeid, CPU) for entry in read_journal(journal).header.plan} - {None}
    assert len(faults) >= 4
