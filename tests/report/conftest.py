"""The command line in this process: commands of reports fork nothing and change nothing but files."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv4_conformance.cli import main

Done = subprocess.CompletedProcess[str]
Command = Callable[..., Done]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs ``dsv4-conformance WORDS`` in ``tmp_path``."""

    def run(*words: str) -> Done:
        monkeypatch.chdir(tmp_path)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        told = capsys.readouterr()
        code = ended.value.code
        return Done(list(words), code if isinstance(code, int) else 0, told.out, told.err)

    return run
