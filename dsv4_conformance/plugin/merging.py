"""Journals of shards made one: same plan, same build, same adapter; what no journal tells is NOT_RUN."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin import crashes
from dsv4_conformance.plugin.ending import Ending, footer
from dsv4_conformance.plugin.fitting import COMMON, refuse_unless_equal
from dsv4_conformance.plugin.journal import Header, Journal, PlanEntry, Result, Source, plan_hash, read_journal
from dsv4_conformance.plugin.options import Options
from dsv4_conformance.plugin.results_folder import JOURNAL, JournalWriter, ResultsFolder, new_run_id, unwritable
from dsv4_conformance.plugin.verdict import order
from dsv4_conformance.report.evidence import contradictions
from dsv4_conformance.status import Status


def merge(paths: Sequence[Path]) -> Journal:
    """One journal of all results.

    Raises BadInput, naming the field or the case, if two journals do not belong together: another build, adapter,
    profile, seed, device, plan or way to cut it, the same run or shard twice, a case that two of them have run; or if
    one is of no shard, or contradicts itself.
    """
    read = [(path, read_journal(path)) for path in paths]
    for path, journal in read:
        if journal.header.shard is None:
            raise BadInput(f"The journal {path} is of no shard; merge takes the journals of runs with --shard I/N.")
        if found := contradictions(journal):
            raise BadInput(f"The journal {path} contradicts itself: {found[0]}")
    first_path, first = read[0]
    for path, journal in read[1:]:
        refuse_unless_equal(COMMON, journal.header, first.header, f"merged with {first_path}", path)
    _refuse_twice([(path, journal.header.run_id) for path, journal in read], "the run")
    shards = [(path, str(j.header.shard.index)) for path, j in read if j.header.shard is not None]
    _refuse_twice(shards, "the shard")
    plan = _whole_plan(first_path, first.header)
    results: dict[str, Result] = {}
    origin: dict[str, Path] = {}
    for path, journal in read:
        for result in journal.results:
            if result.status is Status.NOT_RUN:
                continue
            if result.nodeid in results:
                raise BadInput(f"{path} and {origin[result.nodeid]} both have a result of {result.case_id}; give one.")
            results[result.nodeid], origin[result.nodeid] = result, path
    gaps = {result.nodeid: result for _, journal in read for result in journal.results}
    header = _header([journal.header for _, journal in read], plan)
    told = [results.get(entry.nodeid) or _not_run(entry, gaps.get(entry.nodeid), header) for entry in plan]
    problems = {problem: None for _, journal in read if journal.footer for problem in journal.footer.problems}
    return Journal(header, told, footer(header, told, Ending(problems=tuple(problems))))


def write(journal: Journal, folder: Path) -> Path:
    """Write a merged journal as a run writes its own; an older one in the folder is kept. Raises BadInput."""
    assert journal.footer is not None
    claimed = ResultsFolder(folder)
    try:
        claimed.retire()
        writer = JournalWriter(folder / JOURNAL, journal.header, journal.results)
        writer.write(journal.footer)
        writer.close()
    except OSError as error:
        raise BadInput(unwritable(folder, error)) from None
    finally:
        claimed.release()
    return folder / JOURNAL


def _refuse_twice(named: Sequence[tuple[Path, str]], what: str) -> None:
    seen: dict[str, Path] = {}
    for path, name in named:
        if name in seen:
            raise BadInput(f"{seen[name]} and {path} are both of {what} {name}; give each once.")
        seen[name] = path


def _whole_plan(path: Path, header: Header) -> list[PlanEntry]:
    plan = [*header.plan, *(header.shard.elsewhere if header.shard else [])]
    if header.shard is not None and plan_hash(plan) != header.shard.plan_hash:
        raise BadInput(f"The journal {path} is damaged: its plan is not the one that its plan_hash was made of.")
    return sorted(plan, key=lambda entry: (order(entry.requirement), entry.nodeid))


def _header(headers: Sequence[Header], plan: list[PlanEntry]) -> Header:
    first = min(headers, key=lambda header: header.started)
    requirements = {named.id: named for header in headers for named in header.requirements}
    sources = [
        Source(
            run_id=header.run_id,
            shard=header.shard.index if header.shard else None,
            device=header.device,
            environment=header.environment,
        )
        for header in headers
    ]
    return first.model_copy(
        update={
            "run_id": new_run_id(),
            "command": ["merge", *(header.run_id for header in headers)],
            "workers": sum(header.workers for header in headers),
            "requirements": sorted(requirements.values(), key=lambda named: order(named.id)),
            "plan": plan,
            "plan_hash": plan_hash(plan),
            "not_selected": list({(n.what, n.reason): n for header in headers for n in header.not_selected}.values()),
            "partial": ", ".join(dict.fromkeys(header.partial for header in headers if header.partial)),
            "shard": None,
            "resumed": [],
            "merged": sources,
        }
    )


def _not_run(entry: PlanEntry, gap: Result | None, header: Header) -> Result:
    if gap is not None:
        return gap
    options = Options(impl=header.implementation.requested, profile=header.profile, seed=header.seed)
    why = "None of the merged journals has a result of this case."
    return Result.model_validate(crashes.payload(entry, Status.NOT_RUN, why, "", options.reproducer(entry.case_id)))
