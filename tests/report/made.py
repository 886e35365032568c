"""Journals made for tests: as a run writes them, with what the tests of reports are about."""

import json
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from dsv4_conformance.plugin.ending import Ending, footer
from dsv4_conformance.plugin.journal import (
    Environment,
    Gpu,
    Header,
    ImplementationRecord,
    Named,
    NotSelected,
    PlanEntry,
    Result,
    WaiverRecord,
    plan_hash,
)
from dsv4_conformance.status import Status

TITLES = {"INV-01": "Output follows the attention formula", "INV-02": "A sink of minus infinity is no sink"}


def result(
    case: str = "INV-01-00000001",
    status: Status = Status.PASS,
    *,
    ratio: float | str | None = 0.3,
    margin: float | None = 40.0,
    reason: str = "",
    surface: str = "SparseDecode",
    test: str = "suites/attention/test_formula.py::test_formula",
    label: str = "decode-b3",
    **more: Any,
) -> Result:
    """One result; its requirement is what its id begins with."""
    error = ratio * 3e-4 if isinstance(ratio, float | int) else ratio
    metrics = {} if ratio is None else {"out_ratio": ratio, "out_error": error, "lse_ratio": 0.01}
    budget = {} if ratio is None else {"out": 3e-4, "derivation": "formula"}
    record: dict[str, Any] = {"checked": True, "metrics": metrics, "budget": budget}
    record["margins"] = {} if margin is None else {"zeros": {"out": 1e6}, "sink_dropped": {"out": margin, "lse": 0.5}}
    record |= more.pop("record", {})
    fields = {
        "case_id": case,
        "requirement": more.pop("requirement", case.rpartition("-")[0]),
        "surface": surface,
        "nodeid": more.pop("nodeid", f"{test}[{label}-{case}]"),
        "status": status,
        "reason": reason,
        "record": record,
        "duration_s": 0.01,
        "worker": "gw0",
        "reproducer": f"dsv4-conformance repro {case} --impl kernel",
        "waived_status": Status.FAIL if status is Status.WAIVED else None,
    }
    return Result.model_validate(fields | more)


def header(results: Sequence[Result], *, gpu: str = "", **more: Any) -> Header:
    """The header of a run that planned just these cases. ``name``, ``version``: the adapter's."""
    plan = [
        PlanEntry(case_id=r.case_id, requirement=r.requirement, surface=r.surface, nodeid=r.nodeid) for r in results
    ]
    gpus = [Gpu(uuid="GPU-1", name=gpu, compute_capability="9.0", memory_bytes=1 << 37)] if gpu else []
    identity = {"name": more.pop("name", "kernel"), "version": more.pop("version", "1.0"), "homepage": "", "commit": ""}
    packages = {"torch": more.pop("torch", "2.11.0")}
    names = list(dict.fromkeys(r.requirement for r in results))
    fields: dict[str, Any] = {
        "run_id": "20261130T000000Z-00000001",
        "started": "2026-11-30T00:00:00.000+00:00",
        "version": "0.1.0",
        "command": ["dsv4-conformance", "run"],
        "profile": "default",
        "seed": 0,
        "device": "cuda" if gpu else "cpu",
        "workers": 2,
        "implementation": ImplementationRecord(
            requested="kernel",
            identity=identity,
            surfaces={"SparseDecode": {"convention": "AttentionConvention", "lse_base": "e"}},
            devices=["cpu", "cuda"],
        ),
        "environment": Environment(
            python="3.12.3",
            platform="Linux",
            cpu_count=16,
            gpus=gpus,
            driver="580.1" if gpu else "",
            packages=packages,
            commit="0123456789abcdef",
            modified=False,
        ),
        "requirements": [
            Named(id=name, level="MUST", title=TITLES.get(name, f"Title of {name}"[:80])) for name in names
        ],
        "plan": plan,
        "plan_hash": plan_hash(plan),
        "not_selected": [NotSelected(what="INV-130", reason="no server was named with --dsv4-endpoint")],
    }
    return Header.model_validate(fields | more)


def waiver(**more: Any) -> WaiverRecord:
    """A waiver of INV-01, for whatever the adapter is."""
    fields: dict[str, Any] = {
        "id": "W-1",
        "requirement": "INV-01",
        "selector": {"implementation": "*", "cases": [], "statuses": ["FAIL"]},
        "issue": "https://example.com/issues/1",
        "owner": "Ada Lovelace",
        "opened": str(date(2026, 11, 1)),
        "expires": str(date(2026, 12, 20)),
        "kind": "tolerated",
    }
    return WaiverRecord.model_validate(fields | more)


def write(
    path: Path,
    results: Iterable[Result],
    *,
    planned: Sequence[Result] | None = None,
    end: bool = True,
    foot: dict[str, Any] | None = None,
    problems: tuple[str, ...] = (),
    **more: Any,
) -> Path:
    """Write a journal. ``planned``: other cases than those of ``results``; ``foot``: other fields of the footer."""
    told = list(results)
    head = header(told if planned is None else planned, **more)
    lines = [head.model_dump_json(by_alias=True), *(r.model_dump_json() for r in told)]
    if end:
        last = footer(head, told, Ending(problems=problems)).model_dump(mode="json")
        lines.append(json.dumps({"kind": "footer", **last, **(foot or {})}))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def many(count: int, failing: int = 0) -> list[Result]:
    """``count`` results of 40 requirements, the first ``failing`` of them wrong."""
    found = []
    for number in range(count):
        bad = number < failing
        case = f"INV-{number % 40 + 1:02d}-{number:08x}"
        ratio = number + 2.5 if bad else 0.1 + number % 90 / 100
        reason = f"out: error 0.586 is {ratio} budgets (3.72e-05) at row {number % 7}, head 9." if bad else ""
        label = f"decode-b{number % 9}-s2-h{16 << number % 3}-w128of{number}p64-normal"
        status = Status.FAIL if bad else Status.PASS
        found.append(result(case, status, ratio=ratio, reason=reason, label=label))
    return found
