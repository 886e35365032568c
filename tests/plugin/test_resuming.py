"""A run goes on where another one ended, whatever ended it, or is refused by the name of what differs."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from dsv4_conformance.plugin.journal import Journal, read_journal
from dsv4_conformance.status import Status
from tests.plugin.conftest import Project, environment

SLOW = """
import time
from adapters import Good


class Slow(Good):
    def unpack(self, row, slots):
        time.sleep(0.02)
        return row + 1 if row % 5 == 2 else row
"""
PROFILE = '\nPROFILES["many"] = profile("many", count=25, only=["INV-01"])\n'
MANY = ("--dsv4-profile", "many", "--dsv4-impl", "slow:Slow")


def many(project: Project) -> Project:
    project.write("slow.py", SLOW)
    project.write("conftest.py", (project.folder / "conftest.py").read_text() + PROFILE)
    return project


def told(journal: Journal) -> list[tuple[str, str, str]]:
    return sorted((r.nodeid, str(r.status), r.reason) for r in journal.results)


def killed(project: Project, workers: str, after_s: float) -> None:
    """Begin a run, and kill the process that writes the journal some time after its header is there."""
    journal = project.folder / "dsv4-results/journal.jsonl"
    journal.unlink(missing_ok=True)
    process = subprocess.Popen(
        project.command("-n", workers, *MANY, impl=None),
        cwd=project.folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not journal.exists():
        assert process.poll() is None
        time.sleep(0.002)
    time.sleep(after_s)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


# Twenty moments in all: kills anything that loses a result which was written, or counts one twice.
@pytest.mark.parametrize(("workers", "seeds"), [("0", range(8)), ("0", range(8, 16)), ("2", range(16, 20))])
def test_run_that_was_killed_at_any_moment_ends_as_one_that_was_not(
    project: Project, workers: str, seeds: range
) -> None:
    many(project)
    whole = project.run("-n", workers, *MANY, impl=None).journal
    assert whole.footer is not None and whole.footer.counts == {Status.PASS: 20, Status.FAIL: 5}
    found = []
    for seed in seeds:
        killed(project, workers, random.Random(seed).uniform(0, 0.7))
        before = read_journal(project.folder / "dsv4-results/journal.jsonl")
        found.append(len(before.results))
        again = project.run("-n", workers, *MANY, "--dsv4-resume", "--junitxml", "junit.xml", impl=None)
        assert again.code == 1, again.out
        assert told(again.journal) == told(whole)
        assert again.journal.footer is not None
        assert again.journal.footer.results_hash == whole.footer.results_hash
        assert again.journal.header.resumed == [before.header.run_id]
        kept = {(r.nodeid, r.duration_s) for r in before.results}
        assert kept <= {(r.nodeid, r.duration_s) for r in again.journal.results}  # what was known was not run again
        assert len(ET.parse(project.folder / "junit.xml").getroot().findall(".//testcase")) == 25
    assert len(set(found)) > 1  # the moments did differ


def cut(project: Project, results: int) -> Path:
    """Take the end of the journal away."""
    path = project.folder / "dsv4-results/journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: 1 + results]) + lines[1 + results][:40])
    return path


def test_resumed_run_can_be_resumed(project: Project) -> None:
    first = project.run(impl="Wrong").journal
    cut(project, 2)
    second = project.run("--dsv4-resume", impl="Wrong").journal
    cut(project, 5)
    third = project.run("--dsv4-resume", impl="Wrong").journal
    assert third.header.resumed == [first.header.run_id, second.header.run_id]
    assert told(third) == told(first)
    assert len(list((project.folder / "dsv4-results").glob("journal-*.jsonl"))) == 2


@pytest.mark.parametrize("workers", ["0", "2"])
def test_complete_run_has_nothing_left_to_run(project: Project, workers: str) -> None:
    first = project.run("-n", workers).journal
    again = project.run("-n", workers, "--dsv4-resume", "--junitxml", "junit.xml")
    assert again.code == 0, again.out + again.err
    assert told(again.journal) == told(first)
    suite = ET.parse(project.folder / "junit.xml").getroot().find("testsuite")
    assert suite is not None and suite.get("tests") == "7"
    assert "resuming: 7 results are taken over" in again.out


def test_what_says_nothing_of_the_implementation_is_run_again(project: Project) -> None:
    project.run()
    path = project.folder / "dsv4-results/journal.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line, status in zip(lines[1:5], ("NOT_RUN", "HARNESS_ERROR", "INVALID", "CRASH"), strict=True):
        line["status"] = status
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = project.run("--dsv4-resume").journal
    assert again.footer is not None and again.footer.counts == {Status.PASS: 6, Status.CRASH: 1}


def test_nothing_to_resume_is_a_run_from_the_start(project: Project) -> None:
    ran = project.run("--dsv4-resume")
    assert ran.code == 0 and "resuming: 0 results" in ran.out


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that ran once: to copy."""
    project = Project(tmp_path_factory.mktemp("first"))
    assert project.run().code == 0
    return project.folder


@pytest.fixture
def ran_once(first_run: Path, tmp_path: Path) -> Project:
    shutil.copytree(first_run / "dsv4-results", tmp_path / "dsv4-results")
    return Project(tmp_path)


CHANGES = {
    "commit of dsv4-conformance": ("environment", "commit", "0123abc"),
    "adapter's version": ("implementation", "identity", {"version": "0"}),
    "version of dsv4-conformance": ("version", None, "0.0.1"),
    "package versions, at pytest": ("environment", "packages", {"pytest": "8"}),
    "GPUs": ("environment", "gpus", [{"uuid": "u", "name": "H", "compute_capability": "9.0", "memory_bytes": 1}]),
    "plan of all shards": ("plan_hash", None, "f00"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_differs_is_named(ran_once: Project, name: str) -> None:
    path = cut(ran_once, 2)
    lines = path.read_text().splitlines(keepends=True)
    header = json.loads(lines[0])
    place, inner, value = CHANGES[name]
    if inner is None:
        header[place] = value
    elif isinstance(value, dict):
        header[place][inner] |= value
    else:
        header[place][inner] = value
    path.write_text("".join([json.dumps(header) + "\n", *lines[1:]]))
    ran = ran_once.run("--dsv4-resume")
    assert ran.code == 2, ran.out + ran.err
    assert f"cannot be resumed: it differs in {name}" in ran.out + ran.err
    assert path.read_text().splitlines()[1:] == "".join(lines[1:]).splitlines()  # nothing was written


@pytest.mark.parametrize("words", [("--dsv4-seed", "3"), ("--dsv4-profile", "smoke"), ("-k", "few")])
def test_other_options_are_refused(ran_once: Project, words: tuple[str, ...]) -> None:
    ran = ran_once.run("--dsv4-resume", *words)
    assert ran.code == 2 and "cannot be resumed: it differs in" in ran.out + ran.err
