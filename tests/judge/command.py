"""Runs ``dsv4-conformance judge`` in this process."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from dsv4_conformance.cli import main


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def run_judge(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Done:
    """Exit code and output of the command."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["judge", *map(str, words)])
    printed = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return Done(ended.value.code, printed.out, printed.err)


def refusal(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """The sentence with which the command refuses; checks that it is one, on stderr alone, with exit code 2."""
    done = run_judge(capsys, *words)
    assert (done.code, done.out) == (2, ""), done
    (line,) = done.err.splitlines()
    assert line.startswith("dsv4-conformance: ")
    assert line.endswith((".", "?")), line
    return line.removeprefix("dsv4-conformance: ")
