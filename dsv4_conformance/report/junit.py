"""JUnit XML of several runs, written while reading: a suite per run, a test case per case, everything in properties.

CI servers know failure, error and skipped. What does not qualify is a failure, or an error where the process or the
harness ended; NOT_APPLICABLE and QUARANTINED are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from dsv4_conformance.report.escaping import xml
from dsv4_conformance.report.folding import Run
from dsv4_conformance.report.gathering import Gathered
from dsv4_conformance.report.kept import Case, case_of
from dsv4_conformance.report.measured import told
from dsv4_conformance.status import QUALIFYING, Status

ERRORS = (Status.CRASH, Status.TIMEOUT, Status.OUT_OF_MEMORY, Status.NOT_RUN, Status.HARNESS_ERROR)
SKIPPED = (Status.NOT_APPLICABLE, Status.QUARANTINED)
FAILURES = tuple(status for status in Status if status not in (*QUALIFYING, *ERRORS, *SKIPPED))


def write(gathered: Gathered, file: TextIO) -> None:
    """Write the document, one case at a time."""
    file.write('<?xml version="1.0" encoding="utf-8"?>\n<testsuites name="dsv4-conformance"')
    file.write(f' tests="{sum(run.total for run in gathered.runs)}">\n')
    for run, journal in zip(gathered.runs, gathered.journals, strict=True):
        file.write(f"  <testsuite {_counts(run)}>\n    <properties>\n")
        for name, value in _properties(run):
            file.write(f'      <property name="{name}" value="{xml(value, 1000)}"/>\n')
        file.write("    </properties>\n")
        for result in journal.results():
            file.writelines(_case(case_of(result)))
        file.write("  </testsuite>\n")
    file.write("</testsuites>\n")


def _counts(run: Run) -> str:
    def count(statuses: tuple[Status, ...]) -> int:
        return sum(run.counts[status] for status in statuses)

    return (
        f'name="{xml(run.label)}" tests="{run.total}" failures="{count(FAILURES)}" errors="{count(ERRORS)}" '
        f'skipped="{count(SKIPPED)}" time="{run.duration_s:.3f}" timestamp="{xml(run.header.started)}"'
    )


def _properties(run: Run) -> Iterator[tuple[str, str]]:
    header = run.header
    yield from (("run", header.run_id), ("profile", header.profile), ("device", header.device))
    yield from (("plan_hash", header.plan_hash), ("results_hash", run.results_hash))
    yield "commit", header.environment.commit
    if run.footer is not None:
        yield "verdict", run.footer.verdict


def _case(case: Case) -> Iterator[str]:
    test = xml(f"{case.test}[{case.label}]")
    yield f'    <testcase classname="{xml(case.requirement)}" name="{xml(case.id)}" time="{case.duration_s:.3f}">\n'
    yield "      <properties>\n"
    properties = [("status", str(case.status)), ("surface", case.surface), ("test", None), ("waiver", case.waiver)]
    properties += [(f"{name}_ratio", told(ratio)) for name, (ratio, _, _) in case.outputs.items()]
    properties += [("margin", told(case.margin)), ("reproducer", case.reproducer)]
    for name, value in properties:
        if value is None or value:
            yield f'        <property name="{xml(name)}" value="{test if value is None else xml(value)}"/>\n'
    yield "      </properties>\n"
    kind = "failure" if case.status in FAILURES else "error" if case.status in ERRORS else ""
    if kind:
        told_ = f"{case.reason}\n{case.reproducer}".strip()
        yield f'      <{kind} type="{case.status}" message="{xml(case.reason, 500)}">{xml(told_)}</{kind}>\n'
    elif case.status in SKIPPED:
        yield f'      <skipped type="{case.status}" message="{xml(case.reason, 500)}"/>\n'
    yield "    </testcase>\n"
