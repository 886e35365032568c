"""What only whole processes show: a killed run, a process without torch, lm-eval's own command line."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsv4_conformance.accuracy.reading import load
from dsv4_conformance.accuracy.simulator.behaviour import Behaviour
from dsv4_conformance.accuracy.tasks import TASK_FILES
from dsv4_conformance.cli import main
from tests.accuracy.served import GSM8K, served

pytestmark = pytest.mark.usefixtures("questions")

CLI = [sys.executable, "-m", "dsv4_conformance.cli"]
ROOT = Path(__file__).resolve().parents[2]


def command(url: str, results: Path, *words: str) -> list[str]:
    asked = ["--endpoint", url, "--results", str(results), "--unverified-data"]
    return [*CLI, "accuracy", "run", *asked, "--concurrency", "4", *words]


def run(words: list[str], expected: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == expected, done.stdout + done.stderr
    return done


def test_a_killed_run_goes_on_and_asks_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "results" / "gsm8k.jsonl"
    with served(Behaviour(latency_s=0.05)) as (url, server):
        killed = subprocess.Popen(command(url, path.parent, "--repeats", "4"), cwd=ROOT, stderr=subprocess.PIPE)
        while not path.exists() or len(path.read_bytes().splitlines()) < 20:
            assert killed.poll() is None, killed.stderr and killed.stderr.read()
            time.sleep(0.02)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        kept = load(path).answers
        assert 15 < len(kept) < 4 * GSM8K
        before = dict(server.asked)
        run(command(url, path.parent, "--repeats", "4"))
        again = {request for request, count in server.asked.items() if count > before.get(request, 0)}
        assert not again & {answer.request for answer in kept}, "what was answered is not asked again"
    with served(Behaviour()) as (url, _):
        seed = str(load(path).header.seed)
        assert exits(command(url, tmp_path / "whole", "--repeats", "4", "--seed", seed)[3:]) == 0
    whole = load(tmp_path / "whole" / "gsm8k.jsonl")
    resumed = load(path)
    assert {a.key: (a.request, a.text) for a in resumed.answers} == {a.key: (a.request, a.text) for a in whole.answers}


@pytest.mark.parametrize(
    ("sent", "code", "told"), [(signal.SIGINT, 130, "Interrupted."), (signal.SIGTERM, -15, "Ended by SIGTERM.")]
)
def test_a_run_that_is_stopped_says_that_its_answers_are_kept(
    tmp_path: Path, sent: signal.Signals, code: int, told: str
) -> None:
    path = tmp_path / "results" / "gsm8k.jsonl"
    with served(Behaviour(latency_s=0.1)) as (url, _):
        words = command(url, path.parent, "--quiet")
        stopped = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        while not path.exists() or len(path.read_bytes().splitlines()) < 5:
            assert stopped.poll() is None, stopped.stderr and stopped.stderr.read()
            time.sleep(0.02)
        stopped.send_signal(sent)
        _, err = stopped.communicate(timeout=30)
    assert stopped.returncode == code and load(path).answers
    said = f"dsv4-conformance: {told} What was answered is kept in {path.parent}; run the same command again to go on."
    assert err.splitlines()[-1] == said and "Traceback" not in err


BLOCK = """
import builtins, importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers"):
            raise RuntimeError(f"{name} is imported")
sys.meta_path.insert(0, Block())
from dsv4_conformance.cli import main
main(sys.argv[1:])
"""


def test_without_the_extra_every_command_that_needs_it_says_how_to_get_it(tmp_path: Path) -> None:
    asked = ["--endpoint", "http://127.0.0.1:9/v1"]
    commands = [
        ["accuracy", "run", *asked],
        ["accuracy", "probe", *asked],
        ["accuracy", "rehearse"],
        ["golden", "record", "--task", "gsm8k", *asked, "--yes"],
    ]
    program = (
        "import sys\n"
        "sys.modules['aiohttp'] = None\n"
        "from dsv4_conformance.cli import main\n"
        f"for words in {commands!r}:\n"
        "    try:\n"
        "        main(words)\n"
        "    except SystemExit as ended:\n"
        "        print(ended.code)\n"
    )
    done = run([sys.executable, "-c", program])
    assert done.stdout.split() == ["2"] * len(commands), done.stderr
    said = done.stderr.splitlines()
    assert len(said) == len(commands) and len(set(said)) == 1
    assert said[0].startswith("dsv4-conformance: Accuracy runs need lm-eval, datasets and aiohttp (")
    assert said[0].endswith("install them with `pip install 'dsv4-conformance[accuracy]'`.")


@pytest.mark.parametrize("task", ["gsm8k", "aime25"])
def test_neither_torch_nor_transformers_is_looked_for(tmp_path: Path, task: str) -> None:
    with served(Behaviour()) as (url, _):
        for words in (command(url, tmp_path, "--task", task), [*CLI, "accuracy", "probe", "--endpoint", url]):
            done = run([sys.executable, "-c", BLOCK, *words[3:]])
            assert "Traceback" not in done.stderr
    run([sys.executable, "-c", BLOCK, "simulate-server", "--help"])
    with pytest.raises(AssertionError, match="torch is imported"):  # the block works
        run([sys.executable, "-c", BLOCK.replace("main(sys.argv[1:])", "import torch")])


def test_lm_evals_own_command_runs_the_task_files_and_scores_the_same(tmp_path: Path) -> None:
    with served(Behaviour(drop=30.0, no_answer=0.1)) as (url, _):
        assert exits(command(url, tmp_path / "ours", "--seed", "1000")[3:]) == 0
        arguments = f"model=simulated,base_url={url}/chat/completions,num_concurrent=4,seed=1000,max_retries=3"
        words = [sys.executable, "-m", "lm_eval", "run", "--model", "local-chat-completions", "--model_args", arguments]
        words += ["--include_path", str(TASK_FILES), "--tasks", "dsv4_gsm8k", "--apply_chat_template"]
        words += ["--metadata", '{"verify": false}', "--output_path", str(tmp_path / "theirs")]
        run(words)
    (results,) = (tmp_path / "theirs").rglob("results_*.json")
    theirs = json.loads(results.read_text())["results"]["dsv4_gsm8k"]
    ours = load(tmp_path / "ours" / "gsm8k.jsonl").answers
    assert 0 < sum(answer.correct for answer in ours) < GSM8K
    assert theirs["exact_match,all"] == pytest.approx(sum(answer.correct for answer in ours) / GSM8K)
    assert theirs["no_answer,all"] == pytest.approx(sum(answer.answer is None for answer in ours) / GSM8K)


def test_the_simulated_server_says_when_it_is_ready_and_stops_when_told() -> None:
    words = ["simulate-server", "--port", "0", "--unverified-data", "--task", "gsm8k", "--drop", "1"]
    blocked = [sys.executable, "-c", BLOCK, *words]
    process = subprocess.Popen(blocked, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("ready: http://127.0.0.1:") and ready.endswith(
            "/v1 (24 questions of gsm8k; drop 1.0)\n"
        )
        run([*CLI, "accuracy", "probe", "--endpoint", ready.split()[1]])
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


def exits(words: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_exit_codes_and_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(Behaviour(ignore_thinking=True)) as (url, _):
        assert exits(command(url, tmp_path, "--task", "aime25")[3:]) == 7
        assert capsys.readouterr().err.startswith("dsv4-conformance: Thinking is asked for")
        assert exits(["accuracy", "probe", "--endpoint", url, "--task", "aime25"]) == 7
        assert capsys.readouterr().err.startswith("dsv4-conformance: Thinking is asked for")
        for words, sentence in (
            (["--generation", "{"], "--generation is not JSON"),
            (["--generation", "[]"], "--generation is no JSON object"),
            (["--note", "x"], "--note is 'x'; give NAME=TEXT."),
            (["--kind", "embeddings"], "--kind is 'embeddings'"),
            (["--task", "mmlu"], "There is no task 'mmlu'"),
        ):
            assert exits(command(url, tmp_path, *words)[3:]) == 2
            told = capsys.readouterr().err
            assert told.startswith(f"dsv4-conformance: {sentence}") and told.count("\n") == 1
    with served(Behaviour(down_after=0)) as (url, _):
        assert exits(command(url, tmp_path / "down", "--tries", "1", "--quiet")[3:]) == 1
    assert "The server stopped answering (HTTP 503: The engine is down. (1 try))" in capsys.readouterr().err
    assert load(tmp_path / "down" / "gsm8k.jsonl").answers == ()


def test_what_a_run_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(Behaviour(refuse=("gsm8k-test-3",), truncate=0.5)) as (url, _):
        assert exits(command(url, tmp_path, "--quiet")[3:]) == 0
    lines = capsys.readouterr().out.splitlines()
    answers = load(tmp_path / "gsm8k.jsonl").answers
    right, cut = sum(a.correct for a in answers), sum(a.status == "truncated" for a in answers)
    first = [f"{a.item} in pass 1" for a in answers if a.status == "truncated"][:8]
    more = f" and {cut - 8} more" if cut > 8 else ""
    assert lines[:6] == [
        f"gsm8k: {right} of 24, {100 * right / 24:.2f} % right, {cut} truncated, 1 failed",
        "asked 24 now, reused 0 answers",
        f"cut off at the token limit: {', '.join(first)}{more}; --max-tokens raises the limit, and the golden has "
        "to be recorded with the same one",
        "first error, at gsm8k-test-3: HTTP 400: This prompt cannot be served; --retry-errors asks these again",
        "1 of 24 requests failed (4.17 %): above 0.5 % a comparison is INVALID, so ask these again with --retry-errors",
        "The questions are not verified.",
    ]
    assert lines[6].startswith(f"answers: {tmp_path / 'gsm8k.jsonl'} (fingerprint ")
    assert lines[6].endswith(f", first seed {load(tmp_path / 'gsm8k.jsonl').header.seed})")
