"""``run``: what ends the process is never taken for a run that ended well."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
def test_a_process_that_exits_with_0_is_no_good_run(tmp_path: Path, earlier: bool) -> None:
    if earlier:
        assert run(tmp_path, "builtin").returncode == 0
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
