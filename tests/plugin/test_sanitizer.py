"""Findings of compute-sanitizer reach the case that caused them. A script stands in for the tool."""

import stat
import sys
from pathlib import Path

import pytest

from dsv4_conformance.plugin import sanitizer
from dsv4_conformance.plugin.outcome import Outcome
from dsv4_conformance.status import Status
from tests.plugin.conftest import Project
from tests.plugin.test_leases import GPUS

WRITE = """========= Invalid __global__ write of size 4 bytes
=========     at store(float *, int)+0x60 in store.cu:12
=========     by thread (0,0,0) in block (3,0,0)
=========     Address 0x7f6510c00001 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: [0x2fe1b0] in libcuda.so.1
=========
"""
RACE = """========= Error: Race reported between Write access at pool(float *)+0x1a0 in pool.cu:40
=========     and Read access at pool(float *)+0x1f0 in pool.cu:44 [16 hazards]
=========
"""
LOG = f"""========= COMPUTE-SANITIZER
{WRITE}{RACE}========= Warning: Race reported between Read access at a()+0x10
========= Target application returned an error
========= ERROR SUMMARY: 2 errors
"""


def test_findings_are_told_from_the_rest() -> None:
    write, race = sanitizer.findings("from the program itself\n" + LOG)
    assert write.sentence == "Invalid __global__ write of size 4 bytes at store(float *, int)+0x60 in store.cu:12"
    assert write.text.count("\n") == 5
    assert race.what.startswith("Error: Race reported between Write access at pool(float *)")
    assert sanitizer.findings("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == []


def test_a_finding_fails_what_passed_and_explains_what_failed() -> None:
    found = sanitizer.findings(WRITE * 5)
    failed = sanitizer.charge(Outcome(Status.PASS), "memcheck", found)
    assert failed.status is Status.FAIL
    assert failed.reason == f"memcheck: {found[0].sentence}, and 2 more."
    crashed = sanitizer.charge(Outcome(Status.CRASH, "It died."), "memcheck", found[:1])
    assert crashed.status is Status.CRASH and crashed.reason == f"It died. memcheck: {found[0].sentence}."
    assert sanitizer.charge(Outcome(Status.PASS), "memcheck", []) == Outcome(Status.PASS)


def test_findings_of_no_case_and_a_silent_tool_are_problems(tmp_path: Path) -> None:
    assert "has left no log" in sanitizer.problems("memcheck", tmp_path, 0)[0]
    (tmp_path / "1.log").write_text(LOG)
    assert sanitizer.problems("memcheck", tmp_path, 2) == []
    assert "1 finding(s) of memcheck could be charged to no case" in sanitizer.problems("memcheck", tmp_path, 1)[0]


# Like the real one it writes all that its processes do into one log, whatever they start.
TOOL = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
log = words[words.index("--log-file") + 1]
assert words[words.index("--tool") + 1] == "memcheck" and "all" == words[words.index("--target-processes") + 1]
assert words[words.index("--destroy-on-device-error") + 1] == "kernel"
program = words.index({python!r})
if not os.environ.get("SILENT"):
    open(log, "w").write("========= COMPUTE-SANITIZER\\n")
watched = os.environ.get("FAKE_LOG") or log
sys.exit(subprocess.run(words[program:], env={{**os.environ, "FAKE_LOG": watched}}).returncode)
"""

ADAPTER = f'''
import os, threading, time
from adapters import Good

FINDING = {WRITE!r}


def find():
    with open(os.environ["FAKE_LOG"], "a") as file:
        file.write(FINDING)


class Stray(Good):
    """Right, but its kernels write where they should not in row 2: the tool says so a little later."""

    devices = ("cuda",)

    def second(self, row):
        threading.Timer(0.05, find).start()
        return row


class StrayAndDead(Stray):
    def second(self, row):
        find()
        os._exit(5)


class Early(Stray):
    """Something goes wrong while it is made."""

    def __init__(self, device):
        super().__init__(device)
        find()

    def second(self, row):
        return row
'''


@pytest.fixture
def sanitized(project: Project) -> Project:
    project.write("conftest.py", (project.folder / "conftest.py").read_text() + GPUS)
    project.write("stray.py", ADAPTER)
    tool = project.folder / "compute-sanitizer"
    tool.write_text(TOOL.format(python=sys.executable))
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return project


def variables(project: Project) -> dict[str, str]:
    return {
        "DSV4_COMPUTE_SANITIZER": str(project.folder / "compute-sanitizer"),
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "DSV4_LEASE_DIR": str(project.folder / "leases"),
    }


@pytest.mark.parametrize("workers", ["0", "2"])
def test_findings_fail_their_own_cases(sanitized: Project, workers: str) -> None:
    words = ("-n", workers, "--dsv4-sanitizer", "memcheck", "--dsv4-impl", "stray:Stray")
    ran = sanitized.run(*words, impl=None, **variables(sanitized))
    assert ran.code == 1, ran.out + ran.err
    passed, failed = Status.PASS, Status.FAIL
    assert ran.statuses == {"INV-01": [passed, failed, passed], "INV-02": [passed, failed], "INV-03": [passed, failed]}
    wrong = next(result for result in ran.journal.results if result.status is failed)
    assert wrong.reason.startswith("memcheck: Invalid __global__ write of size 4 bytes at store(float *, int)+0x60")
    assert wrong.record["sanitizer"]["count"] == 1  # type: ignore[index,call-overload]
    assert ran.journal.footer is not None and ran.journal.footer.problems == []


@pytest.mark.parametrize("workers", ["0", "1"])
def test_findings_of_a_process_that_died_are_told(sanitized: Project, workers: str) -> None:
    words = ("-n", workers, "--dsv4-sanitizer", "memcheck", "--dsv4-impl", "stray:StrayAndDead")
    ran = sanitized.run(*words, impl=None, **variables(sanitized))
    crashed = [result for result in ran.journal.results if result.status is Status.CRASH]
    assert len(crashed) == 3 and all("exited with code 5" in result.reason for result in crashed)
    assert all("memcheck: Invalid __global__ write" in result.reason for result in crashed)
    assert ran.journal.footer is not None and ran.journal.footer.problems == []


def test_first_case_pays_for_what_the_adapter_does_when_it_is_made(sanitized: Project) -> None:
    words = ("--dsv4-sanitizer", "memcheck", "--dsv4-impl", "stray:Early")
    ran = sanitized.run(*words, impl=None, **variables(sanitized))
    assert [str(result.status) for result in ran.journal.results] == ["FAIL"] + ["PASS"] * 6


def test_tool_that_did_not_watch_is_no_green_run(sanitized: Project) -> None:
    words = ("--dsv4-sanitizer", "memcheck", "--dsv4-impl", "stray:Stray", "-k", "n1")
    ran = sanitized.run(*words, impl=None, **variables(sanitized), SILENT="1")
    assert ran.code == 1 and "has left no log" in ran.out


def test_what_cannot_be_done_is_one_sentence(sanitized: Project) -> None:
    words = ("--dsv4-sanitizer", "memcheck", "--dsv4-impl", "stray:Stray")
    ran = sanitized.run(*words, impl=None, **{**variables(sanitized), "DSV4_COMPUTE_SANITIZER": "nosuch"})
    assert ran.code == 2 and "There is no nosuch; it comes with the CUDA toolkit" in ran.err
    ran = sanitized.run("--dsv4-sanitizer", "memcheck", **variables(sanitized))
    assert ran.code == 2 and "this run is on the CPU" in ran.err
    ran = sanitized.run("--dsv4-sanitizer", "valgrind")
    assert ran.code == 2 and "compute-sanitizer has no tool 'valgrind'" in ran.err
