"""In a project without suites the plugin does nothing; where it works, it needs no torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from dsv4_conformance.cli.pytest_run import plugin_arguments
from tests.plugin.conftest import Project, environment


@pytest.mark.parametrize("words", [(), ("-n", "2")])
@pytest.mark.parametrize(
    "text",
    ["def test_it():\n    pass\n", "def test_it():\n    raise ValueError\n", "import nosuch\n"],
    ids=["passes", "fails", "is no module"],
)
def test_unrelated_project_is_left_alone(tmp_path: Path, words: tuple[str, ...], text: str) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    codes = []
    for plugin in (plugin_arguments(), ["-p", "no:dsv4"]):
        done = subprocess.run(
            [*command, *plugin], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )
        codes.append(done.returncode)
        told = [line for line in done.stdout.splitlines() if not line.startswith("plugins: ")]  # pytest lists it there
        assert "dsv4" not in "\n".join(told)
    assert codes[0] == codes[1]
    assert {path.name for path in tmp_path.iterdir()} <= {"pytest.ini", "test_it.py", "__pycache__"}


def test_empty_project_keeps_pytest_s_own_exit_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugin_arguments()]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, check=False)
    assert done.returncode == 5


def test_loading_the_plugin_imports_little(tmp_path: Path) -> None:
    program = (
        "import sys, pytest\n"
        "pytest.main(['-q', '-p', 'no:cacheprovider', '-p', 'dsv4_conformance.plugin'])\n"
        "print([m for m in ('torch', 'pydantic', 'filelock', 'dsv4_conformance.runner') if m in sys.modules])"
    )
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
    variables = environment() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().endswith("[]"), done.stdout + done.stderr


def test_collecting_only_leaves_no_journal(project: Project) -> None:
    for words in (("--collect-only",), ("--collect-only", "-n", "2"), ("--fixtures",)):
        ran = project.run(*words)
        assert ran.code == 0, ran.out + ran.err
        assert not ran.results.exists()


def test_run_that_nobody_asked_for_begins_at_the_first_suite_function(project: Project) -> None:
    """No option and no shipped suite named: the built-in adapter's class is found when the suite is collected."""
    project.write("conftest.py", (project.folder / "conftest.py").read_text() + ALIAS)
    for words in ((), ("-n", "2")):
        ran = project.run(*words, impl=None)
        assert ran.code == 0, ran.out + ran.err
        assert len(ran.journal.results) == 7
        assert ran.journal.header.implementation.requested == "builtin"


ALIAS = """
from dsv4_conformance.implementations import registry
registry.BUILT_IN = {"builtin": "adapters:Good"}
"""
