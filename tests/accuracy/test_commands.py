"""The commands as users type them: whose answers are judged, what is said before and after, and every exit code."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4_conformance.accuracy import golden_files
from dsv4_conformance.accuracy.reading import load
from dsv4_conformance.accuracy.simulator.behaviour import Behaviour
from dsv4_conformance.cli import main
from dsv4_conformance.cli.accuracy_text import forewarned
from tests.accuracy.made import golden, run_of, written
from tests.accuracy.served import GSM8K, served

pytestmark = pytest.mark.usefixtures("questions")
NOBODY = "http://127.0.0.1:9/v1"


class Ended:
    """How a command ended and what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*words])
        self.code = ended.value.code
        self.out, self.err = capsys.readouterr()


def run(capsys: pytest.CaptureFixture[str], url: str, results: Path, *words: str) -> Ended:
    asked = ["accuracy", "run", "--endpoint", url, "--results", str(results), "--unverified-data", "--quiet"]
    return Ended(capsys, *asked, "--concurrency", "4", "--seed", "1000", *words)


def test_a_run_says_what_it_asked_and_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(Behaviour()) as (url, server):
        first = run(capsys, url, tmp_path, "--note", "commit=a1")
        header = load(tmp_path / "gsm8k.jsonl").header
        more = run(capsys, url, tmp_path, "--note", "commit=a1", "--repeats", "2")
        again = run(capsys, url, tmp_path, "--note", "commit=a1", "--repeats", "2")
        assert sum(server.asked.values()) == 2 * GSM8K
    assert header.url == url and header.notes == {"commit": "a1"}
    assert header.server == {"owned_by": "dsv4-conformance", "version": "simulated 1"}
    assert "asked 24 now, reused 0 answers\n" in first.out
    assert f"asked 24 now, reused 24 answers of {tmp_path / 'gsm8k.jsonl'} (begun " in more.out
    assert "asked 0 now, reused 48 answers" in again.out and "Nothing was asked: if the build has changed" in again.out


@pytest.mark.parametrize(
    ("behaviour", "notes", "told"),
    [
        (Behaviour(), [], "--endpoint was http://"),
        (Behaviour(), ["--note", "commit=b2"], "--note commit was (absent) and is b2"),
        (Behaviour(version="2"), [], "the server's version was simulated 1 and is simulated 2"),
    ],
    ids=["endpoint", "note", "version"],
)
def test_another_build_is_refused_and_asked_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], behaviour: Behaviour, notes: list[str], told: str
) -> None:
    with served(Behaviour()) as (url, _):
        run(capsys, url, tmp_path)
    with served(behaviour) as (url, server):
        refused = run(capsys, url, tmp_path, *notes)
        assert refused.code == 2 and not server.asked
        assert told in refused.err and "--same-build" in refused.err and "folder of its own" in refused.err
        assert run(capsys, url, tmp_path, *notes, "--same-build", "--repeats", "2").code == 0
        assert sum(server.asked.values()) == GSM8K


def test_the_goldens_own_run_is_invalid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = written(run_of([[1] * 4] * 40), tmp_path / "run.jsonl")
    folder = ["--folder", str(tmp_path / "g")]
    assert Ended(capsys, "golden", "record", str(made), "--name", "mine", *folder).code == 0
    judged = Ended(capsys, "golden", "compare", str(made), "--golden", "mine", *folder)
    assert judged.code == 7 and "is the golden's own" in " ".join(judged.out.split())


def test_an_edited_file_is_invalid_whatever_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(Behaviour(broken_items=("gsm8k-test-3",))) as (url, _):
        run(capsys, url, tmp_path, "--repeats", "2")
        path = tmp_path / "gsm8k.jsonl"
        lines = path.read_text().splitlines()
        place = next(n for n, line in enumerate(lines) if '"correct":false' in line)
        for old, new in (('"correct":false', '"correct":true'), ('"correct":false', '"correct":"yes"')):
            changed = [line.replace(old, new) if n == place else line for n, line in enumerate(lines)]
            path.write_text("\n".join(changed) + "\n")
            code = 7 if new.endswith("true") else 2
            for ended in (
                run(capsys, url, tmp_path),
                Ended(capsys, "golden", "compare", str(path)),
                Ended(capsys, "golden", "record", str(path), "--folder", str(tmp_path)),
            ):
                assert ended.code == code
                assert f"gsm8k.jsonl, line {place + 1} " in ended.err and ended.err.count("line") == 1
                assert ("dsv4-conformance: INVALID: " in ended.err) == (code == 7)


def test_a_file_that_lost_its_closing_line_is_invalid_until_the_command_runs_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--folder", str(tmp_path)]
    path = tmp_path / "new" / "gsm8k.jsonl"
    with served(Behaviour(stream=1)) as (url, _):
        assert run(capsys, url, tmp_path / "g", "--repeats", "8").code == 0
    assert Ended(capsys, "golden", "record", str(tmp_path / "g/gsm8k.jsonl"), *folder).code == 0
    with served(Behaviour(stream=2)) as (url, server):
        assert run(capsys, url, path.parent, "--repeats", "2").code == 0
        whole = path.read_text().splitlines(keepends=True)
        assert whole[-1].startswith('{"kind":"end"')
        sound = Ended(capsys, "golden", "compare", str(path), *folder).code
        assert sound in (0, 1, 6)
        for lost in (whole[:-1], [*whole[:-1], whole[-1][:30]]):
            path.write_text("".join(lost))
            for command in ("compare", "record"):
                ended = Ended(capsys, "golden", command, str(path), *folder)
                told = " ".join((ended.out + ended.err).split())
                assert ended.code == 7 and f"{path} has no closing line" in told
                assert "run the same command again: it asks nothing twice" in told
            before = sum(server.asked.values())
            again = run(capsys, url, path.parent, "--repeats", "2")
            assert again.code == 0 and sum(server.asked.values()) == before
            assert Ended(capsys, "golden", "compare", str(path), *folder).code == sound


def test_a_server_that_is_gone_when_it_is_asked_who_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(Behaviour()) as (url, _):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dsv4_conformance.accuracy.run.says_now", lambda *_: None)
            ended = run(capsys, url, tmp_path)
        assert ended.code == 7 and "gsm8k.jsonl has no closing line" in ended.err
        assert run(capsys, url, tmp_path).code == 0


def test_a_model_that_changes_in_mid_run_is_invalid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(Behaviour(rename_after=10)) as (url, _):
        ended = run(capsys, url, tmp_path)
    assert ended.code == 7
    assert "served: the run is of the model 'simulated' and the replies name 'simulated-2' in 14" in ended.err


def test_a_run_in_which_everything_failed_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = tuple(f"gsm8k-test-{n}" for n in range(3))
    with served(Behaviour(refuse=refused)) as (url, _):
        ended = run(capsys, url, tmp_path, "--limit", "3")
        assert ended.code == 1 and "No request got a usable reply" in ended.err
        assert run(capsys, url, tmp_path / "4", "--limit", "4").code == 0


def test_single_questions_are_asked_by_themselves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--questions", "gsm8k-test-7, gsm8k-test-3", "--repeats", "2"]
    with served(Behaviour(broken_items=("gsm8k-test-3",))) as (url, server):
        assert run(capsys, url, tmp_path).code == 0
        before = sum(server.asked.values())
        ended = run(capsys, url, tmp_path, *chosen)
        # Their prompts are those of the whole run: the first pass is the same request.
        assert sum(server.asked.values()) - before == 4 and len(server.asked) == GSM8K + 2
        assert ended.code == 0
        assert "gsm8k-test-3: 0 of 2 right, expected 1203: " in ended.out
        assert "gsm8k-test-7: 2 of 2 right, expected 1207: 1207, 1207\n" in ended.out
        for words, told in (
            (["--questions", "gsm8k-test-99"], "There is no question 'gsm8k-test-99' in gsm8k; ids run from"),
            (["--questions", ","], "--questions names none"),
            ([*chosen, "--limit", "3"], "--questions and --limit both say"),
        ):
            refused = run(capsys, url, tmp_path, *words)
            assert refused.code == 2 and told in refused.err
    files = {path.name for path in tmp_path.glob("*.jsonl")}
    assert len(files) == 2 and "gsm8k.jsonl" in files and len(load(tmp_path / "gsm8k.jsonl").answers) == GSM8K


def test_what_can_be_decided_is_said_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden_files.save(tmp_path, golden([[1] * 8] * 40), None)
    words = ["--folder", str(tmp_path), "--model"]
    assert run(capsys, NOBODY, tmp_path, *words, "m").err.startswith("dsv4-conformance: No server answers")
    with served(Behaviour()) as (url, _):
        unknown = run(capsys, url, tmp_path, *words, "m")
        assert unknown.code == 2 and unknown.err.startswith(
            "dsv4-conformance: The server has no model 'm' but simulated"
        )
        err = run(capsys, url, tmp_path, *words[:2]).err
    # Once per process the harness draws an empty bar of its own.
    said = [line for line in err.splitlines() if line.strip() and "%|" not in line]
    assert said[0].startswith("There is no golden of 'simulated' for gsm8k") and "(there is reference)" in said[0]
    assert said[1:3] == [
        "pre-merge: judges after 1 pass; if in doubt, go on with --repeats 2",
        "release: decides nothing after 1 pass; it judges after 2, 4, 8 (--repeats 2)",
    ]
    known = list(forewarned(tmp_path, run_of([[1]] * 40, model="golden model").header, 8))
    assert known[0].startswith("pre-merge: judges after 4 passes, which fails a drop of")
    assert known[0].endswith("points 4 times in 5")
    (others,) = forewarned(tmp_path, run_of([[1]] * 3, model="golden model").header, 8)
    assert others.startswith("Cannot be compared with the golden 'reference'") and "37 questions" in others, (
        "no power is claimed for questions that are not asked"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--deadline", "nan"], "--deadline is nan"),
        (["--deadline", "0"], "--deadline is 0"),
        (["--temperature", "-1"], "--temperature is -1"),
        (["--temperature", "nan"], "--temperature is nan"),
        (["--top-p", "7"], "--top-p is 7"),
        (["--max-tokens", "0"], "--max-tokens is 0"),
        (["--generation", '{"seed": 1}'], "--generation sets seed, which is not sent from there"),
        (["--generation", '{"temperature": 1}', "--temperature", "0"], "an option sets it as well"),
        (["--note", "a=1", "--note", "a=2"], "--note a is given twice"),
        (["--note", "=2"], "--note is '=2'"),
        (["--seed", "-5"], "--seed is -5; give a whole number"),
        (["--folder", "/nonexistent"], "There is no folder /nonexistent; name a golden folder"),
        (["--deadline", "1e-9"], "no reply within 1e-09 s"),
    ],
)
def test_words_that_make_no_sense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    ended = run(capsys, NOBODY, tmp_path, *words)
    assert ended.code == 2 and told in ended.err and ended.err.count("\n") == 1


def record(capsys: pytest.CaptureFixture[str], url: str, folder: Path, *words: str) -> Ended:
    places = ["--results", str(folder / "r"), "--folder", str(folder / "g")]
    return Ended(capsys, "golden", "record", "--task", "gsm8k", "--endpoint", url, *places, *words)


def test_recording_without_a_terminal_says_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    for words, told in (
        ([], "There is no terminal to ask at; pass --yes"),
        (["--passes", "1", "--yes"], "--passes is 1; a golden needs 2 or more"),
        (["--speed", "nan", "--yes"], "--speed is nan"),
        (["--note", "x", "--yes"], "--note is 'x'; give NAME=TEXT"),
    ):
        ended = record(capsys, NOBODY, tmp_path, *words)
        assert ended.code == 2 and told in ended.err
    assert (
        "Too short for profile release, which needs 8 passes." in record(capsys, NOBODY, tmp_path, "--passes", "4").out
    )


def test_a_recording_that_nobody_wants_says_that_nothing_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    ended = record(capsys, NOBODY, tmp_path)
    assert ended.code == 130 and ended.err.endswith("Nothing was asked, and nothing was written.\n")
    assert not (tmp_path / "g").exists() and not (tmp_path / "r").exists()


@pytest.mark.parametrize("command", ["accuracy", "golden"])
def test_no_summary_is_cut_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = Ended(capsys, command, "--help").out.partition("Commands:")[2]
    assert listed.count("\n") > 4 and "..." not in listed


def test_recording_from_a_server_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(Behaviour(down_after=0)) as (url, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr("dsv4_conformance.accuracy.client.LONGEST_WAIT_S", 0.01)
        patch.setattr("dsv4_conformance.accuracy.data._verified", lambda *_: "")
        ended = record(capsys, url, tmp_path, "--yes", "--passes", "3")  # 72 requests
    assert ended.code == 1, ended.err
    assert "The server stopped answering (HTTP 503" in ended.err


def test_what_cannot_be_compared_is_said_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(Behaviour()) as (url, _):
        assert run(capsys, url, tmp_path / "g", "--repeats", "2").code == 0
        recorded = Ended(
            capsys, "golden", "record", str(tmp_path / "g/gsm8k.jsonl"), "--folder", str(tmp_path), "--speed", "0"
        )
        assert recorded.code == 2 and "--speed is 0" in recorded.err
        assert Ended(capsys, "golden", "record", str(tmp_path / "g/gsm8k.jsonl"), "--folder", str(tmp_path)).code == 0
        folder = ["--folder", str(tmp_path)]
        warmer = run(capsys, url, tmp_path / "a", *folder, "--temperature", "0.5")
        told = "Cannot be compared with the golden 'simulated.gsm8k', whatever is answered: fingerprint.temperature is"
        assert told in warmer.err
        assert "Cannot be compared" not in run(capsys, url, tmp_path / "b", *folder).err


def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path: Path) -> None:
    made = written(run_of([[1] * 4] * 40, endpoint="completions"), tmp_path / "run.jsonl")
    golden_files.save(tmp_path, golden([[1] * 4] * 40), None)
    words = [sys.executable, "-m", "dsv4_conformance.cli", "golden"]
    for command, code in (
        ([*words, "show", "reference", "--folder", str(tmp_path)], 0),
        ([*words, "compare", str(made), "--golden", "reference", "--folder", str(tmp_path), "--json"], 7),
    ):
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
        os.close(writing)
        assert (done.returncode, done.stderr) == (code, "")


def test_a_run_outside_a_checkout_prints_nothing_of_git(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "dsv4_conformance.cli",
        "accuracy",
        "run",
        "--unverified-data",
        "--model",
        "simulated",
    ]
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with served(Behaviour()) as (url, _):
        done = subprocess.run(
            [*words, "--endpoint", url], cwd=tmp_path, capture_output=True, text=True, env=path, check=False
        )
    assert done.returncode == 0 and "git" not in done.stderr
    assert all(json.loads(line) for line in (tmp_path / "dsv4-accuracy/gsm8k.jsonl").read_text().splitlines())
