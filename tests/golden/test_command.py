"""``dsv4-conformance golden tensors``: exit codes and sentences.

Mutants that fail here: a mismatch that exits 0 or 2; bad input that exits 1; a traceback; --check that writes.
"""

import json
import shutil
from pathlib import Path

import pytest

from dsv4_conformance.cli import main
from dsv4_conformance.resources import golden_dir


def run(*words: str) -> int:
    """The exit code of ``golden tensors WORDS``."""
    with pytest.raises(SystemExit) as stopped:
        main(["golden", "tensors", *words])
    return int(stopped.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the recorded goldens."""
    return Path(shutil.copytree(golden_dir(), tmp_path / "golden"))


def test_recorded_goldens_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert capsys.readouterr() == ("17 golden files: computed anew, the same byte for byte\n", "")


def test_an_edited_file_fails_and_stays_as_it_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "tensors/head-layout.safetensors"
    path.write_bytes(path.read_bytes() + b" ")
    before = path.read_bytes()
    assert run("--check", "--folder", str(folder)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0].startswith("tensors/head-layout.safetensors was edited")
    assert "--write --reason" in err.splitlines()[1]
    assert path.read_bytes() == before
    assert run("--write", "--folder", str(folder)) == 0
    assert capsys.readouterr().out == f"{folder}: nothing changed\n"
    assert path.read_bytes() == before[:-1]


def test_recording_elsewhere_gives_the_same_files(tmp_path: Path) -> None:
    assert run("--write", "--folder", str(tmp_path)) == 0
    for path in (golden_dir() / "tensors").iterdir():
        assert (tmp_path / "tensors" / path.name).read_bytes() == path.read_bytes(), path.name
    made, kept = (json.loads((folder / "MANIFEST.json").read_text())["files"] for folder in (tmp_path, golden_dir()))
    assert made == {name: digest for name, digest in kept.items() if name.startswith("tensors/")}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--folder", "/nowhere"), "There is no /nowhere/MANIFEST.json"),
        (("--reason", "x"), "--reason goes with --write."),
        (("--write", "--folder", "/dev/null/x"), "/dev/null/x/tensors cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith("dsv4-conformance: ")
    assert sentence in err


def test_an_unknown_format_is_bad_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "MANIFEST.json").write_text('{"format": 99, "files": {}}')
    assert run("--folder", str(folder)) == 2
    assert "has format 99" in capsys.readouterr().err
