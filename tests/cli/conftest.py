"""Runs the command line in processes of its own, in an empty folder."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

Done = subprocess.CompletedProcess[str]
Command = Callable[..., Done]


def command_in(folder: Path) -> Command:
    """Runs ``dsv4-conformance WORDS``, or another program, in a folder."""

    def run(*words: str, program: tuple[str, ...] = ("-m", "dsv4_conformance.cli")) -> Done:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [sys.executable, *program, *words],
            cwd=folder,
            env={**inherited, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return command_in(tmp_path)


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """How a smoke run of the built-in implementation ended, and the folder it was started in: to look at."""
    folder = tmp_path_factory.mktemp("smoke")
    return command_in(folder)("run", "--profile", "smoke", "--results", "here", "-n", "2", "--", "-q"), folder
