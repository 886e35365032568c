"""The example dumps are what their script makes, small, and what the documentation says of them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tests.judge.command import run_judge

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs/examples"


def contents(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def test_script_makes_the_files(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "make_dumps.py"), str(tmp_path)]
    subprocess.run(command, check=True, env={"PYTHONPATH": str(ROOT), "PATH": ""})
    for name in ("right", "wrong"):
        (made, notes), (kept, kept_notes) = (contents(f / f"{name}.safetensors") for f in (tmp_path, EXAMPLES))
        assert notes == kept_notes
        assert {key: (t.dtype, t.tolist()) for key, t in made.items()} == {
            key: (t.dtype, t.tolist()) for key, t in kept.items()
        }


def test_files_are_small() -> None:
    assert sum(path.stat().st_size for path in EXAMPLES.glob("*.safetensors")) <= 300 * 1000


def test_wrong_dump_differs_from_the_right_one_in_one_row_of_the_outputs() -> None:
    right, wrong = (contents(EXAMPLES / f"{name}.safetensors")[0] for name in ("right", "wrong"))
    assert [name for name in right if not torch.equal(right[name], wrong[name])] == ["lse", "out"]
    assert torch.equal(right["out"][0], wrong["out"][0])


@pytest.mark.parametrize(("name", "code"), [("right", 0), ("wrong", 1)])
def test_verdicts(name: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_judge(capsys, EXAMPLES / f"{name}.safetensors").code == code


def test_document_shows_the_function_that_the_script_uses() -> None:
    text = (ROOT / "docs/judge.md").read_text()
    found = re.search(r"<!-- file dump_call.py -->\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    assert found[1] == (EXAMPLES / "dump_call.py").read_text()
