"""Begins a conformance run in one pytest process: the hooks that its role needs are registered."""

from __future__ import annotations

import os

import pytest

from dsv4_conformance.plugin.keys import PROCESS
from dsv4_conformance.plugin.process import Process, only_collects


def begin(config: pytest.Config) -> Process:
    """The process's state, with its hooks in place.

    Raises BadInput for options that cannot be satisfied and for a results folder that cannot be written.
    """
    process = Process(config)
    if config.getoption("dist", "no") == "each":
        process.refuse("--dist each runs every case in every worker; use load, worksteal or loadgroup.")
    manager = config.pluginmanager
    recording = casualties = None
    if process.role != "worker" and not only_collects(config):
        from dsv4_conformance.plugin.recording import Recording

        recording = Recording(process)
        manager.register(recording, "dsv4-recording")
        from dsv4_conformance.plugin.casualties import Casualties

        casualties = Casualties(process, recording)
        manager.register(casualties, "dsv4-casualties")
    if process.role != "controller":
        from dsv4_conformance.plugin import fixtures
        from dsv4_conformance.plugin.collecting import Collecting

        manager.register(fixtures, "dsv4-fixtures")
        manager.register(Collecting(process, recording), "dsv4-collecting")
        if not only_collects(config):
            from dsv4_conformance.plugin.executing import Executing

            process.lease_gpu()
            executing = Executing(process)
            manager.register(executing, "dsv4-executing")
            if process.role == "worker" and process.problem is None:
                process.isolate(os.getppid(), own_group=True)
            elif casualties is not None and not _debugging(config):
                from dsv4_conformance.plugin.isolated import Isolated

                manager.register(Isolated(process, casualties, executing), "dsv4-isolated")
    config.stash[PROCESS] = process
    return process


def _debugging(config: pytest.Config) -> bool:
    """Whether the user wants to stop inside a case: that has to be in this very process, and takes its time."""
    return bool(config.getoption("usepdb", False) or config.getoption("trace", False))
