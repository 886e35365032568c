"""Hooks of a process that collects: suite functions are parametrized, the plan is handed on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.collected import CollectedPlan
from dsv4_conformance.plugin.keys import PLANNED
from dsv4_conformance.plugin.process import Process
from dsv4_conformance.plugin.sharding import Row, digest, durations_of, split
from dsv4_conformance.suite import TestSpec

if TYPE_CHECKING:
    from dsv4_conformance.plugin.recording import Recording


class Collecting:
    """Registered in the single process and in workers. ``recording`` is the journal of a single process."""

    def __init__(self, process: Process, recording: Recording | None) -> None:
        self._process = process
        self._recording = recording

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One set of parameters per planned case, named by the case's label."""
        spec = getattr(metafunc.function, "dsv4", None)
        if isinstance(spec, TestSpec):
            items = self._process.planner.items(metafunc.function, spec)
            metafunc.parametrize("case", items, ids=[item.label for item in items], indirect=True)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Remember on the item what it is in the plan."""
        if isinstance(getattr(getattr(item, "obj", None), "dsv4", None), TestSpec):
            item.stash[PLANNED] = item.callspec.params["case"]  # type: ignore[attr-defined]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Complete the plan and hand it to the journal; a worker leaves it where the controller will look for it.

        What another shard runs, or an earlier run has done, is then taken out.
        """
        plan = self._plan(session)
        if self._recording is not None:
            self._recording.begin(plan)
        elif self._process.role == "worker":
            plan.write(self._process.scratch / f"{self._process.worker}.json")

        if plan.problem:
            return
        left_out = {row[3] for row in plan.elsewhere} | self._process.done
        if left_out:
            session.items[:] = [item for item in session.items if item.nodeid not in left_out]

    def _plan(self, session: pytest.Session) -> CollectedPlan:
        if self._process.problem is not None:
            return CollectedPlan(problem=str(self._process.problem))
        planned = [(item.stash[PLANNED], item.nodeid) for item in session.items if PLANNED in item.stash]
        planner = self._process.planner
        rows = [(item.case_id, item.requirement.id, item.surface, nodeid) for item, nodeid in planned]
        options = self._process.settings.options
        elsewhere: list[Row] = []
        try:
            durations = durations_of(options.durations)
        except BadInput as error:
            return CollectedPlan(problem=str(error))
        if options.shard is not None:
            parts = split(rows, options.shard[1], durations)
            rows = parts.pop(options.shard[0] - 1)
            elsewhere = [row for part in parts for row in part]
        return CollectedPlan(
            rows=rows,
            elsewhere=elsewhere,
            durations=digest(durations),
            unmatched=planner.unmatched(),
            not_selected=planner.not_selected,
            seen=sorted(planner.seen),
            # By -k, -m or --deselect, or by naming a test: then its neighbours are made as well, and dropped.
            deselected=dict(planner.expanded() - Counter(item.requirement.id for item, _ in planned)),
            # With modules that failed to import nobody can say that a case does not exist.
            unknown=[] if session.testsfailed else planner.missing_cases(),
        )
