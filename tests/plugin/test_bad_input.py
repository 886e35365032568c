"""What the user gets wrong is one sentence and exit code 2, with and without workers, and leaves no journal."""

import subprocess
import sys
from pathlib import Path

import pytest

from dsv4_conformance.status import Status
from tests.plugin.conftest import ROOT, Project, environment

WORKERS = pytest.mark.parametrize("words", [(), ("-n", "1")], ids=["single", "xdist"])

CASES = {
    "unknown implementation": (["--dsv4-impl", "nosuch"], "no implementation is called 'nosuch'"),
    "unknown class": (["--dsv4-impl", "adapters:Goood"], "did you mean 'Good'?"),
    "missing engine": (["--dsv4-impl", "adapters:Unavailable"], "the engine is not installed; pip install engine."),
    "broken engine": (["--dsv4-impl", "adapters:Broken"], "libengine.so: cannot open"),
    "raises at import": (["--dsv4-impl", "explodes:Anything"], "RuntimeError: no driver"),
    "no GPU": (["--dsv4-impl", "adapters:OnlyGpu"], "needs a GPU here and none is visible"),
    "wrong device": (["--dsv4-impl", "adapters:Good", "--dsv4-device", "cuda"], "does not run on cuda"),
    "unknown device": (["--dsv4-device", "tpu"], "device 'tpu' is unknown"),
    "unknown profile": (["--dsv4-profile", "defualt"], "did you mean 'default'?"),
    "negative seed": (["--dsv4-seed", "-1"], "The seed '-1'"),
    "seed with letters": (["--dsv4-seed", "x"], "The seed 'x'"),
    "malformed case": (["--dsv4-case", "INV-02"], "'INV-02' is no case id"),
    "unknown requirement": (["--dsv4-case", "INV-77-00000000"], "no requirement 'INV-77'"),
    "unknown case": (
        ["--dsv4-impl", "adapters:Good", "--dsv4-case", "INV-02-00000000"],
        "has the case INV-02-00000000",
    ),
    "results is a file": (["--dsv4-impl", "adapters:Good", "--dsv4-results", "pytest.ini"], "cannot be written"),
    "empty implementation": (["--dsv4-impl", ""], "The value of --dsv4-impl is empty"),
    "empty profile": (["--dsv4-impl", "adapters:Good", "--dsv4-profile", ""], "The value of --dsv4-profile is empty"),
    "empty device": (["--dsv4-impl", "adapters:Good", "--dsv4-device", ""], "The value of --dsv4-device is empty"),
    "empty results": (["--dsv4-impl", "adapters:Good", "--dsv4-results", " "], "The value of --dsv4-results is empty"),
    "endless seed": (["--dsv4-impl", "adapters:Good", "--dsv4-seed", "9" * 5000], "is no whole number from 0"),
    "exits when asked": (["--dsv4-impl", "adapters:Quitting"], "check_available() raised SystemExit: no licence"),
    "each": (["--dsv4-impl", "adapters:Good", "--dist", "each", "--tx", "popen"], "--dist each"),
}


@WORKERS
@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_sentence(project: Project, name: str, words: tuple[str, ...]) -> None:
    options, sentence = CASES[name]
    if name == "each" and words:
        words = ()
    project.write("explodes.py", "raise RuntimeError('no driver')\n")
    ran = project.run(*words, *options, impl=None)
    told = ran.out + ran.err
    assert ran.code == 2, told
    assert told.count(sentence) == 1, told
    assert "Traceback" not in told and "conftest.py" not in told and "INTERNALERROR" not in told
    assert not (ran.results / "journal.jsonl").exists()


@WORKERS
def test_what_only_shows_when_the_adapter_is_built_stops_the_run(project: Project, words: tuple[str, ...]) -> None:
    ran = project.run(*words, impl="Unbuildable")
    assert ran.code == 2, ran.out
    assert "STOPPED: the engine wants a licence." in ran.out
    assert "Traceback" not in ran.out
    footer = ran.journal.footer
    assert footer is not None and not footer.qualifies and footer.exit_code == 2
    if not words:  # one complaint, not one per case; workers may have finished what they had been given
        assert [r.status for r in ran.journal.results] == [Status.HARNESS_ERROR] + [Status.NOT_RUN] * 6


@WORKERS
def test_folder_in_which_another_run_writes_is_refused(project: Project, words: tuple[str, ...]) -> None:
    from filelock import FileLock

    (project.folder / "dsv4-results").mkdir()
    with FileLock(project.folder / "dsv4-results/.lock"):
        ran = project.run(*words)
    assert ran.code == 2
    assert "Another run is writing its results" in ran.err


@WORKERS
def test_refusal_also_without_any_option(project: Project, words: tuple[str, ...]) -> None:
    """Nobody asked for a run; the first suite function begins it, under xdist in a worker."""
    (project.folder / "dsv4-results").touch()
    project.write("test_suite.py", "import builtin_is_good\n" + (project.folder / "test_suite.py").read_text())
    project.write("builtin_is_good.py", "")
    ran = project.run(*words, impl=None)
    told = ran.out + ran.err
    assert ran.code == 2, told
    assert told.count("cannot be written") == 1 and "Traceback" not in told


def test_module_that_cannot_be_imported_is_the_harness_s_failure(project: Project) -> None:
    project.write("test_broken.py", "import nosuchmodule\n")
    for words in ((), ("-n", "2")):
        ran = project.run(*words)
        assert ran.code == 3, ran.out + ran.err
    project.write("test_suite.py", "import nosuchmodule\n")
    for words in ((), ("-n", "2")):  # nothing at all was collected
        assert project.run(*words).code == 3


def test_unwritable_is_found_out_before_any_case_runs(project: Project, tmp_path: Path) -> None:
    ran = project.run("--dsv4-results", "/proc/dsv4")
    assert ran.code == 2
    assert "The results folder /proc/dsv4 cannot be written" in ran.err and not ran.out.count("test_suite")


def test_suites_without_the_plugin_say_so() -> None:
    """Its fixtures would be missing from every test else."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "suites/sinks"]
    variables = environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr.strip().startswith("ERROR: the plugin of dsv4-conformance is not loaded")
    assert "-p dsv4_conformance.plugin" in done.stderr
