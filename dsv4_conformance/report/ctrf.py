"""CTRF-style JSON (ctrf.io) of several runs, written while reading; what CTRF has no field for is under ``extra``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TextIO

from dsv4_conformance.report.folding import Run
from dsv4_conformance.report.gathering import Gathered
from dsv4_conformance.report.judging import Verdict
from dsv4_conformance.report.junit import SKIPPED
from dsv4_conformance.report.kept import Case, case_of
from dsv4_conformance.report.measured import rounded
from dsv4_conformance.status import QUALIFYING, Status

SPEC_VERSION = "0.0.0"


def write(gathered: Gathered, file: TextIO) -> None:
    """Write the document, one case at a time."""
    counts = {name: 0 for name in ("passed", "failed", "skipped", "pending", "other")}
    for run in gathered.runs:
        for status, number in run.counts.items():
            counts[word(status)] += number
    starts = [_milliseconds(run.header.started) for run in gathered.runs]
    stops = [_milliseconds(run.footer.finished if run.footer else run.header.started) for run in gathered.runs]
    summary = {"tests": sum(counts.values()), **counts, "start": min(starts), "stop": max(stops)}
    file.write(f'{{"reportFormat":"CTRF","specVersion":{_json(SPEC_VERSION)},"results":{{')
    file.write(f'"tool":{_json({"name": "dsv4-conformance", "version": gathered.version})},"summary":{_json(summary)},')
    file.write(f'"extra":{_json({"dsv4": _extra(gathered.runs, gathered.verdicts)})},"tests":[')
    first = True
    for run, journal in zip(gathered.runs, gathered.journals, strict=True):
        for result in journal.results():
            file.write(("\n" if first else ",\n") + _json(_test(run, case_of(result))))
            first = False
    file.write("\n]}}\n")


def word(status: Status) -> str:
    """CTRF's word for a status."""
    if status in SKIPPED:
        return "skipped"
    if status in QUALIFYING:
        return "passed"
    return "pending" if status is Status.NOT_RUN else "failed"


def _test(run: Run, case: Case) -> dict[str, Any]:
    extra: dict[str, Any] = {
        "run": run.mark,
        "case": case.id,
        "requirement": case.requirement,
        "surface": case.surface,
        "status": str(case.status),
        "ratios": {name: rounded(ratio) for name, (ratio, _, _) in case.outputs.items()},
        "margin": rounded(case.margin),
        "reproducer": case.reproducer,
        "waiver": case.waiver,
    }
    told: dict[str, Any] = {
        "name": f"{case.test}[{case.label}] {case.id}",
        "status": word(case.status),
        "rawStatus": str(case.status),
        "duration": round(1000 * case.duration_s),
        "suite": f"{run.label} > {case.requirement}",
        "extra": {"dsv4": {key: value for key, value in extra.items() if value not in (None, "", {})}},
    }
    return told | ({"message": case.reason} if case.reason else {})


def _extra(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    return [
        {
            "run": run.mark,
            "run_id": run.header.run_id,
            "implementation": run.label,
            "profile": run.header.profile,
            "qualifies": verdict.good,
            "verdict": verdict.word,
            "exit_code": verdict.code,
            "reasons": [reason.whole for reason in verdict.reasons if reason.grave],
            "counts": {str(status): number for status, number in run.counts.items() if number},
            "plan_hash": run.header.plan_hash,
            "results_hash": run.results_hash,
            "requirements": {
                rule.id: {
                    "status": str(rule.status),
                    "cases": rule.cases,
                    "failed": rule.failed,
                    "worst": rounded(rule.worst),
                    "margin": rounded(rule.margin),
                }
                for rule in run.rules.values()
            },
        }
        for run, verdict in zip(runs, verdicts, strict=True)
    ]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _milliseconds(moment: str) -> int:
    try:
        return round(1000 * datetime.fromisoformat(moment).timestamp())
    except ValueError:
        return 0
