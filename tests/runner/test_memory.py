"""What is freed on the CPU stays with the process."""

import ctypes
import subprocess
import sys

import pytest

SCRIPT = """
from pathlib import Path
import torch
from dsv4_conformance.runner.memory import keep_freed

def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

assert keep_freed()
before = resident()
held = [torch.ones(1 << 18) for _ in range(200)]
del held
print((resident() - before) >> 20)
"""


# Kills: parameters that glibc does not take, or that give memory back.
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library is not glibc")
def test_freed_memory_stays() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 150
