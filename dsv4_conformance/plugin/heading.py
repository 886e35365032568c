"""A journal's header, from what a process has collected and what it was asked for."""

from __future__ import annotations

import sys
from dataclasses import asdict

import dsv4_conformance
from dsv4_conformance.plugin import environment, verdict
from dsv4_conformance.plugin.collected import CollectedPlan
from dsv4_conformance.plugin.journal import (
    Header,
    ImplementationRecord,
    Named,
    NotSelected,
    PlanEntry,
    Shard,
    plan_hash,
)
from dsv4_conformance.plugin.jsonsafe import json_safe
from dsv4_conformance.plugin.process import Process
from dsv4_conformance.plugin.results_folder import new_run_id
from dsv4_conformance.plugin.sharding import Row


def head(process: Process, collected: CollectedPlan, started: str) -> Header:
    """The header of a run of ``collected`` that began at ``started``."""
    settings, config = process.settings, process.config
    plan = _entries(collected.rows)
    planned = sorted({entry.requirement for entry in plan}, key=verdict.order)
    requirements = [settings.registry.get(name) for name in planned]
    adapter = settings.implementation
    left, partial = _left_out(process, collected)
    return Header(
        run_id=new_run_id(),
        started=started,
        version=dsv4_conformance.__version__,
        command=[sys.argv[0], *config.invocation_params.args],
        profile=settings.profile.name,
        seed=settings.options.seed,
        device=settings.device,
        workers=max(1, len(config.getoption("tx", None) or [])),
        implementation=ImplementationRecord(
            requested=settings.options.impl,
            identity=json_safe(adapter.identity),
            surfaces={n: {"convention": type(c).__name__, **json_safe(asdict(c))} for n, c in adapter.surfaces.items()},
            devices=list(adapter.devices),
        ),
        environment=environment.describe(),
        requirements=[Named(id=r.id, level=r.level, title=r.title) for r in requirements],
        plan=plan,
        plan_hash=plan_hash(plan),
        not_selected=left,
        partial=partial,
        waivers=[waiver.record() for waiver in settings.waivers.all],
        shard=_shard(process, collected, plan),
    )


def _entries(rows: list[Row]) -> list[PlanEntry]:
    return [PlanEntry(case_id=c, requirement=r, surface=s, nodeid=n) for c, r, s, n in rows]


def _shard(process: Process, collected: CollectedPlan, plan: list[PlanEntry]) -> Shard | None:
    chosen = process.settings.options.shard
    if chosen is None:
        return None
    elsewhere = _entries(collected.elsewhere)
    return Shard(
        index=chosen[0],
        count=chosen[1],
        plan_hash=plan_hash([*plan, *elsewhere]),
        durations=collected.durations,
        elsewhere=elsewhere,
    )


def _left_out(process: Process, collected: CollectedPlan) -> tuple[list[NotSelected], str]:
    """What is not planned and why, and what of it the command line took out."""
    left = dict(collected.not_selected)
    partial = []
    settings = process.settings
    if settings.options.cases:
        partial.append("only cases named by --dsv4-case")
        left["all other cases"] = "--dsv4-case names the cases to run"
    else:
        missing = [name for name in settings.registry.ids if name not in collected.seen]
        left |= {name: "its tests were not collected" for name in missing}
        partial += [f"{len(missing)} requirement(s) not collected"] if missing else []
    for name, count in collected.deselected.items():
        left[f"{count} case(s) of {name}"] = "deselected on the command line"
    if collected.deselected:
        partial.append(f"{sum(collected.deselected.values())} case(s) deselected")
    return [NotSelected(what=what, reason=reason) for what, reason in left.items()], ", ".join(partial)
