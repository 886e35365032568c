"""``doctor``: what it prints, all problems at once, exit codes, JSON, and a documentation that names every setting."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4_conformance.cli import doctor as command_module
from dsv4_conformance.cli.doctor_text import _spans, size, surfaces
from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations import gpus
from dsv4_conformance.implementations.api import SURFACE_METHODS
from dsv4_conformance.mla.config import examine
from dsv4_conformance.mla.config_checks import Deployment
from dsv4_conformance.spec.engine_settings import OPTIONAL, REQUIRED
from dsv4_conformance.spec.geometry import FLASH, PRO
from tests.cli.conftest import ROOT, Done
from tests.spec.configs import flash, written


def doctor(*words: str, **environment: str) -> Done:
    """The command in a process of its own, 120 columns wide, without a GPU."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "DSV4_"))}
    given = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120", **environment}
    words = ("-m", "dsv4_conformance.cli", "doctor", *words)
    return subprocess.run([sys.executable, *words], env=inherited | given, capture_output=True, text=True, check=False)


def line(text: str, start: str) -> str:
    """The one line that starts so, its gaps closed."""
    (found,) = [" ".join(one.split()) for one in text.splitlines() if one.startswith(start)]
    return found


# Kills: numbers of another model or rank, a reason left out, exit code 1 for a sound deployment.
def test_a_sound_deployment_is_described() -> None:
    done = doctor("--config", "pro", "--tp", "8", "--context", "131072", "--requests", "8", "--device", "sm100")
    assert done.returncode == 0, done.stdout + done.stderr
    text = done.stdout
    assert text.startswith("pro on sm100: tp 8, page size 256\n")
    assert line(text, "heads") == "heads attention-TP 8: 16 on each rank, padded to 64, 96 KiB more per query row"
    assert line(text, "decode") == "decode flash_mla sm100, 64 heads"
    assert line(text, "sparse prefill ") == "sparse prefill on: the default"
    assert line(text, "C4  ") == "C4 30 160000 yes 128 window + 1024 of at most 32,768 entries"
    assert line(text, "C0") == "C0 1 draft 10000 no 128 window"
    assert line(text, "C4 entries") == "C4 entries 30 37,440 4387.5 548 MiB 4.28 GiB"
    assert line(text, "workspace") == "workspace 265 MiB at most: 8 requests at 131,072 tokens, 8,192 tokens in flight"
    assert line(text, "SparsePrefillWorkspace").startswith("SparsePrefillWorkspace yes INV-")
    assert text.splitlines()[-1] == "FINE: nothing is wrong with it"


# Kills: the switch not read from the environment, suites of a path that is off.
def test_the_switch_of_the_environment_counts() -> None:
    done = doctor("--config", "flash", "--device", "sm90", DSV4_SPARSE_PREFILL="0")
    assert done.returncode == 0
    assert line(done.stdout, "sparse prefill ") == "sparse prefill off: DSV4_SPARSE_PREFILL switches it off"
    assert "SparsePrefillWorkspace no: sparse prefill is off" in " ".join(done.stdout.split())
    assert "warning" not in done.stdout


# Kills: all problems but the first lost, exit code 0, problems without a remedy.
def test_all_problems_are_listed_with_exit_code_1(tmp_path: Path) -> None:
    path = written(flash() | {"head_dim": 576}, tmp_path)
    done = doctor("--config", str(path), "--tp", "3", "--page-size", "64", "--device", "sm90", DSV4_SPARSE_PREFILL="x")
    assert done.returncode == 1
    found = re.findall(r"^problem: (\S+)", done.stdout, re.MULTILINE)
    assert found == ["head_dim", "page_size", "DSV4_SPARSE_PREFILL", "attention-TP"]
    assert done.stdout.splitlines()[-1] == "WRONG: 4 problems"


# Kills: a traceback or exit code 1 for what cannot be read.
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--config", "flahs"), "neither built in (flash, pro, tiny) nor an existing path"),
        (("--config", "flash", "--device", "gfx942"), "device 'gfx942' is unknown; use one of sm90"),
        (("--config", "missing_topk.json"), "index_topk is missing"),
        (("--config", "missing_two.json"), "index_topk and rms_norm_eps are missing; add them to the config.json"),
        (("--tp", "8"), "Missing option '--config'"),
    ],
)
def test_bad_input_is_one_sentence_with_exit_code_2(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "missing_topk.json").write_text(json.dumps({k: v for k, v in flash().items() if k != "index_topk"}))
    two = {k: v for k, v in flash().items() if k not in ("index_topk", "rms_norm_eps")}
    (tmp_path / "missing_two.json").write_text(json.dumps(two))
    words = tuple(str(tmp_path / word) if word.endswith(".json") else word for word in words)
    done = doctor(*words)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


# Kills: models that are all called by the folder that their configs were put into.
def test_a_model_is_called_by_its_folder_or_its_own_file(tmp_path: Path) -> None:
    path = written(flash(), tmp_path)
    assert doctor("--config", str(path)).stdout.startswith(f"{tmp_path.name} on ")
    path.rename(tmp_path / "mine.json")
    assert doctor("--config", str(tmp_path / "mine.json")).stdout.startswith("mine on ")


# Kills: JSON beside text, other numbers than the text has, problems or surfaces left out.
def test_json_has_it_all() -> None:
    done = doctor("--config", "flash", "--tp", "8", "--cp", "2", "--page-size", "64", "--device", "sm90", "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 1 and len(data["problems"]) == 1 and len(data["warnings"]) == 1
    assert (data["model"], data["deployment"]["cp"]) == ("flash", 2)
    assert (data["settings"]["attention_tp"], data["settings"]["padded_heads"]) == (4, 64)
    assert set(data["surfaces"]) == set(SURFACE_METHODS)
    assert data["surfaces"]["SparsePrefill"]["applies"] is False and data["surfaces"]["SparseDecode"]["applies"]
    assert "INV-82" in data["surfaces"]["EngineConfig"]["requirements"]


# Kills: an adapter's author reading names that no engine is asked for, or missing one.
def test_documentation_names_every_setting() -> None:
    text = (ROOT / "docs" / "cli.md").read_text().split("### Settings by name")[1]
    rows = re.findall(r"^\| `(\w+)` \| (always|if known) \| (.*) \|$", text, re.MULTILINE)
    wanted = [(name, "always", what) for name, what in REQUIRED.items()]
    assert rows == wanted + [(name, "if known", what) for name, what in OPTIONAL.items()]


# Kills: a GPU taken for another family's, an unknown one taken for any.
@pytest.mark.parametrize(
    ("capability", "device"), [((9, 0), "sm90"), ((10, 0), "sm100"), ((10, 3), "sm100"), ((12, 1), "sm120")]
)
def test_auto_is_the_visible_gpu(capability: tuple[int, int], device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "visible_gpus", lambda: ["GPU-1"])
    monkeypatch.setattr(gpus, "compute_capability", lambda uuid: capability)
    assert command_module._device("auto") == device
    monkeypatch.setattr(gpus, "compute_capability", lambda uuid: (8, 0))
    with pytest.raises(BadInput, match=r"compute capability 8\.0; name a known device with --device"):
        command_module._device("auto")
    monkeypatch.setattr(gpus, "visible_gpus", list)
    assert command_module._device("auto") == "cpu"


# Kills: suites of a compressor for a model that has none.
def test_surfaces_follow_the_layers() -> None:
    plain = replace(PRO, compress_ratios=(0,) * 62)
    found = surfaces(plain, examine(plain, Deployment(device="cpu"), {}).values)
    assert {name for name, (why, _) in found.items() if why} == {
        "Compressor",
        "SlotMapping",
        "Indexer",
        "IndexKeyFormat",
    }
    found = surfaces(FLASH, examine(FLASH, Deployment(device="cpu"), {}).values)
    assert not any(why for why, _ in found.values())


# Kills: a unit too far, digits lost, runs of ids that end too early.
def test_small_forms() -> None:
    assert [size(n) for n in (0, 1000, 1023, 1024, 1536, 2**20, 13178880, 2**40)] == [
        "0 B",
        "1000 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "1 MiB",
        "12.6 MiB",
        "1 TiB",
    ]
    assert _spans(["INV-01", "INV-02", "INV-03", "INV-51", "INV-52", "INV-100"]) == "INV-01 to 03, 51, 52, 100"
