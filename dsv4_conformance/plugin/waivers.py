"""Waivers: dated, owned, narrow permissions for known failures, read from TOML files (docs/waivers.md)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.journal import WaiverRecord
from dsv4_conformance.spec.requirements import Registry
from dsv4_conformance.status import Status

LONGEST = timedelta(days=90)


def _url(text: str) -> str:
    if not text.startswith(("https://", "http://")) or len(text.split("/")) < 4:
        raise ValueError("give the URL of an issue")
    return text


def _coverable(statuses: list[Status]) -> list[Status]:
    wrong = set(statuses) - {Status.FAIL, Status.CRASH, Status.TIMEOUT, Status.OUT_OF_MEMORY}
    if wrong or not statuses:
        raise ValueError("a waiver covers FAIL, CRASH, TIMEOUT or OUT_OF_MEMORY")
    return statuses


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Selector(_Strict):
    """Which cases. ``implementation``: pattern of the adapter's name. ``cases``: case ids, empty for any. ``tests``:
    pattern of ``function[label]``. ``statuses``: what is permitted; any other failure stays one."""

    implementation: Annotated[str, Field(min_length=1)]
    surface: str = "*"
    device: str = "*"
    cases: list[str] = []
    tests: str = "*"
    statuses: Annotated[list[Status], AfterValidator(_coverable)] = [Status.FAIL]

    def concerns(self, adapter: str, device: str) -> bool:
        """Whether it can match anything in a run of this adapter on this device."""
        return fnmatchcase(adapter, self.implementation) and fnmatchcase(device, self.device)

    def matches(self, case_id: str, surface: str, test: str) -> bool:
        """Whether it selects this case; ``test`` is a nodeid, or what follows its last ``::``."""
        chosen = not self.cases or case_id in self.cases
        return chosen and fnmatchcase(surface, self.surface) and fnmatchcase(test.rpartition("::")[2], self.tests)


class Waiver(_Strict):
    """``tolerated``: the case runs and its failure is WAIVED; ``quarantined``: it does not run, and nothing that is
    set aside qualifies. ``expires``: the last day, at most 90 after ``opened``."""

    id: Annotated[str, Field(pattern=r"^[\w.-]{1,60}$")]
    requirement: str
    selector: Selector
    issue: Annotated[str, AfterValidator(_url)]
    owner: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^\S")]
    opened: date
    expires: date
    kind: Literal["tolerated", "quarantined"]
    reason: str = ""

    def expired(self, today: date) -> bool:
        """Whether its last day is over."""
        return today > self.expires

    def matches(self, requirement: str, case_id: str, surface: str, test: str) -> bool:
        """Whether it is for this case."""
        return requirement == self.requirement and self.selector.matches(case_id, surface, test)

    def record(self) -> WaiverRecord:
        """For a journal's header."""
        return WaiverRecord.model_validate(self.model_dump(mode="json"))

    def told_by(self, record: WaiverRecord) -> bool:
        """Whether a journal's header tells of this waiver, and changes nothing."""
        try:
            return Waiver.model_validate(record.model_dump()) == self
        except ValidationError:
            return False


def read_waivers(path: Path, registry: Registry, today: date) -> list[Waiver]:
    """All waivers of a TOML file, or of the ``*.toml`` files of a folder, by id.

    Raises BadInput, naming file and waiver, for anything unreadable, unknown, without an end or without an owner.
    """
    files = sorted(path.glob("*.toml")) if path.is_dir() else [path]
    found: dict[str, Waiver] = {}
    for file in files:
        for waiver in _read(file):
            where = f"Waiver {waiver.id} in {file}"
            if waiver.id in found:
                raise BadInput(f"{where} has the id of another one; give each its own.")
            if waiver.expires - waiver.opened > LONGEST or waiver.expires < waiver.opened:
                last = waiver.opened + LONGEST
                raise BadInput(f"{where} expires on {waiver.expires}; it was opened on {waiver.opened}, so by {last}.")
            if waiver.opened > today:
                raise BadInput(f"{where} is opened on {waiver.opened}, which is still to come; today is {today}.")
            try:
                registry.get(waiver.requirement)
            except BadInput as error:
                raise BadInput(f"{where} is for a requirement that does not exist: {error}") from None
            found[waiver.id] = waiver
    return [found[name] for name in sorted(found)]


def _read(file: Path) -> Iterable[Waiver]:
    try:
        content: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"The waivers {file} cannot be read ({error.strerror}); give a TOML file.") from None
    except ValueError as error:
        raise BadInput(f"The waivers {file} are no TOML: {error}.") from None
    unknown = set(content) - {"waiver"}
    entries = content.get("waiver", [])
    if unknown or not isinstance(entries, list):
        raise BadInput(f"The waivers {file} have {sorted(unknown) or 'waiver'} where only [[waiver]] may stand.")
    for number, entry in enumerate(entries, 1):
        try:
            yield Waiver.model_validate(entry)
        except ValidationError as error:
            name = entry.get("id", f"number {number}") if isinstance(entry, dict) else f"number {number}"
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise BadInput(f"Waiver {name} in {file} is wrong at {field}: {first['msg']}.") from None


class Waivers:
    """The waivers that concern a run, and the day on which it takes place."""

    def __init__(self, waivers: Sequence[Waiver] = (), today: date = date.min) -> None:
        self.all = list(waivers)
        self.today = today

    def of(self, requirement: str, case_id: str, surface: str, test: str) -> Waiver | None:
        """The waiver of a case, None if it has none."""
        return next((w for w in self.all if w.matches(requirement, case_id, surface, test)), None)

    def judge(self, waiver: Waiver | None, status: Status, reason: str) -> tuple[Status, str, str]:
        """Status, reason and waiver's id of a case that ended so under ``waiver``."""
        if waiver is None or status in (Status.NOT_RUN, Status.NOT_APPLICABLE, Status.QUARANTINED):
            return status, reason, ""
        if status in (Status.PASS, Status.WARN):
            told = f"Waiver {waiver.id} is stale: this case passes now; take it out of the waiver, or remove it."
            return Status.STALE_WAIVER, told, waiver.id
        if status not in waiver.selector.statuses:
            covered = ", ".join(waiver.selector.statuses)
            return status, f"{reason} Waiver {waiver.id} does not cover this, only {covered}.", ""
        if waiver.expired(self.today):
            return status, f"{reason} {self._over(waiver)}", ""
        told = f"{waiver.id} until {waiver.expires} ({waiver.owner}, {waiver.issue}): {reason}"
        return Status.WAIVED, told, waiver.id

    def quarantines(self, waiver: Waiver | None) -> bool:
        """Whether a case with this waiver is set aside."""
        return waiver is not None and waiver.kind == "quarantined" and not waiver.expired(self.today)

    def problems(self, unmatched: Iterable[str], planned: Iterable[str]) -> list[str]:
        """What is wrong with the waivers of the ``planned`` requirements; ``unmatched``: ids without a case."""
        wanted, nothing = set(planned), set(unmatched)
        told = [self._over(w) for w in self.all if w.requirement in wanted and w.expired(self.today)]
        without = [w.id for w in self.all if w.id in nothing]
        return told + [f"Waiver {name} matches no case; correct its selector, or remove it." for name in without]

    @staticmethod
    def _over(waiver: Waiver) -> str:
        who = f"{waiver.owner} has to renew or remove it ({waiver.issue})"
        return f"Waiver {waiver.id} expired on {waiver.expires}; {who}."
