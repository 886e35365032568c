"""Where the plugin keeps its state on pytest's objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dsv4_conformance.plugin.collection import PlannedItem
    from dsv4_conformance.plugin.process import Process

PROCESS: pytest.StashKey[Process] = pytest.StashKey()
"""On the config of a process that has a conformance run."""

PLANNED: pytest.StashKey[PlannedItem] = pytest.StashKey()
"""On each item that belongs to the plan."""

AUTO_WORKERS = pytest.StashKey[bool]()
"""On the controller's config: the number of workers was chosen for ``-n auto``."""

REFUSED: pytest.StashKey[bool] = pytest.StashKey()
"""On the config: the run was refused before its session began."""
REFUSAL = pytest.StashKey[BaseException]()
"""Why a run that began while collecting could not begin; raised once collecting is over."""
