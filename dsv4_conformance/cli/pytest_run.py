"""Runs pytest on the suites, in this process, from whatever folder the user is in."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata

import pytest

from dsv4_conformance import resources
from dsv4_conformance.errors import ExitCode

PLUGIN = "dsv4_conformance.plugin"


def base_arguments() -> list[str]:
    """Where the suites and their settings are; nothing of the current folder's own pytest settings applies.

    No cache is written: the suites may lie in a read-only installation.
    """
    root = resources.suites_dir().parent
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the command has imported the plugin already
    return ["--rootdir", str(root), "-c", str(root / "pyproject.toml"), "-p", "no:cacheprovider", *quiet]


def plugin_arguments() -> list[str]:
    """Load the plugin where no installed distribution announces it, as in a bare checkout on PYTHONPATH."""
    announced = any(point.value == PLUGIN for point in metadata.entry_points(group="pytest11"))
    return [] if announced else ["-p", PLUGIN]


def run_pytest(arguments: Iterable[str], plugins: Iterable[object] = ()) -> int:
    """pytest's exit code on the suites; its usage errors become bad input."""
    words = [*base_arguments(), *plugin_arguments(), *arguments, str(resources.suites_dir())]
    code = int(pytest.main(words, plugins=list(plugins)))
    return int(ExitCode.BAD_INPUT) if code == pytest.ExitCode.USAGE_ERROR else code
