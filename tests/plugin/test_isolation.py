"""Whatever a case does to its process, that case alone pays for it, once, in the journal and in JUnit."""

import time
import xml.etree.ElementTree as ET

import pytest

from dsv4_conformance.status import Status
from tests.plugin.conftest import Project
from tests.plugin.process_faults import FAULTS

ADAPTERS = """
from dsv4_conformance.implementations.api import FormatConvention, Identity, Implementation
from tests.plugin.process_faults import FAULTS

ACTS = {2 * n + 2: fault.act for n, fault in enumerate(FAULTS.values())}


class Faulty(Implementation):
    '''Rows 2, 4, ... each do one of the faults; the others are right.'''

    identity = Identity(name="faulty", version="1", homepage="https://example.com")
    devices = ("cpu",)
    surfaces = {"KVPageFormat": FormatConvention()}
    pending = ""

    def pack(self, tokens, slots, pages):
        pass

    def unpack(self, row, slots):
        if row in ACTS:
            ACTS[row]()
        return row


class DeadLater(Faulty):
    '''Right in every row; after row 2 the context is dead, and after row 4 an error is pending.'''

    def unpack(self, row, slots):
        self.row = row
        return row

    def probe(self):
        row, dead = self.row, self.row == 2
        self.row = row if dead else 0
        if dead:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if row == 4:
            raise RuntimeError("CUDA error: invalid configuration argument")


class WrongAndDead(DeadLater):
    def unpack(self, row, slots):
        self.row = row
        return row + 1 if row == 2 else row


class Forks(Faulty):
    '''In rows 2 and 4 a copy of the process goes on beside it; in row 4 it finds something else.'''

    def unpack(self, row, slots):
        import os, time
        if row in (2, 4):
            if os.fork() == 0:
                return row + row // 4
            time.sleep(0.5)
        return row


class Flaky(Faulty):
    '''Wrong in row 2, the first time.'''

    tried = 0

    def unpack(self, row, slots):
        Flaky.tried += row == 2
        return row + (row == 2 and Flaky.tried == 1)


class Unmakeable(Faulty):
    def __init__(self, device):
        FAULTS["segfault"].act()


class Quits(Faulty):
    '''Dies between two cases, when nobody is looking.'''

    def unpack(self, row, slots):
        if row == 2:
            import os
            from dsv4_conformance.plugin.results_folder import StartLog
            StartLog.starting = lambda *words: os._exit(9)
        return row
"""

PROFILE = """
PROFILES["faults"] = profile("faults", count={count}, only=["INV-01"])
"""

# Longer than one timeout for each of the four hangs, and the start of as many processes as there are faults.
BUDGET_S = 100


def made(project: Project, count: int) -> Project:
    project.write("adapters.py", ADAPTERS)
    project.write("conftest.py", (project.folder / "conftest.py").read_text() + PROFILE.format(count=count))
    return project


def junit(project: Project) -> list[tuple[str, str]]:
    """(case id, status) of every entry in junit.xml."""
    root = ET.parse(project.folder / "junit.xml").getroot()
    found = [{p.get("name"): p.get("value") for p in case.iter("property")} for case in root.iter("testcase")]
    suite = root.find("testsuite")
    assert suite is not None and suite.get("tests") == str(len(found))
    return [(str(p["dsv4_case_id"]), str(p["dsv4_status"])) for p in found]


WORKERS = pytest.mark.parametrize("workers", ["0", "2"])


@WORKERS
def test_each_fault_is_charged_to_its_own_case(project: Project, workers: str) -> None:
    made(project, 2 * len(FAULTS) + 1)
    begun = time.monotonic()
    options = ["--dsv4-profile", "faults", "--dsv4-timeout", "2", "--junitxml", "junit.xml"]
    ran = project.run("-n", workers, *options, impl="Faulty")
    assert time.monotonic() - begun < BUDGET_S
    assert ran.code == 1, ran.out + ran.err
    results = {result.nodeid: result for result in ran.journal.results}
    told = [results[entry.nodeid] for entry in ran.journal.header.plan]
    assert len(told) == 2 * len(FAULTS) + 1
    for number, fault in enumerate(FAULTS.values()):
        result = told[2 * number + 1]
        assert (fault.act.__name__, result.status) == (fault.act.__name__, fault.status), result.reason
        assert fault.reason in result.reason
    assert {str(result.status) for result in told[::2]} == {"PASS"}
    lines = (ran.results / "journal.jsonl").read_text().splitlines()
    assert len(lines) == 1 + len(told) + 1  # nothing is told twice
    assert sorted(junit(project)) == sorted((r.case_id, str(r.status)) for r in told)


# Kills: a case that a copy of its process has told of as well, whichever of them comes last.
@WORKERS
def test_copies_that_a_case_leaves_tell_nothing(project: Project, workers: str) -> None:
    made(project, 5)
    ran = project.run("-n", workers, "--dsv4-profile", "faults", "--junitxml", "junit.xml", impl="Forks")
    assert ran.code == 0, ran.out + ran.err
    assert ran.statuses["INV-01"] == [Status.PASS] * 5 and len(junit(project)) == 5
    assert len((ran.results / "journal.jsonl").read_text().splitlines()) == 1 + 5 + 1


REPEATED = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    for _ in range(1 + ("n2" in item.name)):
        runtestprotocol(item, nextitem=nextitem)
    return True
"""


# Kills: a failure that a plugin repeats until it passes.
def test_the_first_result_of_a_repeated_case_counts(project: Project) -> None:
    made(project, 3)
    project.write("conftest.py", (project.folder / "conftest.py").read_text() + REPEATED)
    ran = project.run("-n", "1", "--dsv4-profile", "faults", impl="Flaky")
    assert ran.code == 1, ran.out + ran.err
    assert ran.statuses["INV-01"] == [Status.PASS, Status.FAIL, Status.PASS]
    assert ran.journal.footer is not None and "ran more than once" in ran.journal.footer.problems[0]


TORCH = """
import torch
from adapters import Faulty


class Converts(Faulty):
    def unpack(self, row, slots):
        assert torch.get_default_dtype() is torch.float32 and torch.get_default_device().type == "cpu"
        if row == 2:
            torch.set_default_dtype(torch.float64)
        if row == 4:
            torch.set_default_device("meta")
        return row
"""


# Kills: a default that one case leaves behind and every later one fails by.
@WORKERS
def test_what_a_case_does_to_torch_is_its_own_failure(project: Project, workers: str) -> None:
    made(project, 5)
    project.write("converts.py", TORCH)
    words = ("-n", workers, "--dsv4-profile", "faults", "--dsv4-impl", "converts:Converts")
    ran = project.run(*words, impl=None)
    passed, failed = Status.PASS, Status.FAIL
    assert ran.statuses["INV-01"] == [passed, failed, passed, failed, passed], ran.out
    told = " ".join(result.reason for result in ran.journal.results if result.status is failed)
    assert "default dtype at torch.float64" in told and "default device at meta" in told


@WORKERS
def test_context_that_is_dead_after_a_case(project: Project, workers: str) -> None:
    made(project, 5)
    options = ["--dsv4-profile", "faults", "--junitxml", "junit.xml"]
    ran = project.run("-n", workers, *options, impl="DeadLater")
    assert ran.statuses["INV-01"] == ["PASS", "CRASH", "PASS", "FAIL", "PASS"], ran.out
    reasons = {str(result.status): result.reason for result in ran.journal.results}
    assert reasons["CRASH"].startswith("The CUDA context was dead after this case: RuntimeError: CUDA error: an ill")
    assert reasons["FAIL"].startswith("The case left a CUDA error behind, unchecked: RuntimeError: CUDA error: inv")
    assert sorted(s for _, s in junit(project)) == ["CRASH", "FAIL", "PASS", "PASS", "PASS"]


@WORKERS
def test_wrong_case_that_kills_the_context_as_well(project: Project, workers: str) -> None:
    made(project, 3)
    ran = project.run("-n", workers, "--dsv4-profile", "faults", "--junitxml", "junit.xml", impl="WrongAndDead")
    assert ran.statuses["INV-01"] == ["PASS", "CRASH", "PASS"], ran.out
    crash = next(result for result in ran.journal.results if result.status == "CRASH")
    assert "Before that: row 2 came back as 3." in crash.reason
    assert sorted(s for _, s in junit(project)) == ["CRASH", "PASS", "PASS"]


@pytest.mark.parametrize("workers", ["0", "1"])
def test_process_that_dies_between_two_cases_takes_nothing_along(project: Project, workers: str) -> None:
    """The next case had not begun: it runs elsewhere. The last one had ended, and its pass is taken back."""
    made(project, 4)
    ran = project.run("-n", workers, "--dsv4-profile", "faults", "--junitxml", "junit.xml", impl="Quits")
    assert ran.statuses["INV-01"] == ["PASS", "CRASH", "PASS", "PASS"], ran.out
    crash = ran.journal.results[[r.status for r in ran.journal.results].index(Status.CRASH)]
    assert crash.reason == "The worker process exited with code 9 right after this case."
    assert len(junit(project)) == 4


@WORKERS
def test_adapter_that_cannot_be_made_ends_the_run_soon(project: Project, workers: str) -> None:
    made(project, 40)
    ran = project.run("-n", workers, "--dsv4-profile", "faults", impl="Unmakeable")
    assert ran.code == 1
    statuses = ran.statuses["INV-01"]
    assert 2 <= statuses.count(Status.CRASH) <= 4 and set(statuses) == {"CRASH", "NOT_RUN"}
    assert "Making the adapter ended the process, twice" in ran.out
