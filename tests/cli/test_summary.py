"""``dsv4-conformance summary``: Markdown from journals."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Done


def command(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "dsv4_conformance.cli", *words], cwd=cwd, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def run(smoke_run: tuple[Done, Path], tmp_path: Path) -> Path:
    """A folder with the results of a smoke run."""
    shutil.copytree(smoke_run[1] / "here", tmp_path / "results")
    return tmp_path


# Kills: a summary that leaves out where, when or what, or that gives another verdict than the run.
def test_a_run_is_told_with_its_verdict_versions_and_requirements(run: Path) -> None:
    done = command("summary", "results/journal.jsonl", cwd=run)
    assert done.returncode == 0, done.stderr
    for part in ("**QUALIFIES in profile smoke", "| implementation | builtin ", "torch ", "| date | 20", "| INV-01 | "):
        assert part in done.stdout, part
    assert "Failures" not in done.stdout


# Kills: a truncated journal told as if the run had ended.
def test_a_run_that_did_not_end_says_so(run: Path) -> None:
    lines = (run / "results/journal.jsonl").read_text().splitlines(keepends=True)
    (run / "cut.jsonl").write_text("".join(lines[:-2]))
    done = command("summary", "cut.jsonl", cwd=run)
    assert "**The run did not end" in done.stdout and "1 planned cases have no result" in done.stdout


# Kills: a traceback for a file that is no journal, or for a folder that cannot be written.
@pytest.mark.parametrize("words", [["absent.jsonl"], ["results/journal.jsonl", "-o", "absent/folder/out.md"]])
def test_bad_input_is_one_sentence(run: Path, words: list[str]) -> None:
    done = command("summary", *words, cwd=run)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
