"""The commands on the shipped suites, from an empty folder."""

import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.cases import case as cases
from dsv4_conformance.cli import smoke
from dsv4_conformance.cli.new_adapter import _names
from dsv4_conformance.cli.script import literal
from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.journal import read_journal
from dsv4_conformance.spec.requirements import load_registry
from tests.cli.conftest import Command, Done

ZEROS = """
from dsv4_conformance.implementations.api import DecodeResult
from dsv4_conformance.implementations.builtin import Builtin


class Zeros(Builtin):
    def decode(self, call):
        done = super().decode(call)
        return DecodeResult(done.out.zero_(), done.lse)
"""


def test_run_works_in_an_empty_folder(smoke_run: tuple[Done, Path]) -> None:
    done, folder = smoke_run
    assert done.returncode == 0, done.stdout + done.stderr
    journal = read_journal(folder / "here/journal.jsonl")
    assert journal.footer is not None and journal.footer.qualifies
    assert len(ET.parse(folder / "here/junit.xml").getroot().findall(".//testcase")) == len(journal.results) > 0
    assert {path.name for path in folder.iterdir()} == {"here"}


def test_run_in_which_nothing_is_selected_is_not_green(command: Command) -> None:
    assert command("run", "--profile", "smoke", "--", "-q", "-k", "nosuchtest").returncode == 5


def test_pytest_settings_of_the_current_folder_do_not_matter(command: Command, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --nosuch\n")
    assert command("run", "--profile", "smoke", "--", "-q", "-k", "dequantised").returncode == 0


def test_wrong_kernel_fails_and_its_case_is_reproduced_both_ways(command: Command, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(ZEROS)
    done = command("run", "--impl", "wrong:Zeros", "--profile", "smoke", "--", "-q")
    assert done.returncode == 1, done.stdout + done.stderr
    journal = read_journal(tmp_path / "dsv4-results/journal.jsonl")
    failed = next(result for result in journal.results if result.status == "FAIL")
    assert failed.surface == "SparseDecode" and "out" in failed.reason

    again = command(*failed.reproducer.split()[1:])
    assert again.returncode == 1 and failed.reason in " ".join(again.stdout.split())
    assert len(read_journal(tmp_path / "dsv4-results/repro/journal.jsonl").results) == 1
    assert read_journal(tmp_path / "dsv4-results/journal.jsonl").header == journal.header  # left alone

    words = [*failed.reproducer.split()[1:], "--script", "case.py"]
    assert command(*words).returncode == 0
    script = command(program=("case.py",))
    assert script.returncode == 1 and failed.reason in script.stderr
    right = command("repro", failed.case_id, "--script", "right.py")
    assert right.returncode == 0
    script = command(program=("right.py",))
    assert script.returncode == 0 and f"{failed.case_id}: holds" in script.stdout, script.stderr


def test_explain_tells_text_bugs_and_tests(command: Command) -> None:
    done = command("explain", "inv-08")
    found = load_registry().get("INV-08")
    assert done.returncode == 0, done.stderr
    assert " ".join(found.text.split()) in " ".join(done.stdout.split())
    assert all(bug.url in done.stdout for bug in found.bugs)
    assert "suites/attention/test_formula.py::test_output_lies_in_the_hull_of_its_values" in done.stdout
    assert "cases: default " in done.stdout


def test_list_requirements_and_profiles(command: Command) -> None:
    listed = command("list", "requirements").stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(load_registry().ids)
    assert [line.split()[0] for line in command("list", "profiles").stdout.splitlines()][:2] == ["smoke", "default"]


def test_list_cases_is_what_a_run_plans(command: Command, smoke_run: tuple[Done, Path]) -> None:
    listed = {line.split()[0] for line in command("list", "cases", "--profile", "smoke").stdout.splitlines()}
    planned = {entry.case_id for entry in read_journal(smoke_run[1] / "here/journal.jsonl").header.plan}
    assert listed == planned


def test_list_implementations_says_which_can_be_used(command: Command) -> None:
    listed = command("list", "implementations").stdout
    assert "builtin: engine, cpu or cuda; SparseDecode" in listed


def test_new_adapter_is_complete_and_passes_at_once(command: Command, tmp_path: Path) -> None:
    assert command("new-adapter", "FastMLA2").returncode == 0
    folder = tmp_path / "FastMLA2"
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["dsv4_conformance.implementations"] == {
        "fast_mla2": "fast_mla2_adapter:FastMla2"
    }
    assert "--impl fast_mla2_adapter:FastMla2" in (folder / "README.md").read_text()
    code = "import sys; sys.path.insert(0, 'FastMLA2'); from dsv4_conformance.cli import main; main(sys.argv[1:])"
    words = ["run", "--impl", "fast_mla2_adapter:FastMla2", "--profile", "smoke", "--", "-q"]
    done = command(*words, program=("-c", code))
    assert done.returncode == 0, done.stdout + done.stderr
    checks = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--line-length",
        "120",
        "--select",
        "E,F,W,I",
        str(folder),
    ]
    assert subprocess.run(checks, capture_output=True, check=False).returncode == 0


def test_new_adapter_overwrites_nothing(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    done = command("new-adapter", "mine")
    assert done.returncode == 2 and "not an empty folder" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("title", "module", "cls"),
    [("MyKernel", "my_kernel_adapter", "MyKernel"), ("flash-mla v2", "flash_mla_v2_adapter", "FlashMlaV2")],
)
def test_names_of_an_adapter(title: str, module: str, cls: str) -> None:
    names = _names(title)
    assert (names["module"], names["cls"]) == (module, cls)


@pytest.mark.parametrize("title", ["2fast", "class", "...", ""])
def test_name_that_python_cannot_use_is_bad_input(title: str) -> None:
    with pytest.raises(BadInput, match="No Python name"):
        _names(title)


@pytest.mark.parametrize(
    ("built_in", "given", "code"),
    [(0, 0, 0), (0, 1, 1), (0, 2, 2), (0, 5, 5), (1, 0, 3), (3, 0, 3), (5, 0, 3), (2, 0, 2)],
)
def test_smoke_blames_the_harness_before_the_implementation(
    built_in: int, given: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {"builtin": built_in, "mine": given}
    monkeypatch.setattr(smoke, "_once", lambda impl, device, results: codes[impl])
    assert smoke.smoke("mine") == code


def test_literal_rebuilds_every_kind_of_case() -> None:
    scope = cases.ScopeShape(10, 4, 2)
    attention = cases.AttentionCase("SparseDecode", 1, 2, 8, scope, scope, sink="zero")
    heads = cases.HeadCase("HeadLayout", 64, 4, 2)
    for case in (attention, heads, cases.FormatCase("KVPageFormat", 5, 64), cases.RankCase("x", attention, heads)):
        text = literal(case)
        assert eval(text, vars(cases)) == case
        assert "poison" not in text  # a field at its default
