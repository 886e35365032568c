"""A worker that dies costs its own case, and that case exactly once."""

import xml.etree.ElementTree as ET

import pytest

from dsv4_conformance.status import Status
from tests.plugin.conftest import Project

PASS, CRASH = Status.PASS, Status.CRASH


@pytest.mark.parametrize("distribution", ["load", "worksteal"])
def test_killed_worker_is_one_crash_and_the_rest_is_checked(project: Project, distribution: str) -> None:
    ran = project.run("-n", "2", "--dist", distribution, "--junitxml", "junit.xml", impl="Killed")
    assert ran.code == 1, ran.out + ran.err
    assert ran.statuses == {"INV-01": [PASS, CRASH, PASS], "INV-02": [PASS, CRASH], "INV-03": [PASS, CRASH]}
    crashed = [result for result in ran.journal.results if result.status is CRASH]
    assert all(r.reason == "The worker process died of SIGKILL while it ran this case." for r in crashed)
    suite = ET.parse(project.folder / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("7", "3", "0")
    cases = suite.findall("testcase")
    assert len(cases) == 7
    statuses = [p.get("value") for case in cases for p in case.iter("property") if p.get("name") == "dsv4_status"]
    assert sorted(str(s) for s in statuses) == ["CRASH"] * 3 + ["PASS"] * 4


def test_dead_cuda_context_costs_one_case_and_one_worker(project: Project) -> None:
    ran = project.run("-n", "1", "--junitxml", "junit.xml", impl="Poisoned")
    assert ran.statuses == {"INV-01": [PASS, CRASH, PASS], "INV-02": [PASS, CRASH], "INV-03": [PASS, CRASH]}
    first = next(result for result in ran.journal.results if result.status is CRASH)
    assert first.reason.startswith("The CUDA context died: CUDA error: an illegal memory access was encountered")
    suite = ET.parse(project.folder / "junit.xml").getroot().find("testsuite")
    assert suite is not None and (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("7", "3", "0")


def test_dead_cuda_context_costs_one_case_without_workers_too(project: Project) -> None:
    ran = project.run("--junitxml", "junit.xml", impl="Poisoned")
    assert ran.statuses == {"INV-01": [PASS, CRASH, PASS], "INV-02": [PASS, CRASH], "INV-03": [PASS, CRASH]}
    suite = ET.parse(project.folder / "junit.xml").getroot().find("testsuite")
    assert suite is not None and (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("7", "3", "0")


def test_dead_cuda_context_ends_a_process_that_a_debugger_must_reach(project: Project) -> None:
    project.write("quiet.py", "import pdb\n\nclass Quiet(pdb.Pdb):\n    def interaction(self, *words):\n        pass\n")
    ran = project.run("--pdb", "--pdbcls", "quiet:Quiet", impl="Poisoned")
    statuses = [s for found in ran.statuses.values() for s in found]
    assert statuses == [PASS, CRASH] + [Status.NOT_RUN] * 5


def test_worker_that_dies_in_teardown_takes_the_pass_away(project: Project) -> None:
    project.write(
        "test_suite.py",
        "import os, signal, pytest\nfrom dsv4_conformance.suite import requirement\n"
        "@pytest.fixture\ndef fatal(case):\n    yield\n"
        "    if case.tokens == 2:\n        os.kill(os.getpid(), signal.SIGKILL)\n\n"
        "@requirement('INV-01', on=('KVPageFormat',), cases='rows')\n"
        "def test_it(fatal, subject, case):\n    subject.check(case)\n",
    )
    ran = project.run("-n", "1", "--junitxml", "junit.xml")
    assert ran.statuses["INV-01"] == [PASS, CRASH, PASS]
    assert ran.code == 1
    suite = ET.parse(project.folder / "junit.xml").getroot().find("testsuite")
    assert suite is not None and suite.get("tests") == "3" and len(suite.findall("testcase")) == 3


def test_cases_that_a_lost_run_never_reached_are_gaps(project: Project) -> None:
    ran = project.run("-n", "1", "--max-worker-restart", "0", impl="Killed")
    statuses = [s for found in ran.statuses.values() for s in found]
    assert statuses.count(CRASH) == 1
    assert statuses.count(Status.NOT_RUN) >= 4
    assert ran.code == 1
