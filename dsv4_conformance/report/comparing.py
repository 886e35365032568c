"""Two runs, case by case: fixed, regressed, new, gone, drifted, and what was checked once and is not any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dsv4_conformance.plugin.journal import Result
from dsv4_conformance.report.gathering import Gathered, by_id, gather
from dsv4_conformance.report.kept import Case, case_of
from dsv4_conformance.report.measured import ratios
from dsv4_conformance.report.sections import facts
from dsv4_conformance.status import CHECKED, QUALIFYING, Status

DRIFT = 0.5
"""From this many budgets on a grown error of a case that still passes is told."""
MOST = 2000
"""Cases of one class that are kept."""
ALWAYS = ("started (UTC)", "finished (UTC)", "time in tests", "results hash", "run", "command")
"""What differs between any two runs."""
Change = Literal["regressed", "uncovered", "gone", "drifted", "otherwise", "fixed", "covered", "new"]
CHANGES: tuple[Change, ...] = ("regressed", "uncovered", "gone", "drifted", "otherwise", "fixed", "covered", "new")
MEANINGS: dict[Change, str] = {
    "regressed": "qualified, and does not any more",
    "uncovered": "was checked, and is declared not applicable now",
    "gone": "was planned, and is not any more",
    "drifted": f"still passes, and its error grew by {DRIFT:g} budgets or more",
    "otherwise": "did not qualify, and does not now, in another way",
    "fixed": "did not qualify, and does now",
    "covered": "was not applicable, and is checked now",
    "new": "was not planned, and is now",
}


@dataclass(frozen=True)
class Changed:
    """A case that is not what it was. ``grown``: output -> (error before, error now) in budgets, those that drifted."""

    change: Change
    before: Case | None
    after: Case | None
    grown: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def case(self) -> Case:
        """The newer of the two."""
        found = self.after or self.before
        assert found is not None
        return found


@dataclass
class Comparison:
    """What changed between two runs. ``counts``: cases per class, ``same``: those that did not change; ``checked``: in
    the second run; ``differing``: (field, before, now) of how and where the two were made."""

    gathered: Gathered
    counts: Counter[Change]
    same: int
    kept: dict[Change, list[Changed]]
    checked: int
    differing: list[tuple[str, str, str]]

    @property
    def reliable(self) -> bool:
        """Whether both journals hold together, and the second run came to its end."""
        one, other = self.gathered.verdicts
        return not other.doubts and (not one.doubts or self.gathered.runs[0].footer is None)

    @property
    def common(self) -> int:
        """Cases that both runs have."""
        return self.same + sum(n for change, n in self.counts.items() if change not in ("new", "gone"))


def compare(one: Path, other: Path) -> Comparison:
    """Compare two journals, aligned by case; of the first one a status and errors per case are kept in memory.

    Raises BadInput for journals that cannot be read, or that are of the same run.
    """
    gathered = gather([one, other], page_cases=2)
    before: dict[tuple[str, str, int], tuple[Status, dict[str, float]]] = {}
    for key, result in _keyed(gathered.journals[0].results()):
        before[key] = (result.status, ratios(result.record))
    counts: Counter[Change] = Counter()
    kept: dict[Change, list[Changed]] = {change: [] for change in CHANGES}
    wanted: dict[tuple[str, str, int], tuple[Change, Case]] = {}
    same = checked = 0
    for key, result in _keyed(gathered.journals[1].results()):
        checked += result.status in CHECKED
        old = before.pop(key, None)
        change: Change | None = "new" if old is None else changed(*old, result.status, ratios(result.record))
        if change is None:
            same += 1
            continue
        counts[change] += 1
        if counts[change] <= MOST:
            if old is None:
                kept[change].append(Changed(change, None, case_of(result)))
            else:
                wanted[key] = (change, case_of(result))
    # What is left was planned in the first run alone. A second pass tells what kept cases were before.
    counts["gone"] = len(before)
    for key, result in _keyed(gathered.journals[0].results()):
        if key in before and len(kept["gone"]) < MOST:
            kept["gone"].append(Changed("gone", case_of(result), None))
        elif key in wanted:
            change, case = wanted[key]
            was = case_of(result)
            kept[change].append(Changed(change, was, case, grown(was, case)))
    for changes in kept.values():
        changes.sort(key=lambda found: (by_id(found.case.requirement), found.case.id, found.case.surface))
    differing = [(row.name, *row.values) for row in facts(gathered) if row.differs and row.name not in ALWAYS]
    return Comparison(gathered, +counts, same, kept, checked, [(n, a, b) for n, a, b in differing])


def changed(before: Status, old: dict[str, float], after: Status, new: dict[str, float]) -> Change | None:
    """The class of a case that both runs have; None if nothing worth telling changed."""
    if before in QUALIFYING and after in QUALIFYING:
        if after is Status.NOT_APPLICABLE:
            return None if before is Status.NOT_APPLICABLE else "uncovered"
        if before is Status.NOT_APPLICABLE:
            return "covered"
        drifted = any(value - old.get(name, value) >= DRIFT for name, value in new.items())
        return "drifted" if drifted else None
    if before in QUALIFYING:
        return "regressed"
    if after in QUALIFYING:
        return "uncovered" if after is Status.NOT_APPLICABLE and before in CHECKED else "fixed"
    return None if before is after else "otherwise"


def grown(before: Case, after: Case) -> dict[str, tuple[float, float]]:
    """Outputs whose error grew by ``DRIFT`` or more."""
    pairs = {name: (before.outputs[name][0], now[0]) for name, now in after.outputs.items() if name in before.outputs}
    return {name: (old, new) for name, (old, new) in pairs.items() if new - old >= DRIFT}


def _keyed(results: Iterable[Result]) -> Iterable[tuple[tuple[str, str, int], Result]]:
    """Each result with what names the same case in another run: id, surface, and a number if that is not enough."""
    seen: Counter[tuple[str, str]] = Counter()
    for result in results:
        name = (result.case_id, result.surface)
        yield (*name, seen[name]), result
        seen[name] += 1
