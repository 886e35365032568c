"""``run``: what ends the process is never taken for a run that ended well."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.results_folder import ResultsFolder
from tests.cli.conftest import Done

ROOT = Path(__file__).resolve().parents[2]
ADAPTERS = """
import os, signal
from dsv4_conformance.implementations import api

class Exits(api.Implementation):
    identity = api.Identity(name="exits", version="0", homepage="https://example.org")
    surfaces = {"SparsePrefill": api.AttentionConvention()}
    def prefill(self, call):
        os._exit(0)

class ExitsWhenAsked(Exits):
    @classmethod
    def check_available(cls):
        os._exit(0)

class Unmakeable(Exits):
    def __init__(self, device):
        raise ValueError("no such device")

class Dies(Exits):
    @classmethod
    def check_available(cls):
        os.kill(os.getpid(), signal.SIGSEGV)
"""


def run(folder: Path, impl: str) -> "subprocess.CompletedProcess[str]":
    (folder / "adapters.py").write_text(ADAPTERS)
    command = [sys.executable, "-m", "dsv4_conformance.cli", "run", "--profile", "smoke", "--impl", impl]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


# Kills: the exit code of a process that something below the adapter ended with 0, nothing checked.
@pytest.mark.parametrize("earlier", [False, True], ids=["empty folder", "an earlier run's journal"])
def test_a_process_that_exits_with_0_is_no_good_run(
    tmp_path: Path, earlier: bool, smoke_run: tuple[Done, Path]
) -> None:
    if earlier:
        assert smoke_run[0].returncode == 0
        shutil.copytree(smoke_run[1] / "here", tmp_path / "dsv4-results")
    done = run(tmp_path, "adapters:ExitsWhenAsked")
    assert done.returncode == 1 and "ended before the run did" in done.stderr


def test_a_case_that_exits_with_0_is_a_crash(tmp_path: Path) -> None:
    done = run(tmp_path, "adapters:Exits")
    assert done.returncode == 1 and "The worker process exited with code 0 while it ran this case" in done.stdout


def test_a_signal_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "adapters:Dies")
    assert done.returncode == 1 and "the run was ended by SIGSEGV" in done.stderr


# Kills: a bad option whose sentence or exit code is lost on the way from the child.
def test_bad_input_stays_one_sentence(tmp_path: Path) -> None:
    done = run(tmp_path, "nosuch")
    assert done.returncode == 2 and "Traceback" not in done.stderr + done.stdout


# Kills: a run that bad input stops at its first case, taken for one that Ctrl-C stopped.
def test_a_run_that_is_stopped_is_not_interrupted(tmp_path: Path) -> None:
    done = run(tmp_path, "adapters:Unmakeable")
    assert done.returncode == 2 and "mend its __init__" in done.stdout, done.stdout
    assert "interrupted" not in done.stdout + done.stderr


# Kills: a run that goes on, holding its folder, when the command that was to watch it has been killed.
def test_a_killed_command_takes_its_run_along(tmp_path: Path) -> None:
    (tmp_path / "sleeps.py").write_text(
        ADAPTERS + "import time\nclass Sleeps(Exits):\n    def prefill(self, call):\n        time.sleep(600)\n"
    )
    command = [sys.executable, "-m", "dsv4_conformance.cli", "run", "--profile", "smoke", "--results", "results"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    quiet = {"cwd": tmp_path, "env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = subprocess.Popen([*command, "--impl", "sleeps:Sleeps"], **quiet)  # type: ignore[call-overload]
    owner = tmp_path / "results/.owner"
    try:
        wait_for(
            lambda: owner.exists() and owner.read_text().strip() and list((tmp_path / "results").glob("workers/*"))
        )
        pid = int(owner.read_text())
        with pytest.raises(BadInput, match=f"Another run \\(process {pid}\\) is writing"):
            ResultsFolder(tmp_path / "results")
    finally:
        started.kill()
        started.wait()
    wait_for(lambda: free(tmp_path / "results"))
    assert '"kind":"footer"' not in (tmp_path / "results/journal.jsonl").read_text()


def free(folder: Path) -> bool:
    """Whether no run is writing there."""
    try:
        ResultsFolder(folder).release()
    except BadInput:
        return False
    return True


def wait_for(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


SLOW = ADAPTERS + "import time\nclass Slow(Exits):\n    def prefill(self, call):\n        time.sleep(600)\n"


def start(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """A run of cases that take long, in a process group of its own."""
    (folder / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "dsv4_conformance.cli", "run", "--profile", "smoke", "--impl", "slow:Slow", *words]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    return subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, **quiet)  # type: ignore[call-overload, no-any-return]


# Kills: a SIGINT for the command alone that nobody hears, and one for the whole group that is heard twice.
@pytest.mark.parametrize("whole_group", [False, True])
def test_an_interrupt_ends_the_run_with_its_summary(tmp_path: Path, whole_group: bool) -> None:
    process = start(tmp_path)
    wait_for(lambda: list(tmp_path.glob("dsv4-results/workers/*")))
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in said, said
    assert (tmp_path / "dsv4-results/journal.jsonl").read_text().splitlines()[-1].startswith('{"kind":"footer"')


# Kills: the code of bad input for a run that was interrupted while its workers started.
def test_an_interrupt_before_the_first_case_is_one(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(
        "import pytest\n@pytest.hookimpl(trylast=True)\ndef pytest_sessionstart():\n    raise KeyboardInterrupt\n"
    )
    process = start(tmp_path, "--", "-p", "plugin")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted before any case was run" in said, said


# Kills: a refused run that leaves a junit.xml without a test, which is green.
@pytest.mark.parametrize("earlier", ["<testsuite tests='7'/>", None])
def test_a_refused_run_leaves_junit_as_it_was(
    tmp_path: Path, earlier: str | None, smoke_run: tuple[Done, Path]
) -> None:
    shutil.copytree(smoke_run[1] / "here", tmp_path / "dsv4-results")
    junit = tmp_path / "dsv4-results/junit.xml"
    junit.unlink()
    if earlier is not None:
        junit.write_text(earlier)
    command = [sys.executable, "-m", "dsv4_conformance.cli", "run", "--profile", "smoke", "--resume", "--seed", "5"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "seed" in done.stdout + done.stderr, done.stdout
    assert (junit.read_text() if junit.exists() else None) == earlier


@pytest.mark.parametrize("workers", ["-3", "foo", "1.5"])
def test_a_number_of_processes_that_is_none_is_refused(tmp_path: Path, workers: str) -> None:
    command = [sys.executable, "-m", "dsv4_conformance.cli", "run", "-n", workers]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "is no number of processes" in done.stderr and done.stderr.count("\n") == 1
