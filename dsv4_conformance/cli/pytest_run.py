"""Runs pytest on the suites, in this process, from whatever folder the user is in."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import metadata

import pytest

from dsv4_conformance import resources
from dsv4_conformance.errors import ExitCode
from dsv4_conformance.plugin.ending import INTERRUPTED

PLUGIN = "dsv4_conformance.plugin"


def base_arguments() -> list[str]:
    """Where the suites and their settings are; nothing of the current folder's own pytest settings applies.

    No cache is written: the suites may lie in a read-only installation.
    """
    root = resources.suites_dir().parent
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the command has imported the plugin already
    return ["--rootdir", str(root), "-c", str(root / "pyproject.toml"), "-p", "no:cacheprovider", *quiet]


def plugin_arguments() -> list[str]:
    """Load the plugin where no installed distribution announces it, as in a bare checkout on PYTHONPATH, or where the
    user has told pytest to load none that is announced; then xdist too, for ``-n``."""
    if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        return ["-p", PLUGIN, "-p", "xdist"]
    announced = any(point.value == PLUGIN for point in metadata.entry_points(group="pytest11"))
    return [] if announced else ["-p", PLUGIN]


def run_pytest(arguments: Iterable[str], plugins: Iterable[object] = ()) -> int:
    """pytest's exit code on the suites; its usage errors become bad input."""
    words = [*base_arguments(), *plugin_arguments(), *arguments, str(resources.suites_dir())]
    stopped = _Stopped()
    code = int(pytest.main(words, plugins=[*plugins, stopped]))
    if stopped.early and code == pytest.ExitCode.INTERRUPTED:
        print("dsv4-conformance: interrupted before any case was run.", file=sys.stderr)
        return INTERRUPTED
    return int(ExitCode.BAD_INPUT) if code == pytest.ExitCode.USAGE_ERROR else code


class _Stopped:
    """Notes a Ctrl-C that comes while workers start: pytest then asks no plugin how the run ended, and its code for an
    interrupted run is the one for bad input."""

    def __init__(self) -> None:
        self.early = False

    @pytest.hookimpl
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Also called for pytest's own reasons to stop, which are kinds of KeyboardInterrupt, and for pytest.exit."""
        self.early = excinfo.type is KeyboardInterrupt
