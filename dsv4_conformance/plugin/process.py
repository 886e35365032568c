"""One pytest process of a conformance run: its role, its settings and its GPU.

Roles: "single" collects, runs and writes the journal; under xdist the "controller" writes the journal and "worker"s
collect and run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin import leases
from dsv4_conformance.plugin.collection import Planner
from dsv4_conformance.plugin.confinement import confine
from dsv4_conformance.plugin.options import read_options
from dsv4_conformance.plugin.settings import Settings, resolve
from dsv4_conformance.plugin.watchdog import Watchdog

Role = Literal["single", "controller", "worker"]


def role_of(config: pytest.Config) -> Role:
    """This process's role; one that only collects is single."""
    if hasattr(config, "workerinput"):
        return "worker"
    distributed = config.getoption("dist", "no") != "no" and not only_collects(config)
    return "controller" if distributed else "single"


def only_collects(config: pytest.Config) -> bool:
    """Whether nothing will be run, so that no journal and no GPU is needed."""
    return any(config.getoption(name, False) for name in ("collectonly", "showfixtures", "show_fixtures_per_test"))


class Process:
    """State of one process. Raises BadInput if the options cannot be satisfied, except in a worker: there ``problem``
    holds it and the controller, which hears of it with the plan, ends the run; a worker that raised would be replaced
    by another one."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.role = role_of(config)
        workerinput: dict[str, Any] = getattr(config, "workerinput", {})
        self._told: dict[str, Any] = workerinput.get("dsv4", {})
        self.worker = str(workerinput.get("workerid", "main"))
        self.workers = int(workerinput.get("workercount", 1))
        self.problem: BadInput | None = None
        self._settings: Settings | None = None
        self._planner: Planner | None = None
        self._lease: leases.Lease | None = None
        self._lease_problem: BadInput | None = None
        self.session: Any = None
        """The worker's session once it is made; ``aftermath.Probed`` says what is asked of it."""
        self.done: frozenset[str] = frozenset(self._told.get("done", ()))
        """nodeids of cases that an earlier run has done, which this one resumes."""
        self.isolated = False
        """This process may end: another one will go on."""
        self.watchdog: Watchdog | None = None
        try:
            self._settings = resolve(read_options(config), self._told.get("device"))
            self._planner = Planner(self._settings)
        except BadInput as error:
            self.refuse(str(error))

    def refuse(self, sentence: str) -> None:
        """Let the run not begin, for this reason: at once, or in a worker with the plan."""
        if self.role != "worker":
            raise BadInput(sentence)
        self.problem = BadInput(sentence)

    @property
    def settings(self) -> Settings:
        """Settings of the run; not to be asked for where there is a ``problem``."""
        assert self._settings is not None
        return self._settings

    @property
    def planner(self) -> Planner:
        """The planner of this process; not to be asked for where there is a ``problem``."""
        assert self._planner is not None
        return self._planner

    @property
    def results(self) -> Path:
        """The run's results folder, also in a worker."""
        return Path(self._told.get("results") or self.settings.options.results)

    @property
    def scratch(self) -> Path:
        """Where a worker leaves its plan for the controller."""
        return Path(self._told["scratch"])

    def isolate(self, parent: int, *, own_group: bool) -> None:
        """Make of this process one that may end with its case: it can take nothing else along."""
        options = self.settings.options
        confine(parent, own_group=own_group, memory_gib=options.memory_gib)
        self.isolated = True
        self.watchdog = Watchdog(self.results, self.worker, options.timeout_s)

    def lease_gpu(self) -> None:
        """On cuda, take one slot of a GPU for the rest of this process's life and hide the other GPUs.

        Must come before CUDA starts in this process. If none comes free, ``require_gpu`` raises it.
        """
        if self.problem is not None or self.settings.device != "cuda":
            return
        from dsv4_conformance.implementations import gpus

        visible = gpus.visible_gpus()
        try:
            slots = leases.slots_per_gpu(self.workers, len(visible), auto=bool(self._told.get("auto")))
            if slots > 1 and self.settings.profile.timed:
                raise BadInput(
                    f"Profile {self.settings.profile.name} compares times, and {self.workers} workers would share "
                    f"{len(visible)} GPU(s); run it with -n auto, or without workers."
                )
            self._lease = leases.acquire(visible, slots)
            os.environ["CUDA_VISIBLE_DEVICES"] = self._lease.gpu
        except BadInput as error:
            self._lease_problem = error

    def require_gpu(self) -> None:
        """Raise BadInput if this process should have a GPU and got none."""
        if self._lease_problem is not None:
            raise self._lease_problem
