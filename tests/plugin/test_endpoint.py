"""The accuracy suite under pytest: what is planned, and what each verdict does to report and exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4_conformance.plugin.journal import read_journal
from dsv4_conformance.status import Status
from tests.plugin.conftest import PLUGINS

ROOT = Path(__file__).resolve().parents[2]
NAMED = ["--dsv4-endpoint", "http://127.0.0.1:9/v1", "--dsv4-model", "m"]

CONFTEST = '''
"""A server that answers as VERDICT says, without one."""
import os, sys

sys.path.insert(0, {root!r})
from dsv4_conformance.accuracy import gate, obtaining, preflight, probe, pump, reading
from dsv4_conformance.accuracy.profiles import rule_of
from tests.accuracy.made import golden, run_of

N = 400
LOST = {{"PASS": 0, "FAIL": 50, "INCONCLUSIVE": 3}}


def judgement_of(url, model, task, profile, folder, answers, **other):
    with (answers / f"{{task}}.asked").open("a") as file:
        file.write("x")
    (answers / f"{{task}}.told").write_text(repr([other[name] for name in ("notes", "same_build", "run")]))
    verdict = os.environ["VERDICT"]
    if verdict == "GONE":
        raise pump.ServerGone("64 requests in a row failed")
    if verdict == "SILENT":
        raise probe.NotAsAsked("Asked for, and the server's reply has no reasoning; do, or run with --no-thinking.")
    if verdict == "EDITED":
        raise reading.Edited("run.jsonl, line 7 was edited")
    if verdict == "NO GOLDEN":
        raise obtaining.NoGolden("There is no golden of 'm'")
    rule = rule_of("pre-merge", "gsm8k")
    before = golden([[1] * 4] * N, task=task)
    if verdict == "INVALID":
        return gate.judge(before, run_of([[1]] * N, task=task, endpoint="completions"), rule, profile)
    lost = LOST[verdict]
    return gate.judge(before, run_of([[1]] * (N - lost) + [[0]] * lost, task=task), rule, profile)


obtaining.judgement_of = judgement_of
if os.environ["VERDICT"] != "NOBODY":
    preflight.preflight = lambda *_: None
'''


class Ran:
    """One pytest process on the accuracy suite."""

    def __init__(self, folder: Path, *words: str, verdict: str = "PASS") -> None:
        (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
        (folder / "conftest.py").write_text(CONFTEST.format(root=str(ROOT)))
        (folder / "test_accuracy.py").write_text((ROOT / "suites/accuracy/test_accuracy.py").read_text())
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "accuracy")])
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *PLUGINS, *words],
            cwd=folder,
            env={**inherited, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "VERDICT": verdict, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        self.code, self.out = done.returncode, done.stdout + done.stderr
        self.folder = folder / "dsv4-results"

    @property
    def statuses(self) -> dict[str, set[Status]]:
        """Statuses per requirement."""
        found: dict[str, set[Status]] = {}
        for result in read_journal(self.folder / "journal.jsonl").results:
            found.setdefault(result.requirement, set()).add(result.status)
        return found


@pytest.mark.parametrize(
    ("verdict", "status", "code", "told"),
    [
        ("PASS", Status.PASS, 0, "PASS: GSM8K is not worse than the golden"),
        ("FAIL", Status.FAIL, 1, "FAIL: GSM8K is down 12.50 points"),
        ("INCONCLUSIVE", Status.INCONCLUSIVE, 6, "INCONCLUSIVE: GSM8K may or may not be worse by 1 point"),
        ("INVALID", Status.INVALID, 7, "endpoint is 'completions', in the golden 'chat'"),
        ("GONE", Status.INVALID, 7, "what was answered is kept: go on with --dsv4-answers "),
        ("SILENT", Status.INVALID, 7, "the server's reply has no reasoning"),
        ("NO GOLDEN", Status.INVALID, 7, "There is no golden of 'm'; to judge aime25 alone, add -k aime25."),
        ("EDITED", Status.INVALID, 7, "run.jsonl, line 7 was edited"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 13 else "",
)
def test_each_verdict_has_its_status_and_exit_code(
    tmp_path: Path, verdict: str, status: Status, code: int, told: str
) -> None:
    ran = Ran(tmp_path, *NAMED, verdict=verdict)
    assert ran.code == code, ran.out
    assert ran.statuses["INV-130"] == {status}
    assert len(ran.statuses) == 5
    others = {Status.INVALID} if status is Status.INVALID else {Status.PASS}
    assert ran.statuses["INV-134"] == others, "each requirement has its own verdict"
    out = " ".join(ran.out.split())
    assert told in out and "skipped" not in out
    assert f"accuracy: gsm8k {status}, aime25 {status}\n" in ran.out, "every task is named, with a verdict or without"
    ended = {0: "PASSED IN PART", 1: "DOES NOT QUALIFY", 6: "INCONCLUSIVE, which is", 7: "INVALID COMPARISON"}
    assert ended[code] in out
    assert (" failed" in ran.out.splitlines()[-1]) == (code != 0)


@pytest.mark.parametrize("words", [["--dsv4-answers", "mine"], ["-n", "2"]], ids=["one process", "two workers"])
def test_a_task_is_run_once_for_all_its_requirements(tmp_path: Path, words: list[str]) -> None:
    ran = Ran(tmp_path, *NAMED, *words)
    assert ran.code == 0, ran.out
    (answers,) = [tmp_path / "mine"] if "mine" in words else ran.folder.glob("answers-*")
    asked = {path.name: len(path.read_text()) for path in answers.glob("*.asked")}
    assert set(asked) == {"gsm8k.asked", "aime25.asked"}
    assert all(count <= (2 if "-n" in words else 1) for count in asked.values()), (
        "a second worker resumes, it does not repeat"
    )


def test_the_build_is_told_to_every_worker(tmp_path: Path) -> None:
    notes = ["--dsv4-note", "commit=a1", "--dsv4-note", "gpu=h=2"]
    ran = Ran(tmp_path, *NAMED, *notes, "--dsv4-answers", "mine", "--dsv4-same-build", "-n", "2")
    assert ran.code == 0, ran.out
    said = {path.read_text() for path in (tmp_path / "mine").glob("*.told")}
    (one,) = said  # one run, whatever the number of its workers
    assert one.startswith("[{'commit': 'a1', 'gpu': 'h=2'}, True, '") and not one.endswith("'']")


def test_every_run_asks_anew(tmp_path: Path) -> None:
    first, second = Ran(tmp_path, *NAMED), Ran(tmp_path, *NAMED)
    assert len(list(second.folder.glob("answers-*"))) == 2 and first.code == second.code == 0


def test_without_a_server_a_release_does_not_qualify(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "--dsv4-profile", "release")
    assert ran.code == 1
    assert ran.statuses["INV-130"] == {Status.UNSUPPORTED_REQUIRED}
    assert "No server was named with --dsv4-endpoint; profile release makes accuracy mandatory." in ran.out


def test_without_a_server_it_is_not_selected_and_the_report_says_so(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "from dsv4_conformance.suite import requirement\n"
        "@requirement('INV-51', on=('HeadLayout',), cases='heads')\n"
        "def test_heads(subject, case):\n    subject.expect(True, '')\n"
    )
    ran = Ran(tmp_path, "--dsv4-profile", "default")
    assert ran.code == 0, ran.out
    assert set(ran.statuses) == {"INV-51"}
    told = {n.what: n.reason for n in read_journal(ran.folder / "journal.jsonl").header.not_selected}
    assert {told[f"INV-{n}"] for n in range(130, 135)} == {"no server was named with --dsv4-endpoint"}
    assert "no server was named with --dsv4-endpoint" in ran.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--dsv4-model", "m"], "--dsv4-model goes with --dsv4-endpoint"),
        (["--dsv4-endpoint", " "], "The value of --dsv4-endpoint is empty"),
        ([*NAMED[:2], "--dsv4-weights", ""], "The value of --dsv4-weights is empty"),
        ([*NAMED, "--dsv4-note", "commit"], "--dsv4-note is 'commit'; give NAME=TEXT."),
        (["--dsv4-note", "a=b"], "--dsv4-note goes with --dsv4-endpoint"),
        ([*NAMED, "--dsv4-same-build"], "--dsv4-same-build goes with --dsv4-answers"),
    ],
)
def test_words_that_make_no_sense_are_refused(tmp_path: Path, words: list[str], sentence: str) -> None:
    ran = Ran(tmp_path, *words)
    assert ran.code == 2 and sentence in ran.out


@pytest.mark.parametrize("words", [[], ["-n", "2"]], ids=["one process", "two workers"])
def test_what_would_end_a_run_at_its_first_question_ends_it_before_it_begins(tmp_path: Path, words: list[str]) -> None:
    ran = Ran(tmp_path, *NAMED, *words, verdict="NOBODY")
    assert ran.code == 2 and not ran.folder.exists()
    assert ran.out.strip().startswith("dsv4-conformance: No server answers at http://127.0.0.1:9/v1/models")
    assert ran.out.strip().count("\n") == 0
    other = tmp_path / "g"
    (other / "accuracy").mkdir(parents=True)
    (other / "accuracy" / "edited.json").write_text("{}")
    ran = Ran(tmp_path, *NAMED, "--dsv4-golden", str(other), *words, verdict="NOBODY")
    assert ran.code == 2 and "edited.json has format None" in ran.out and ran.out.strip().count("\n") == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--dsv4-golden", "typo"], "There is no folder {}/typo; name a golden folder with --dsv4-golden"),
        (["--dsv4-golden", "."], "{} holds no accuracy golden (accuracy/NAME.json); record one into it with"),
        (["--dsv4-answers", "file/x"], "{}/file/x cannot be written (Not a directory); name another folder with"),
    ],
)
def test_folders_that_cannot_be_used_are_refused_before_the_run(tmp_path: Path, words: list[str], told: str) -> None:
    (tmp_path / "file").write_text("")
    ran = Ran(tmp_path, *NAMED, *words, verdict="NOBODY")
    assert ran.code == 2 and not ran.folder.exists()
    assert ran.out.strip().startswith(f"dsv4-conformance: {told.format(tmp_path)}"), ran.out
    assert ran.out.strip().count("\n") == 0


def test_remedies_name_options_that_pytest_knows(tmp_path: Path) -> None:
    ran = Ran(tmp_path, *NAMED, verdict="NOBODY")
    assert "correct --dsv4-endpoint." in ran.out
    ran = Ran(tmp_path, *NAMED, verdict="SILENT")
    out = " ".join(ran.out.split())
    assert "with --dsv4-golden; what was answered" in out and "--no-thinking" not in out


def test_the_record_holds_the_numbers(tmp_path: Path) -> None:
    note = ["--dsv4-note", "commit=a b"]
    ran = Ran(tmp_path, *NAMED, *note, verdict="FAIL")
    results = read_journal(ran.folder / "journal.jsonl").results
    (record,) = (r.record for r in results if r.requirement == "INV-130" and "gsm8k" in r.nodeid)
    accuracy = json.loads(json.dumps(record))["accuracy"]
    assert (accuracy["verdict"], accuracy["golden"]["name"]) == ("FAIL", "reference")
    assert accuracy["score"]["difference"] == pytest.approx(-0.125) and len(accuracy["score"]["lost"]) == 50
    reproducer = next(r.reproducer for r in results if r.requirement == "INV-130")
    assert reproducer.endswith("--endpoint http://127.0.0.1:9/v1 --model m -- --dsv4-note 'commit=a b'")
    assert "accuracy: gsm8k FAIL, aime25 FAIL\n" in ran.out
