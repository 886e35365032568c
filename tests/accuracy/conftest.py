from pathlib import Path

import pytest

from tests.accuracy.served import write_questions


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a few made-up questions, set as DSV4_DATA_DIR."""
    folder = tmp_path / "questions"
    folder.mkdir()
    write_questions(folder)
    monkeypatch.setenv("DSV4_DATA_DIR", str(folder))
    return folder
