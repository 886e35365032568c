"""The command ``matrix``: rows run as processes, here and in environments that a stand-in for tox makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ADAPTERS = """
import os, time
from dsv4_conformance.implementations.builtin import Builtin


class Right(Builtin):
    surfaces = {"SlotMapping": Builtin.surfaces["SlotMapping"]}


class Wrong(Right):
    def compressed_slots(self, *given):
        return super().compressed_slots(*given) + 1


class Slow(Right):
    def compressed_slots(self, *given):
        time.sleep(float(os.environ.get("SLOW", "0")))
        return super().compressed_slots(*given)
"""
# "tox run -e ENV --notest" makes an environment, "tox exec -e ENV -- PROGRAM ..." runs a program in it.
# Somebody may commit between two runs of one test.
SITE = """
from dsv4_conformance.plugin import environment

environment.checkout = lambda: ("c0ffee", False)
"""
TOX = """
import os, subprocess, sys
words = sys.argv[1:]
environment = words[words.index("-e") + 1]
with open(os.environ["TOX_LOG"], "a") as log:
    print(words[0], environment, file=log)
if environment == "broken":
    print("no matching distribution")
    sys.exit(1)
if words[0] == "exec":
    program = words[words.index("--") + 1:]
    assert program[0] == "dsv4-conformance"
    sys.exit(subprocess.call([sys.executable, "-m", "dsv4_conformance.cli", *program[1:]]))
assert words[-1] == "--notest"
"""


class Place:
    """A folder with adapters, a tox and a tox.ini."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "adapters.py").write_text(ADAPTERS)
        (folder / "tox").mkdir()
        (folder / "tox" / "__init__.py").write_text("")
        (folder / "tox" / "__main__.py").write_text(TOX)
        (folder / "sitecustomize.py").write_text(SITE)
        (folder / "tox.ini").write_text("[tox]\n")

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(self.folder), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": path, "TOX_LOG": str(self.folder / "tox.log"), **variables}
        command = [sys.executable, "-m", "dsv4_conformance.cli", "matrix", *words, "-o", "out", "--profile", "smoke"]
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *words: str, **variables: str) -> tuple[int, str, str]:
        process = self.start(*words, "-n", "0", **variables)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    @property
    def asked_of_tox(self) -> list[str]:
        return (self.folder / "tox.log").read_text().splitlines()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_rows_side_by_side_with_their_first_failures(place: Place) -> None:
    code, out, err = place.run("adapters:Right", "adapters:Wrong@env", "adapters:Right@broken")
    assert code == 3, out + err
    assert place.asked_of_tox == ["run env", "exec env", "run broken"]
    assert "| INV-65 | " in out
    row = next(line for line in out.splitlines() if line.startswith("| INV-65 |"))
    assert [cell.strip() for cell in row.split("|")[3:5]] == ["PASS 1", "**FAIL 1/1**"]
    assert "did not run: tox could not make environment broken: no matching distribution (exit code 1" in out
    assert "adapters:Wrong&#64;env **INV-65 FAIL**" in out and "dsv4-conformance repro INV-65-" in out
    assert (place.folder / "out/matrix.md").read_text().rstrip() == out.rstrip()
    data = json.loads((place.folder / "out/matrix.json").read_text())
    assert [row.get("requirements", {}).get("INV-65") for row in data["rows"]] == [{"PASS": 1}, {"FAIL": 1}, None]
    assert (place.folder / "out/report.html").exists() and (place.folder / "out/adapters-Right/journal.jsonl").exists()

    # The second time whole rows are kept, and what failed to run is tried again.
    code, _, err = place.run("adapters:Right", "adapters:Wrong@env", "adapters:Right@broken")
    assert code == 3 and err.count(": kept\n") == 2
    assert place.asked_of_tox[3:] == ["run broken"]
    code, _, err = place.run("adapters:Right", "adapters:Wrong@env")
    assert code == 1 and err.count(": kept\n") == 2
    code, _, err = place.run("adapters:Right", "--again")
    assert code == 0 and "kept" not in err


def test_a_row_that_takes_too_long_ends_and_is_gone_on_with(place: Place) -> None:
    code, out, err = place.run("adapters:Slow", "--minutes", "0.1", SLOW="60")
    assert code in (1, 3), out + err
    code, out, err = place.run("adapters:Slow")
    assert code == 0 and "kept" not in err, out + err


def test_interrupted_it_ends_its_row(place: Place) -> None:
    process = place.start("adapters:Slow", "-n", "0", SLOW="60")
    journal = place.folder / "out/adapters-Slow/journal.jsonl"
    deadline = time.monotonic() + 60
    while not journal.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(2)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert '"kind":"footer"' in journal.read_text()


def test_what_cannot_be_done_is_one_sentence(place: Place) -> None:
    code, _, err = place.run("nobody-1.0")
    assert code == 2 and "the row 'nobody-1.0' begins with no implementation" in err
    (place.folder / "tox.ini").unlink()
    code, _, err = place.run("builtin@env")
    assert code == 2 and "there is no tox.ini in" in err
