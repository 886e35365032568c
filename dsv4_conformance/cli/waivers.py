"""``dsv4-conformance waivers``: list, add, check."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4_conformance.cli.options import Waivers
from dsv4_conformance.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from dsv4_conformance.plugin.waivers import Waiver

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
DAYS = 30


@app.callback()
def _root() -> None:
    """Known failures that are tolerated, or cases that are set aside, for a while."""


@app.command("list")
def listing(waivers: Waivers = None) -> None:
    """List waivers, those that end first on top."""
    today = _today()
    found = sorted(_read(waivers, today), key=lambda waiver: (waiver.expires, waiver.id))
    for waiver in found:
        left = (waiver.expires - today).days
        ends = f"{left} day(s) left" if left >= 0 else f"EXPIRED {-left} day(s) ago"
        statuses = ", ".join(waiver.selector.statuses)
        what = f"{waiver.kind} {statuses} of {waiver.requirement} in {waiver.selector.implementation}"
        typer.echo(f"{waiver.id}: {ends} ({waiver.expires}), {what}, {waiver.owner}, {waiver.issue}")
    typer.echo(f"{len(found)} waiver(s)")


@app.command()
def check(
    journals: Annotated[
        list[Path] | None, typer.Argument(metavar="[JOURNAL...]", help="Journals in which no waived case may pass.")
    ] = None,
    waivers: Waivers = None,
) -> int:
    """Say what is wrong with waivers: expired, without any case, or stale in one of the journals.

    Exit code 1 if anything is, 2 if a file is malformed.
    """
    today = _today()
    found = _read(waivers, today)
    told = [f"{w.id} expired on {w.expires}; {w.owner} has to renew or remove it." for w in found if w.expired(today)]
    told += [
        f"{w.id} matches no case of any profile; correct its selector, or remove it." for w in _without_case(found)
    ]
    told += _stale(found, journals or [])
    for sentence in told:
        typer.echo(sentence)
    typer.echo(f"{len(found)} waiver(s), {len(told)} problem(s)")
    return ExitCode.FAILED if told else ExitCode.QUALIFIES


@app.command()
def add(
    requirement: Annotated[str, typer.Option(metavar="ID", help="Such as INV-02.")],
    implementation: Annotated[str, typer.Option(metavar="PATTERN", help="The adapter's name, as in its identity.")],
    issue: Annotated[str, typer.Option(metavar="URL", help="Where the failure is being worked on.")],
    owner: Annotated[str, typer.Option(metavar="WHO", help="Who has to renew or remove it.")],
    case: Annotated[list[str] | None, typer.Option(metavar="ID", help="A case; repeatable.")] = None,
    journal: Annotated[
        Path | None, typer.Option(metavar="JOURNAL", help="Take the cases that failed in this run.")
    ] = None,
    days: Annotated[int, typer.Option(metavar="N", help="Days until it expires, 90 at most.")] = DAYS,
    kind: Annotated[
        str, typer.Option(metavar="tolerated|quarantined", help="Run them, or set them aside.")
    ] = "tolerated",
    name: Annotated[str | None, typer.Option("--id", metavar="ID", help="Its name; made up if not given.")] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why it is permitted.")] = "",
    waivers: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to add it to; golden/waivers/<requirement>.toml.")
    ] = None,
) -> None:
    """Add a waiver for cases that are named, or that failed in a run."""
    today = _today()
    if not days > 0:
        raise BadInput(f"--days is {days}; give the days until the waiver expires, 1 to 90.")
    cases, statuses = list(case or []), ["FAIL"]
    if foreign := [name for name in cases if re.match(r"[A-Z]+-\d+-", name) and name.rpartition("-")[0] != requirement]:
        raise BadInput(f"--case {foreign[0]} is not of {requirement}; such a waiver would match nothing.")
    if journal is not None:
        failed = _failed(journal, requirement, implementation)
        cases += sorted(failed)
        statuses = sorted(set(failed.values()))
    if not cases:
        raise BadInput("A waiver needs its cases: give --case, or --journal of a run in which they failed.")
    path = waivers if waivers is not None else _shipped() / f"{requirement}.toml"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    chosen = name or _free_name(before, f"{requirement}-{today:%Y%m%d}")
    entry = [
        "[[waiver]]",
        f"id = {_text(chosen)}",
        f"requirement = {_text(requirement)}",
        f"issue = {_text(issue)}",
        f"owner = {_text(owner)}",
        f"opened = {today}",
        f"expires = {today + timedelta(days=days)}",
        f"kind = {_text(kind)}",
        f"reason = {_text(reason)}",
        "[waiver.selector]",
        f"implementation = {_text(implementation)}",
        f"cases = [{', '.join(map(_text, dict.fromkeys(cases)))}]",
        f"statuses = [{', '.join(map(_text, statuses))}]",
    ]
    _write(path, (f"{before.rstrip()}\n\n" if before.strip() else "") + "\n".join(entry) + "\n", before, today)
    typer.echo(f"added {chosen} for {len(set(cases))} case(s) to {path}; it expires on {today + timedelta(days=days)}")


def _today() -> date:
    return datetime.now(UTC).date()


def _shipped() -> Path:
    from dsv4_conformance import resources

    return resources.golden_dir() / "waivers"


def _read(given: str | None, today: date) -> list[Waiver]:
    from dsv4_conformance.plugin.waivers import read_waivers
    from dsv4_conformance.spec.requirements import load_registry

    path = _shipped() if given is None else Path(given).expanduser()
    if given is None and not path.is_dir():
        return []
    return read_waivers(path, load_registry(), today)


def _write(path: Path, text: str, before: str, today: date) -> None:
    """Write the file, or leave it as it was if what was added is wrong."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"The waivers {path} cannot be written ({error.strerror}); name another file.") from None
    try:
        _read(str(path), today)
    except BadInput:
        if before:
            path.write_text(before, encoding="utf-8")
        else:
            path.unlink()
        raise


def _text(value: str) -> str:
    """A TOML string; JSON's escapes are TOML's, except for the one control character that JSON leaves alone."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _free_name(before: str, wanted: str) -> str:
    names = [wanted, *(f"{wanted}-{number}" for number in range(2, 1000))]
    return next(name for name in names if f'id = "{name}"' not in before)


def _failed(journal: Path, requirement: str, implementation: str) -> dict[str, str]:
    """Case -> status of what can be waived. Raises BadInput if the run is of another implementation."""
    from dsv4_conformance.plugin.journal import read_journal
    from dsv4_conformance.report.gathering import journal_path
    from dsv4_conformance.status import Status

    found = read_journal(journal_path(journal))
    adapter = str(found.header.implementation.identity.get("name"))
    if not fnmatchcase(adapter, implementation):
        raise BadInput(
            f"{journal} is a run of {adapter!r}, and the waiver, for {implementation!r}, would match nothing in "
            "such a run; give --implementation as the journal has it, or another journal."
        )
    coverable = (Status.FAIL, Status.CRASH, Status.TIMEOUT, Status.OUT_OF_MEMORY)
    failed = {r.case_id: str(r.status) for r in found.results if r.requirement == requirement and r.status in coverable}
    if not failed:
        raise BadInput(f"No case of {requirement} failed in {journal}; there is nothing to waive.")
    return failed


def _without_case(found: list[Waiver]) -> list[Waiver]:
    """Those that no implementation's cases can match."""
    from dsv4_conformance.cases.plan import expand
    from dsv4_conformance.cases.profiles import load_profiles
    from dsv4_conformance.cli.suite_functions import suite_functions

    wanted = {waiver.requirement for waiver in found}
    missing = {waiver.id: waiver for waiver in found}
    for function in suite_functions() if found else ():
        spec, name = function.spec, function.function.__name__
        for profile in load_profiles().values() if spec.requirement in wanted else ():
            for case in expand(spec, name, profile, 0) if profile.cases_for(spec.requirement, spec.family) else ():
                for waiver in list(missing.values()):
                    if waiver.matches(spec.requirement, case.case_id, case.surface, f"{name}[{case.label}]"):
                        del missing[waiver.id]
    return list(missing.values())


def _stale(found: list[Waiver], journals: list[Path]) -> list[str]:
    """Cases that pass and have a waiver, also of runs that were made without these waivers."""
    from dsv4_conformance.plugin.journal import read_journal
    from dsv4_conformance.report.gathering import journal_path
    from dsv4_conformance.status import Status

    told = []
    for path in journals:
        journal = read_journal(journal_path(path))
        adapter, device = str(journal.header.implementation.identity.get("name")), journal.header.device
        for result in journal.results:
            case = (result.requirement, result.case_id, result.surface, result.nodeid)
            if result.status in (Status.PASS, Status.WARN, Status.STALE_WAIVER):
                told += [
                    f"{waiver.id} is stale: {result.case_id} passed in {path}; take it out."
                    for waiver in found
                    if waiver.id == result.waiver
                    or (waiver.selector.concerns(adapter, device) and waiver.matches(*case))
                ]
    return told
