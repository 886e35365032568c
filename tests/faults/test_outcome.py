"""What a matrix says: problems, what only one requirement or folder catches, tables, exit codes of the command."""

import json
from pathlib import Path

import pytest

from dsv4_conformance import cli
from dsv4_conformance.faults.catalogue import chosen
from dsv4_conformance.faults.outcome import CONTROL, Detection, Matrix, Outcome
from dsv4_conformance.faults.tables import html, line, markdown, verdict
from dsv4_conformance.faults.workers import Task, serve_one


def found(requirement: str, folder: str, raised: bool = False, seconds: float = 1.0) -> Detection:
    return Detection(
        requirement=requirement,
        case_id=f"{requirement}-00000000",
        surface="SparseDecode",
        folder=folder,
        reason="wrong",
        raised=raised,
        seconds=seconds,
    )


def matrix(*outcomes: Outcome) -> Matrix:
    return Matrix(
        profile="kill",
        outcomes=list(outcomes),
        seconds=12.0,
        workers=2,
        started="2026-01-01T00:00:00+00:00",
        version="1",
        packages={"torch": "2"},
        command="dsv4-conformance faults",
    )


KILLED = Outcome(id="S01", title="first <b>", breaks="INV-53", detections=[found("INV-53", "sinks", seconds=3.0)])
TWICE = Outcome(
    id="S02", title="a | b", breaks="INV-54", detections=[found("INV-54", "sinks"), found("INV-92", "cuda_graph")]
)
SURVIVOR = Outcome(id="S04", title="third", breaks="INV-51")


def test_problems_are_told_and_medians_are_of_kills() -> None:
    assert matrix(Outcome(id=CONTROL), KILLED, TWICE).problems == []
    assert matrix(KILLED, SURVIVOR).problems == ["S04: it survives."]
    broken = Outcome(id=CONTROL, detections=[found("INV-01", "attention")])
    assert "the unchanged implementation fails INV-01" in matrix(broken).problems[0]
    assert matrix(KILLED, TWICE, SURVIVOR).median_seconds == 2.0


def test_what_only_one_catches() -> None:
    whole = matrix(Outcome(id=CONTROL), KILLED, TWICE, SURVIVOR)
    assert whole.only_by_requirement() == {"INV-53": ["S01"]}
    assert whole.only_by_folder() == {"sinks": ["S01"]}
    assert whole.caught_by_folder() == {"sinks": 2, "cuda_graph": 1}


def test_tables_hold_every_fault_and_stay_tables() -> None:
    whole = matrix(Outcome(id=CONTROL), KILLED, TWICE, SURVIVOR)
    text = markdown(whole, ["attention", "sinks"])
    assert "a \\| b" in text and "- S04: it survives." in text
    assert "| attention | 0 | none |" in text and "| sinks | 2 | S01 |" in text
    stopped = markdown(whole.model_copy(update={"stopped": True}), ["attention"])
    assert "## Suites" not in stopped and "what else it breaks was not asked" in stopped
    assert "first &lt;b&gt;" in html(whole) and "first <b>" not in html(whole)
    assert verdict(whole).startswith("NOT ALL KILLED in profile kill: 2 of 3 faults")
    assert "dsv4-conformance repro INV-53-00000000 --impl fault:S01" in line(KILLED)


def command(*words: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["faults", *words])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--id", "S99"), "There is no fault 'S99'"),
        (("--id", "S01", "-n", "none"), "give a number of processes"),
        (("--id", "S01", "--timeout", "0"), "give the seconds"),
    ],
)
def test_bad_input_is_one_sentence(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(*words) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert command("--id", "S29", "--results", str(tmp_path / "file")) == 2
    assert "name another folder" in capsys.readouterr().err


# Kills: a table that cannot be written, told of when hours of trials are over.
def test_a_file_that_cannot_be_written_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv4_conformance.faults.command.run", lambda *given: pytest.fail("trials were begun"))
    assert command("--id", "S29", "--results", str(tmp_path), "--html", str(tmp_path / "no/k.html")) == 2
    assert "k.html cannot be written" in capsys.readouterr().err


def test_the_list_counts_what_is_modelled(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--list") == 0
    told = capsys.readouterr().out
    assert "S01" in told and "of 169 public bugs" in told


# Kills: faults tried without the control, a journal without outcomes.
def test_one_fault_is_tried_beside_the_control(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv4_conformance.faults.command.run", _in_this_process)
    assert command("--id", "S29", "--results", str(tmp_path), "--markdown", str(tmp_path / "m.md")) == 0
    lines = [json.loads(text) for text in (tmp_path / "faults.jsonl").read_text().splitlines()]
    assert [entry["kind"] for entry in lines] == ["header", "outcome", "outcome", "footer"]
    assert [entry["id"] for entry in lines[1:3]] == [CONTROL, "S29"] and lines[1]["cases"] > 0
    assert "ALL KILLED" in capsys.readouterr().out and "S29" in (tmp_path / "m.md").read_text()
    assert lines[0]["wanted"] == ["S29"] and lines[0]["known"] == len(chosen(()))
    first = (tmp_path / "faults.jsonl").read_text()
    assert command("--id", "S29", "--results", str(tmp_path)) == 0
    (kept,) = tmp_path.glob("faults-*.jsonl")
    assert kept.read_text() == first != (tmp_path / "faults.jsonl").read_text()


def _in_this_process(tasks: list[Task], workers: int, timeout_s: float) -> list[Outcome]:
    class Pipe:
        def __init__(self) -> None:
            self.sent: list[Outcome] = []

        def send(self, message: tuple[str, Outcome]) -> None:
            if message[0] == "done":
                self.sent.append(message[1])

    pipe = Pipe()
    for task in tasks:
        serve_one(pipe, task)  # type: ignore[arg-type]
    return pipe.sent
