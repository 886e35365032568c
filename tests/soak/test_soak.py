"""The command from end to end, in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsv4_conformance.cli import main

ROOT = Path(__file__).resolve().parents[2]


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dsv4_conformance.cli", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def done(folder: Path, *words: str) -> tuple[int, str]:
    process = start(folder, *words)
    said, _ = process.communicate(timeout=240)
    return process.returncode, said


# Kills: what engines log, a line per case, among the lines of progress.
def test_what_an_engine_logs_is_not_shown(tmp_path: Path) -> None:
    code, said = done(tmp_path, "soak", "--device", "cpu", "--cases", "60", "--surface", "EngineConfig")
    assert code == 0 and "60 cases judged" in said and "DSV4_SPARSE_PREFILL is set" not in said, said


# Kills: bugs that are not found, not shrunk, not kept, or that the kept file does not show again.
def test_a_planted_bug_is_found_shrunk_and_kept(tmp_path: Path) -> None:
    impl = ["--impl", "tests.miniatures:LastBlockLost", "--device", "cpu"]
    code, said = done(tmp_path, "soak", *impl, "--cases", "40", "--surface", "SparsePrefill", "--max-failures", "6")
    assert code == 1, said
    assert "FAIL test_output_lse_and_max_logits_follow_the_formula" in said
    files = [json.loads(path.read_text()) for path in (tmp_path / "dsv4-soak/failures").glob("*.json")]
    small = next(data for data in files if data["requirement"] == "INV-01")
    assert small["case"]["s_q"] == small["case"]["window"]["slots"] == 1 and small["drawn"] != small["case"]
    path = f"dsv4-soak/failures/{small['case_id']}.json"
    assert f"dsv4-conformance repro {path} --impl tests.miniatures:LastBlockLost --device cpu" in said
    again, told = done(tmp_path, "repro", path, *impl)
    assert again == 1 and "the last key" in told.lower(), told
    (hint,) = {line.strip().removeprefix("re-run: ") for line in told.splitlines() if "dsv4-conformance repro" in line}
    words = hint.split()[1:]
    assert words[1].endswith(path) and done(tmp_path, *words)[0] == 1, hint
    right, told = done(tmp_path, "repro", path, "--device", "cpu")
    assert right == 0, told


# Kills: soaks that begin anew, go on with another one, or overwrite it.
def test_a_soak_goes_on_where_it_was(tmp_path: Path) -> None:
    words = ["soak", "--device", "cpu", "--surface", "SlotMapping", "--surface", "HeadLayout"]
    assert done(tmp_path, *words, "--cases", "30")[0] == 0
    code, said = done(tmp_path, *words, "--cases", "50")
    assert code == 2 and "--resume" in said
    code, said = done(tmp_path, *words, "--cases", "50", "--resume", "--seed", "1")
    assert code == 2 and "its seed is 0, not 1" in said
    code, said = done(tmp_path, *words, "--cases", "50", "--resume")
    assert code == 0 and "0 failed" in said
    chunks = [json.loads(line) for line in (tmp_path / "dsv4-soak/soak.jsonl").read_text().splitlines()[1:]]
    assert sorted(line["chunk"] for line in chunks) == list(range(len(chunks)))
    assert 50 <= sum(sum(line["statuses"].values()) for line in chunks) < 100


# Kills: a soak that ends with the process that ran a case, or does not say which case it was.
def test_a_case_that_ends_its_process_is_kept(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os\nfrom dsv4_conformance.implementations.builtin import Builtin\n\n\n"
        "class Deadly(Builtin):\n"
        "    surfaces = {'SparsePrefill': Builtin.surfaces['SparsePrefill']}\n\n"
        "    def prefill(self, call):\n"
        "        if call.q.shape[1] == 128:\n            os.abort()\n"
        "        return super().prefill(call)\n"
    )
    code, said = done(
        tmp_path, "soak", "--impl", "deadly:Deadly", "--device", "cpu", "--cases", "60", "--max-failures", "1"
    )
    assert code == 1, said
    assert "died of SIGABRT while it ran this case" in said
    (kept,) = [json.loads(path.read_text()) for path in (tmp_path / "dsv4-soak/failures").glob("*.json")]
    assert kept["status"] == "CRASH"


# Kills: crashed cases, and those before and after them, that count for nothing; a soak that never has enough of them.
def test_cases_around_crashes_count(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os\nfrom dsv4_conformance.implementations.builtin import Builtin\n\n\n"
        "class Deadly(Builtin):\n"
        "    surfaces = {name: Builtin.surfaces[name] for name in ('HeadLayout', 'SlotMapping')}\n\n"
        "    def compressed_slots(self, *given, **named):\n"
        "        os.abort()\n"
    )
    code, said = done(tmp_path, "soak", "--impl", "deadly:Deadly", "--device", "cpu", "--cases", "20")
    assert code == 1, said
    lines = [json.loads(line) for line in (tmp_path / "dsv4-soak/soak.jsonl").read_text().splitlines()[1:]]
    chunks = [line for line in lines if "chunk" in line]
    assert [line["chunk"] for line in chunks] == list(range(len(chunks)))
    counted = {name: sum(line["statuses"].get(name, 0) for line in chunks) for name in ("PASS", "CRASH", "NOT_RUN")}
    assert counted["CRASH"] == sum("test" in line for line in lines) >= 3 and counted["NOT_RUN"] == 0
    assert counted["PASS"] > 0 and 20 <= counted["PASS"] + counted["CRASH"] < 40
    assert f"{counted['CRASH']:,} CRASH, {counted['PASS']:,} PASS" in said and f"{counted['CRASH']} failed" in said


# Kills: what was found before, told by nobody, when no process can take the place of one that ended.
def test_a_soak_that_cannot_go_on_tells_what_it_found(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os\nfrom pathlib import Path\n"
        "from dsv4_conformance.implementations.builtin import Builtin\n\n\n"
        "class Deadly(Builtin):\n"
        "    surfaces = {'SlotMapping': Builtin.surfaces['SlotMapping']}\n\n"
        "    def __init__(self, device):\n"
        "        super().__init__(device)\n"
        "        Path('begun').exists() and os._exit(3)\n\n"
        "    def compressed_slots(self, *given, **named):\n"
        "        Path('begun').touch()\n"
        "        os.abort()\n"
    )
    code, said = done(tmp_path, "soak", "--impl", "deadly:Deadly", "--device", "cpu", "--cases", "40")
    assert code == 1 and "1 failed" in said and "died of SIGABRT" in said, said
    assert "3 workers of the soak ended one after another" in said


# Kills: Ctrl-C without a summary, or workers that live on.
def test_ctrl_c_ends_with_the_summary(tmp_path: Path) -> None:
    process = start(tmp_path, "soak", "--device", "cpu", "--surface", "SlotMapping", "--cases", "1000000")
    log = tmp_path / "dsv4-soak/soak.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (log.exists() and len(log.read_text().splitlines()) > 3):
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "interrupted; go on with the same command and --resume" in said and "cases judged" in said


def test_words_that_make_no_sense_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, says in (
        (["--surface", "Nothing"], "does not offer 'Nothing'"),
        (["-n", "none"], "no number of processes"),
        (["--size", "huge"], "choose auto, laptop or gpu"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["soak", "--device", "cpu", *words])
        said = capsys.readouterr().err
        assert ended.value.code == 2 and says in said, said
