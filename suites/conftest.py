"""What the suites say where pytest has not loaded the plugin that gives them their cases."""

import sys

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Raise UsageError without the plugin; each test would fail for want of its fixtures else."""
    if config.option.collectonly:
        return
    if sys.modules.get("dsv4_conformance.plugin") not in config.pluginmanager.get_plugins():
        raise pytest.UsageError(
            "the plugin of dsv4-conformance is not loaded: install the package (pip install dsv4-conformance), or add "
            "-p dsv4_conformance.plugin (and -p xdist for -n) where it is not installed or where "
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD is set."
        )
