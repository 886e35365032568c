"""The root command: fast, lazy, and with one exit code per kind of trouble."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsv4_conformance import __version__, cli
from dsv4_conformance.errors import BadInput, HarnessError
from tests.cli.conftest import ROOT, Command


def test_help_names_every_command_quickly(command: Command) -> None:
    times = []
    for _ in range(3):
        before = time.perf_counter()
        done = command("--help")
        times.append(time.perf_counter() - before)
    assert done.returncode == 0
    for name, (_, line) in cli.COMMANDS.items():
        assert f"{name} " in done.stdout and line[:30] in done.stdout
    assert min(times) < 1.0  # promised: 0.5 s on a quiet machine


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom dsv4_conformance.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = ('torch', 'pytest', 'pydantic', 'numpy', 'rich')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]"), done.stdout


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_each_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([name, "--help"])
    assert stopped.value.code == 0
    assert f"dsv4-conformance {name}" in capsys.readouterr().out


def test_version(command: Command) -> None:
    assert command("--version").stdout == f"dsv4-conformance {__version__}\n"


def test_no_command_shows_help(command: Command) -> None:
    done = command()
    assert "Commands:" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nosuch"], "No such command 'nosuch'"),
        (["run", "--nosuch"], "No such option: --nosuch"),
        (["explain"], "Missing argument 'REQUIREMENT'"),
        (["explain", "INV-999"], "no requirement 'INV-999'"),
        (["list", "everything"], "'everything' cannot be listed"),
        (["list", "cases", "--profile", "smok"], "did you mean 'smoke'?"),
        (["list", "cases", "--seed", "-3"], "The seed '-3'"),
        (["run", "--impl", "nosuch"], "no implementation is called 'nosuch'"),
        (["run", "--", "--nosuch"], "--nosuch"),
        (["repro", "INV-1"], "'INV-1' is no case id"),
        (["repro", "INV-01-00000000", "--script", "x.py"], "No test has the case INV-01-00000000"),
        (["run", "--impl", "flash_mla"], "flash_mla"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(command: Command, words: list[str], sentence: str) -> None:
    done = command(*words)
    told = done.stdout + done.stderr
    assert done.returncode == 2, told
    assert sentence in done.stderr, told
    assert "Traceback" not in told


def interrupted() -> None:
    raise KeyboardInterrupt


def bad_input() -> None:
    raise BadInput("The cup is empty; fill it.")


def harness_error() -> None:
    raise HarnessError("The suite tripped.")


def defect() -> None:
    raise ZeroDivisionError("oops")


def three(name: str = "x") -> int:
    return 3


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("function", "code", "said"),
    [
        ("interrupted", 130, ""),
        ("bad_input", 2, "dsv4-conformance: The cup is empty; fill it.\n"),
        ("harness_error", 3, "The suite tripped. This is a fault of the suite; please report it."),
        ("defect", 3, "ZeroDivisionError: oops"),
        ("three", 3, ""),
        ("nothing", 0, ""),
    ],
)
def test_exit_code_of_what_a_command_does(
    function: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "tried", (f"{__name__}:{function}", "For this test."))
    with pytest.raises(SystemExit) as stopped:
        cli.main(["tried"])
    assert stopped.value.code == code
    assert said in capsys.readouterr().err


def test_new_command_is_one_line_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "tried", (f"{__name__}:three", "For this test."))
    with pytest.raises(SystemExit) as stopped:
        cli.main(["tried", "--name", "y"])
    assert stopped.value.code == 3


def test_table_points_at_modules_beside_it() -> None:
    folder = Path(cli.__file__).parent
    for target, _ in cli.COMMANDS.values():
        module = target.partition(":")[0]
        assert module.startswith("dsv4_conformance.cli.")
        assert (folder / f"{module.rpartition('.')[2]}.py").is_file()


# Kills: a run that pytest refuses because the user loads no plugins by themselves.
def test_a_user_without_plugin_autoload_can_run(command: Command) -> None:
    asked = "os.environ['PYTEST_DISABLE_PLUGIN_AUTOLOAD'] = '1'"
    line = f"import os; {asked}; from dsv4_conformance.cli import main; main()"
    words = ["run", "--profile", "smoke", "-n", "1", "--results", "here", "--", "-q"]
    done = command(*words, program=("-c", line))
    assert done.returncode == 0 and "QUALIFIES" in done.stdout, done.stdout + done.stderr
