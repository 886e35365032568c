"""Does a journal hold together: what its header, its results and its waivers say against what they claim.

Nothing here knows what a kernel should compute. It finds a pass without a measurement, a measurement that contradicts
itself, and a failure that no waiver permits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import date

from pydantic import ValidationError

import dsv4_conformance
from dsv4_conformance.cases.profiles import load_profiles
from dsv4_conformance.plugin.journal import Header, Journal, Result, results_hash
from dsv4_conformance.plugin.waivers import LONGEST, Waiver
from dsv4_conformance.report import escaping
from dsv4_conformance.report.measured import LIMIT, SUFFIX, mapping, number
from dsv4_conformance.status import Status

SHOWN = 5
"""Cases that a sentence names."""
ROUNDING = 1e-3
"""How far a ratio may be from error / budget, in parts of the larger of 1 and itself."""
PACKAGE = "dsv4-conformance"


def flaw(result: Result) -> str:
    """What is wrong with the record of a case that passed, as the end of a sentence; "" if nothing is.

    A SHOULD that is not met (WARN) may be beyond its budget.
    """
    if result.status not in (Status.PASS, Status.WARN):
        return ""
    metrics, budget = result.record.get("metrics"), mapping(result.record.get("budget"))
    compared = result.record.get("checked") or result.status is Status.WARN  # which an exception before it can make
    if not compared or not isinstance(metrics, dict):
        return "passed without a record of anything that was compared."
    for key, value in metrics.items():
        measured = number(value)
        if key.endswith((SUFFIX, "_error")) and not (measured is not None and measured >= 0):
            return f"passed with {key} that is no number, or negative."
    if result.status is Status.PASS and any(
        (number(v) or 0.0) > LIMIT for k, v in metrics.items() if k.endswith(SUFFIX)
    ):
        return "passed with an error beyond its budget."
    for output, allowed in ((name, number(value)) for name, value in budget.items()):
        if allowed is None:  # such as how the budget was derived
            continue
        ratio, error = number(metrics.get(output + SUFFIX)), number(metrics.get(f"{output}_error"))
        if ratio is None or error is None:
            return f"passed with a budget for {output} and no error of it."
        if not abs(ratio * allowed - error) <= ROUNDING * max(1.0, ratio) * allowed:
            return f"passed with {output}{SUFFIX} that is not its error over its budget."
    return ""


class Evidence:
    """Takes the results of one journal, in one pass, and tells what does not hold together."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._day = _day(header.started)
        self._flaws: dict[str, _Cases] = defaultdict(_Cases)
        self._unwaived: dict[str, _Cases] = defaultdict(_Cases)
        self._known, self._invalid = _waivers(header, self._day)

    def add(self, result: Result) -> None:
        """Look at one result."""
        if told := flaw(result):
            self._flaws[told].add(result.case_id)
        if result.status is Status.WAIVED and (told := self._unpermitted(result)):
            self._unwaived[told].add(result.case_id)

    def doubts(self) -> list[str]:
        """What is wrong with header and results, a sentence each."""
        return [*_header_doubts(self._header), *(f"{cases} {told}" for told, cases in self._flaws.items())]

    def waivers(self) -> list[str]:
        """What is wrong with the waivers, and with what rests on them."""
        return [*self._invalid, *(f"{cases} is waived {told}" for told, cases in self._unwaived.items())]

    def _unpermitted(self, result: Result) -> str:
        waiver = self._known.get(result.waiver)
        case = (result.requirement, result.case_id, result.surface, result.nodeid)
        day = self._day
        if waiver is None or day is None or waiver.expired(day) or not waiver.matches(*case):
            return "without a valid waiver for it."
        if waiver.kind != "tolerated":
            return f"by {waiver.id}, which is {waiver.kind}: such a case does not run."
        if result.waived_status is None:
            return "and does not say with which status it ended."
        if result.waived_status not in waiver.selector.statuses:
            covered = ", ".join(waiver.selector.statuses)
            return f"by {waiver.id}, which covers {covered} and not {result.waived_status}."
        return ""


def contradictions(journal: Journal) -> list[str]:
    """All that does not hold together in a journal that is in memory, its footer included."""
    evidence = Evidence(journal.header)
    for result in journal.results:
        evidence.add(result)
    told = [*evidence.doubts(), *evidence.waivers()]
    if journal.footer is not None and journal.footer.results_hash != results_hash(journal.results):
        told.append("the results are not those that its results_hash was made of.")
    return told


class _Cases:
    """The first few cases of a kind, and how many there are."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._count = 0

    def add(self, case_id: str) -> None:
        self._count += 1
        if len(self._names) < SHOWN:
            self._names.append(case_id)

    def __str__(self) -> str:
        more = f" and {self._count - SHOWN} more" if self._count > SHOWN else ""
        return f"{', '.join(escaping.name(name) for name in self._names)}{more}"


def _header_doubts(header: Header) -> Iterator[str]:
    where = [(header.device, header.environment), *((source.device, source.environment) for source in header.merged)]
    if any(device == "cuda" and not environment.gpus for device, environment in where):
        yield "the run was on a GPU, and the journal does not say which."
    versions = {environment.packages.get(PACKAGE, header.version) for _, environment in where} - {header.version}
    if versions:
        told = ", ".join(sorted(escaping.name(version) for version in versions))
        yield f"it is of {PACKAGE} {escaping.name(header.version)}, and its list of packages has {told}."
    if header.version == dsv4_conformance.__version__ and header.profile not in load_profiles():
        yield f"there is no profile {escaping.name(header.profile)!r}."


def _waivers(header: Header, day: date | None) -> tuple[dict[str, Waiver], list[str]]:
    """The waivers by id that a run of this adapter can have had, and what is wrong with the others."""
    known: dict[str, Waiver] = {}
    wrong = [] if day is not None or not header.waivers else ["the day of the run is not told."]
    adapter = str(header.implementation.identity.get("name", ""))
    for record in header.waivers:
        try:
            waiver = Waiver.model_validate(record.model_dump())
        except ValidationError:
            wrong.append(f"{escaping.name(record.id)} is no valid waiver.")
            continue
        if not waiver.selector.concerns(adapter, header.device):
            wrong.append(f"{waiver.id} is for another adapter or device than this run's.")
            continue
        if waiver.expires - waiver.opened > LONGEST or (day is not None and waiver.opened > day):
            wrong.append(f"{waiver.id} is open for more than {LONGEST.days} days, or was opened after the run.")
        known[waiver.id] = waiver
    return known, wrong


def _day(moment: str) -> date | None:
    try:
        return date.fromisoformat(moment[:10])
    except ValueError:
        return None
