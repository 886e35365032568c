"""Nothing in a run's file is believed: edits, lines of other runs, scores that do not follow, values of other types."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4_conformance.accuracy.reading import Edited, load
from dsv4_conformance.accuracy.tasks import TASKS
from dsv4_conformance.errors import BadInput
from tests.accuracy.test_records import BUILD, HEADER, answer, write


def edit(path: Path, number: int, **values: object) -> None:
    """Change fields of a line as an editor would; "fingerprint" and the like by one entry."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for name, value in values.items():
        lines[number - 1][name] = {**lines[number - 1][name], **value} if isinstance(value, dict) else value
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (1, {"fingerprint": {"temperature": "0.0"}}),
        (1, {"started": "2027-01-01T00:00:00+00:00"}),
        (1, {"notes": {"commit": "nicer"}}),
        (1, {"items": ["a"]}),
        (2, {"build": {"--endpoint": "http://c"}}),
        (3, {"request": "s"}),
        (3, {"correct": False}),
        (3, {"text": "so\n#### 8"}),
        (3, {"status": "truncated", "correct": False}),
        (3, {"answer": "8", "expected": "8"}),
        (3, {"completion_tokens": 21}),
        (4, {"repeat": 1, "seed": 1001}),
        (4, {"served": "better"}),
        (4, {"seal": "0" * 64}),
        (4, {"seal": None}),
    ],
)
def test_every_edit_is_seen_and_its_line_named(tmp_path: Path, line: int, values: dict[str, object]) -> None:
    path = tmp_path / "run.jsonl"
    write(path, answer("a"), answer("b"), header=BUILD)
    assert len(load(path).answers) == 2
    edit(path, line, **values)
    with pytest.raises(Edited, match=rf"run\.jsonl, line {line} was edited"):
        load(path)
    with pytest.raises(Edited):
        write(path, answer("b"), header=BUILD)


def test_a_line_of_another_run_is_seen(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    write(ours, answer("a", correct=False, answer="8"))
    write(theirs, answer("a"), header=replace(HEADER, started="earlier"))
    with ours.open("a") as file:
        file.write(theirs.read_text().splitlines(keepends=True)[-1])
    with pytest.raises(Edited, match="line 4 was edited"):
        load(ours)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"correct": False}, "correct is False, and the answer '7' against '7' says otherwise"),
        ({"answer": "8"}, "correct is True, and the answer '8' against '7' says otherwise"),
        ({"expected": "8"}, "correct is True, and the answer '7' against '8' says otherwise"),
        ({"answer": "8", "expected": "8"}, "its text reads as ok '7', and ok '8' is recorded"),
        ({"text": "none"}, "its text reads as no_answer None, and ok '7' is recorded"),
        ({"finish_reason": "length"}, "its text reads as truncated None, and ok '7' is recorded"),
        ({"fallback": 2}, "its text reads as ok '7', and ok '7' is recorded"),
        ({"seed": 7}, "seed 7 is not that of repeat 0"),
        ({"item": "z"}, "'z' of gsm8k is no question of this run"),
        ({"task": "aime25"}, "'a' of aime25 is no question of this run"),
    ],
)
def test_what_a_line_says_has_to_follow_from_it_even_under_a_new_seal(
    tmp_path: Path, values: dict[str, object], told: str
) -> None:
    path = tmp_path / "run.jsonl"
    header = replace(HEADER, fingerprint={**HEADER.fingerprint, "parser": TASKS["gsm8k"].parser})
    write(path, replace(answer("a"), **values), header=header)  # type: ignore[arg-type]
    with pytest.raises(Edited, match="line 3: ") as error:
        load(path)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("line", "values", "named"),
    [
        (1, {"seed": "1000"}, "seed: input should be a valid integer"),
        (1, {"items": "ab"}, "items: input should be a valid array"),
        (1, {"items": [1]}, "items.0: input should be a valid string"),
        (1, {"endpoint": "carrier pigeon"}, "endpoint: input should be 'chat' or 'completions'"),
        (1, {"versions": {"python": 3}}, "versions.python: input should be a valid string"),
        (2, {"run": 5}, "run: input should be a valid string"),
        (3, {"correct": "yes"}, "correct: input should be a valid boolean"),
        (3, {"correct": 1}, "correct: input should be a valid boolean"),
        (3, {"repeat": -1}, "repeat: input should be greater than or equal to 0"),
        (3, {"repeat": "0"}, "repeat: input should be a valid integer"),
        (3, {"completion_tokens": 2.5}, "completion_tokens: input should be a valid integer"),
        (3, {"text": None}, "text: input should be a valid string"),
        (3, {"status": "fine"}, "status: input should be 'ok'"),
    ],
)
def test_values_of_another_type_are_named(tmp_path: Path, line: int, values: dict[str, object], named: str) -> None:
    path = tmp_path / "run.jsonl"
    write(path, answer("a"), header=BUILD)
    edit(path, line, **values)
    with pytest.raises(BadInput, match=f"line {line} is damaged") as error:
        load(path)
    assert named in str(error.value) and not isinstance(error.value, Edited)


def test_a_header_whose_fingerprint_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, answer("a"))
    path.write_text(path.read_text().replace(json.dumps(HEADER.fingerprint, separators=(",", ":")), '"none"'))
    with pytest.raises(BadInput, match="line 1 is damaged: fingerprint: "):
        load(path)
