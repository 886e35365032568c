"""The pytest plugin. It loads in every pytest run of its environment and does nothing where no suite is collected.

This module, which every such run imports, holds the hooks that find out whether there is a conformance run; the modules
beside it, imported when there is one, do the work. None of them imports torch.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dsv4_conformance.errors import BadInput, ExitCode, HarnessError
from dsv4_conformance.plugin.keys import AUTO_WORKERS, PROCESS, REFUSAL, REFUSED
from dsv4_conformance.plugin.options import add_options, read_options, results_path
from dsv4_conformance.plugin.refusal import refusal

if TYPE_CHECKING:
    from dsv4_conformance.plugin.process import Process
    from dsv4_conformance.plugin.recording import Recording
    from dsv4_conformance.suite import TestSpec


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options --dsv4-*."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Start again under compute-sanitizer, if that was asked for."""
    if config.getoption("dsv4_sanitizer") is None:
        return None
    from dsv4_conformance.plugin.sanitizing import launch

    return launch(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Start workers under compute-sanitizer, if that was asked for."""
    if config.getoption("dsv4_sanitizer") is not None:
        from dsv4_conformance.plugin.sanitizing import wrap

        wrap(config, specs)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Begin a run that the user asked for, before any worker starts or anything is collected."""
    config = session.config
    told = getattr(config, "workerinput", {}).get("dsv4")
    if told["run"] if told else not hasattr(config, "workerinput") and _asked_for(config):
        try:
            _begin(config)
        except pytest.exit.Exception:
            config.stash[REFUSED] = True
            raise


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: Any) -> list[pytest.Item] | None:
    """At a suite function: begin a run if there is none, and drop the function if the run selects none of its cases."""
    spec = _spec(obj)
    if spec is None or not collector.istestfunction(obj, name):
        return None
    config = collector.config
    if REFUSAL in config.stash:
        return []
    try:
        process = config.stash.get(PROCESS, None) or _begin(config)
    except pytest.exit.Exception as refused:
        if hasattr(config, "workerinput"):
            raise
        # Raised here, pytest would take it for an error of this module and give its own exit code: it waits for
        # pytest_collection_modifyitems.
        config.stash[REFUSAL] = refused
        return []
    if process.problem is not None or not process.planner.items(obj, spec):
        return []
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """End a run that was refused while it collected, with its own sentence and exit code."""
    if REFUSAL in config.stash:
        raise config.stash[REFUSAL]


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """For ``-n auto`` on GPUs: as many workers as there are visible GPUs; else leave it to xdist (CPUs)."""
    try:
        if not _asked_for(config):
            return None
        from dsv4_conformance.plugin.settings import resolve

        settings = resolve(read_options(config))
    except (BadInput, HarnessError):
        return 1  # pytest_sessionstart says it properly
    if settings.device != "cuda":
        return None
    from dsv4_conformance.implementations import gpus

    config.stash[AUTO_WORKERS] = True
    return len(gpus.visible_gpus())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker what the controller has decided."""
    config: pytest.Config = node.config
    process = config.stash.get(PROCESS, None)
    node.workerinput["dsv4"] = {
        "run": process is not None,
        "device": process.settings.device if process else None,
        "results": str(results_path(config)),
        "scratch": str(_scratch(node.workerinput["testrunuid"])),
        "auto": config.stash.get(AUTO_WORKERS, False),
        "done": sorted(process.done) if process else [],
    }


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Take over the plan that a worker has collected, and begin a run if nobody asked for one before."""
    plan = _scratch(node.workerinput["testrunuid"]) / f"{node.gateway.id}.json"
    if plan.exists():
        config: pytest.Config = node.config
        if PROCESS not in config.stash:
            _begin(config)
        from dsv4_conformance.plugin.collected import CollectedPlan

        recording: Recording = config.pluginmanager.getplugin("dsv4-recording")
        recording.begin(CollectedPlan.read(plan))


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what workers left for the controller; let a refusal be told once."""
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    if config.stash.get(REFUSED, False) and reporter is not None:
        reporter._keyboardinterrupt_memo = None  # before a session begins, pytest also writes it to stderr
    dsession: Any = config.pluginmanager.getplugin("dsession")
    nodes = getattr(dsession, "nodemanager", None)
    if nodes is not None:
        shutil.rmtree(_scratch(nodes.testrunuid), ignore_errors=True)


def _scratch(testrunuid: str) -> Path:
    """Where workers of one xdist run leave their plans for the controller."""
    return Path(tempfile.gettempdir()) / f"dsv4-{testrunuid}"


def _spec(obj: Any) -> TestSpec | None:
    from dsv4_conformance.suite import TestSpec

    spec = getattr(obj, "dsv4", None)
    return spec if isinstance(spec, TestSpec) else None


def _asked_for(config: pytest.Config) -> bool:
    """Whether the user gave one of our options, or named the suites folder or something in it.

    A folder above it does not count: that may be any project with a virtual environment inside.
    """
    try:
        if read_options(config).given:
            return True
    except BadInput:
        return True
    from dsv4_conformance import resources

    try:
        suites = resources.suites_dir().resolve()
    except HarnessError:
        return False
    named = [(config.invocation_params.dir / arg.split("::")[0]).resolve() for arg in config.args]
    return any(path == suites or suites in path.parents for path in named)


def _begin(config: pytest.Config) -> Process:
    """Begin a run in this process; ends pytest with one sentence if it cannot."""
    from dsv4_conformance.plugin.run import begin

    try:
        return begin(config)
    except BadInput as error:
        raise refusal(str(error), int(ExitCode.BAD_INPUT)) from None
    except HarnessError as error:
        raise refusal(str(error), int(ExitCode.HARNESS_ERROR)) from None
