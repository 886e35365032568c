"""What is freed on the CPU stays with the process."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, torch
from dsv4_conformance.runner.memory import keep_freed
if sys.argv[1] == "keep" and not keep_freed():
    raise SystemExit(77)

def case() -> None:
    kept = [torch.ones(40 << 18) for _ in range(4)]  # 40 MiB each

for _ in range(5):
    case()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    case()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


# Kills: parameters that glibc does not take, a threshold below a case's tensors.
def test_freed_memory_is_used_again_without_faults() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    faults = {}
    for word in ("keep", "leave"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, word], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode == 77:
            pytest.skip("this C library is not glibc")
        assert done.returncode == 0, done.stderr
        faults[word] = int(done.stdout)
    assert faults["keep"] < faults["leave"] / 10
