import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4_conformance.accuracy.journal import Journal
from dsv4_conformance.accuracy.reading import Edited, load
from dsv4_conformance.accuracy.records import AccuracyRun, Answer, RunHeader, differing, fingerprint_hash, seal
from dsv4_conformance.errors import BadInput

HEADER = RunHeader(
    task="gsm8k",
    model="m",
    endpoint="chat",
    seed=1000,
    items=("a", "b"),
    fingerprint={"temperature": "1.0", "prompts": "00"},
    started="2026-01-01T00:00:00+00:00",
    versions={"python": "3.11"},
)


def answer(item: str, repeat: int = 0, **other: object) -> Answer:
    made = Answer(
        task="gsm8k",
        item=item,
        repeat=repeat,
        request="r",
        status="ok",
        correct=True,
        answer="7",
        fallback=0,
        finish_reason="stop",
        seed=1000 + repeat,
        prompt_tokens=10,
        completion_tokens=20,
        reasoning_tokens=None,
        text="so\n#### 7",
        reasoning="",
        error="",
        expected="7",
    )
    return replace(made, **other)  # type: ignore[arg-type]


def write(path: Path, *answers: Answer, header: RunHeader = HEADER) -> None:
    with Journal(path, header) as journal:
        for one in answers:
            journal.append(one)


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.jsonl"
    odd = answer("b", status="error", correct=False, answer=None, fallback=-1, error="HTTP 500: «é\n»", text="")
    write(path, answer("a"), odd)
    assert load(path) == AccuracyRun(HEADER, (answer("a"), odd))


def test_a_torn_line_is_ignored_and_cut_before_going_on(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, answer("a"))
    with path.open("a") as file:
        file.write('{"kind":"answer","task":"gsm8k","item":"b","rep')
    assert [one.item for one in load(path).answers] == ["a"]
    write(path, answer("b"))
    assert [one.item for one in load(path).answers] == ["a", "b"]


def test_a_file_with_only_a_torn_header_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"kind":"header","sch')
    write(path, answer("a"))
    assert load(path) == AccuracyRun(HEADER, (answer("a"),))


def test_a_torn_line_longer_than_a_block_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, answer("a"))
    with path.open("a") as file:
        file.write('{"kind":"answer","reasoning":"' + "x" * 200_000)
    write(path, answer("b"))
    assert [one.item for one in load(path).answers] == ["a", "b"]


def test_of_two_answers_to_a_question_the_last_counts(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(
        path,
        answer("a", status="error", correct=False),
        answer("b"),
        answer("a"),
        answer("a", 1, correct=False, answer="8"),
    )
    run = load(path)
    assert [(one.key, one.correct) for one in run.answers] == [(("b", 0), True), (("a", 0), True), (("a", 1), False)]


def test_missing_and_repeats(tmp_path: Path) -> None:
    run = AccuracyRun(HEADER, (answer("a"), answer("b"), answer("b", 1)))
    assert run.repeats == 2
    assert run.missing(1) == []
    assert run.missing(2) == [("a", 1)]
    assert AccuracyRun(HEADER, ()).repeats == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"fingerprint": {"temperature": "0.0", "prompts": "00"}}, "fingerprint.temperature was 1.0 and is 0.0"),
        ({"fingerprint": {"prompts": "00"}}, "fingerprint.temperature was 1.0 and is (absent)"),
        ({"fingerprint": {**HEADER.fingerprint, "stop": "x"}}, "fingerprint.stop was (absent) and is x"),
        ({"seed": 1}, "seed was 1000 and is 1"),
        ({"model": "other"}, 'model was "m" and is "other"'),
        ({"items": ("a",)}, 'items was ["a","b"] and is ["a"]'),
        ({"endpoint": "completions"}, "endpoint was"),
    ],
)
def test_going_on_with_a_run_that_is_set_up_otherwise_is_refused_by_field(
    tmp_path: Path, change: dict[str, object], named: str
) -> None:
    path = tmp_path / "run.jsonl"
    write(path, answer("a"))
    with pytest.raises(BadInput) as error:
        Journal(path, replace(HEADER, **change))  # type: ignore[arg-type]
    assert named in str(error.value)
    write(path, answer("b"))  # the refusal left no lock behind


def test_start_versions_and_observations_may_differ(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, answer("a"))
    later = replace(HEADER, started="later", versions={"python": "3.12"}, observed={"seeds": "x"})
    assert differing(HEADER, later) == []
    write(path, answer("b"), header=later)
    assert load(path).header == HEADER


BUILD = replace(HEADER, url="http://a:1/v1", notes={"commit": "a1"}, server={"version": "0.9"})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"url": "http://b:1/v1"}, "(--endpoint was http://a:1/v1 and is http://b:1/v1)"),
        ({"notes": {"commit": "b2"}}, "(--note commit was a1 and is b2)"),
        ({"notes": {}}, "(--note commit was a1 and is (absent))"),
        ({"notes": {"commit": "a1", "gpu": "h"}}, "(--note gpu was (absent) and is h)"),
        ({"server": {"version": "0.10"}}, "(the server's version was 0.9 and is 0.10)"),
    ],
)
def test_answers_of_another_build_are_not_gone_on_with(tmp_path: Path, change: dict[str, object], named: str) -> None:
    path = tmp_path / "run.jsonl"
    write(path, answer("a"), header=BUILD)
    before = path.read_bytes()
    other = replace(BUILD, **change)  # type: ignore[arg-type]
    with pytest.raises(BadInput) as error:
        write(path, answer("b"), header=other)
    assert named in str(error.value) and "--results folder of its own" in str(error.value)
    assert "--same-build" in str(error.value) and path.read_bytes() == before
    with Journal(path, other, "second", same_build=True) as journal:
        journal.append(answer("b"))
    run = load(path)
    assert run.header == BUILD
    assert [(one.build, one.answers) for one in run.sessions] == [(BUILD.build, 1), (other.build, 1)]
    assert (run.reused("second"), run.reused("")) == (1, 1)
    write(path, answer("b", 1), header=other)  # a build that was said to be the same need not be said so again


def test_a_session_that_asks_nothing_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, answer("a"))
    before = path.read_bytes()
    write(path)
    assert path.read_bytes() == before


def test_a_second_writer_is_refused_while_the_first_writes(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Journal(path, HEADER), pytest.raises(BadInput, match="Another process is writing"):
        Journal(path, HEADER)


def test_damage_inside_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, answer("a"), answer("b"))
    lines = path.read_text().splitlines(keepends=True)
    for broken, reason in (
        ("not JSON\n", "line 3 is damaged: it is not JSON"),
        ('{"kind":"header"}\n', "line 3 is damaged: it is no answer"),
        (lines[2].replace('"status":"ok"', '"status":"fine"'), "status: input should be"),
        (lines[2].replace('"item":"a",', ""), "line 3 is damaged: item: field required"),
        (lines[2].replace('"status":"ok"', '"status":"empty"'), "cannot be correct"),
    ):
        path.write_text(lines[0] + lines[1] + broken + lines[3])
        with pytest.raises(
            BadInput, match=rf"{reason}.*; restore the file, or make the run again in another folder\.$"
        ):
            load(path)


def test_other_schemas_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path)
    path.write_text(path.read_text().replace("dsv4-accuracy/3", "dsv4-accuracy/4"))
    with pytest.raises(BadInput, match="has schema 'dsv4-accuracy/4'"):
        load(path)
    for content in ("", '{"kind":"footer"}\n', "[]\n"):
        path.write_text(content)
        with pytest.raises(BadInput, match=r"holds no accuracy run.*; give the file that .* wrote\.$"):
            load(path)
    with pytest.raises(BadInput, match="cannot be read"):
        load(tmp_path / "absent")


def test_fields_of_later_versions_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, answer("a"))
    under, lines = "", []
    for line in map(json.loads, path.read_text().splitlines()):
        kind, content = line.pop("kind"), {**line, "later": 1}
        content.pop("seal")
        lines.append({"kind": kind, **content, "seal": seal(under, content)})
        under = lines[-1]["seal"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert load(path) == AccuracyRun(HEADER, (answer("a"),))


def test_fingerprint_hash_depends_on_content_and_not_on_order() -> None:
    assert fingerprint_hash({"a": "1", "b": "2"}) == fingerprint_hash({"b": "2", "a": "1"})
    assert len({fingerprint_hash(f) for f in ({"a": "1", "b": "2"}, {"a": "2", "b": "1"}, {"a": "1"}, {})}) == 4


def test_without_texts_empty_stays_empty_and_equal_stays_equal(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, answer("a", reasoning="long"), answer("b", reasoning="long", text="other"), answer("a", 1))
    light = load(path, texts=False).answers
    assert light[0].reasoning == light[1].reasoning != ""
    assert light[2].reasoning == ""
    assert light[0].text == light[2].text != light[1].text
    assert "long" not in str(light) and "####" not in str(light)
    kept = load(path, reasoning=False).answers
    assert [one.text for one in kept] == ["so\n#### 7", "other", "so\n#### 7"]
    assert "long" not in str(kept)


def test_only_a_whole_answer_can_be_correct() -> None:
    with pytest.raises(ValueError, match="cannot be correct"):
        answer("a", status="truncated")


def test_a_line_that_is_taken_out_or_put_in_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, answer("a"), answer("b", correct=False, answer="8"), answer("a", 1), answer("b", 1))
    lines = path.read_text().splitlines(keepends=True)
    for changed, named in (
        ([*lines[:3], *lines[4:]], 4),  # the wrong answer is asked again
        ([*lines[:2], lines[3], lines[2], *lines[4:]], 3),
        ([*lines[:4], lines[2], *lines[4:]], 5),
        ([lines[0], *lines[2:]], 2),
    ):
        path.write_text("".join(changed))
        with pytest.raises(Edited, match=f"line {named} was edited"):
            write(path, answer("b"))
    path.write_text("".join(lines[:4]))  # what a kill leaves
    write(path, answer("a", 1))
    assert [one.key for one in load(path).answers] == [("a", 0), ("b", 0), ("a", 1)]


def test_a_full_disk_is_one_sentence_and_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.jsonl"
    really = os.write
    with Journal(path, HEADER) as journal:
        journal.append(answer("a"))
        room = [40]

        def write_some(file: int, content: memoryview) -> int:
            if not room[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            done = really(file, content[: room[0]])
            room[0] = 0
            return done

        monkeypatch.setattr(os, "write", write_some)
        with pytest.raises(BadInput, match=r"cannot be written \(No space left on device\); make room"):
            journal.append(answer("b"))
        monkeypatch.setattr(os, "write", really)
        assert path.read_bytes().endswith(b"}\n"), "no half line is left"
        journal.append(answer("b"))
    assert [one.item for one in load(path).answers] == ["a", "b"]


def test_a_run_that_was_killed_before_its_first_answer_binds_nobody(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, header=BUILD)
    other = replace(BUILD, notes={"commit": "b2"}, seed=7)
    write(path, answer("a", seed=7), header=other)
    assert load(path).header == other


def test_what_the_server_says_at_the_end_is_kept_with_its_session(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Journal(path, BUILD, "first") as journal:
        journal.append(answer("a"))
        journal.end({"version": "0.10"})
    with Journal(path, BUILD, "second") as journal:
        journal.visited()
    first, second = load(path).sessions
    assert first.ended == BUILD.build | {"the server's version": "0.10"} and second.ended is None
    assert (first.answers, second.answers, second.run) == (1, 0, "second")
