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


@pytest.fixture
def command(tmp_path: Path) -> Command:
    def run(*words: str, program: tuple[str, ...] = ("-m", "dsv4_conformance.cli")) -> Done:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [sys.executable, *program, *words],
            cwd=tmp_path,
            env={**inherited, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run
