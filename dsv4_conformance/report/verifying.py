"""Recomputes a submission: files, plan, results, verdict, waivers, environment, git state, goldens, the report.

It finds gaps, and edits that were not carried through everything; it is no signature. Sign the manifest's hash.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import dsv4_conformance
from dsv4_conformance import resources
from dsv4_conformance.errors import BadInput
from dsv4_conformance.golden.manifest import load as load_goldens
from dsv4_conformance.plugin import verdict
from dsv4_conformance.plugin.ending import Ending
from dsv4_conformance.plugin.environment import describe
from dsv4_conformance.plugin.journal import Footer, Header, plan_hash
from dsv4_conformance.plugin.waivers import Waiver, read_waivers
from dsv4_conformance.report import escaping
from dsv4_conformance.report.evidence import SHOWN
from dsv4_conformance.report.faults import FaultTable, of_journals, read_faults
from dsv4_conformance.report.folding import Run
from dsv4_conformance.report.gathering import Gathered, gather
from dsv4_conformance.report.stream import JournalFile
from dsv4_conformance.report.submission import MANIFEST, Manifest, goldens_hash, present, sha256
from dsv4_conformance.report.writing import files
from dsv4_conformance.spec.requirements import load_registry
from dsv4_conformance.status import Status


@dataclass
class Findings:
    """``refusals``: why the submission is not accepted; ``notes``: what a reader should know; ``checked``: what holds.
    ``incomparable``: it belongs to another version, so that nothing can be recomputed."""

    refusals: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    incomparable: bool = False

    def part(self, what: str, found: Iterator[str]) -> None:
        """Take the sentences of one part; without any, the part holds."""
        wrong = list(found)
        self.refusals += [f"{what}: {sentence}" for sentence in wrong]
        if not wrong:
            self.checked.append(what)


def verify(
    folder: Path, manifest: Manifest, golden: Path | None = None, waivers: Path | None = None
) -> tuple[Findings, Gathered | None]:
    """Everything that is wrong with a submission, and its runs where they can be read.

    ``golden``, ``waivers``: those that are not the shipped ones. Raises BadInput for a journal that cannot be read."""
    findings = Findings()
    findings.part("files", _files(folder, manifest))
    journals = [folder / run.journal for run in manifest.runs]
    absent = [path for path in journals if not path.is_file()]
    if absent or not journals:
        return findings, None
    gathered = gather(journals)
    if manifest.version != dsv4_conformance.__version__:
        findings.incomparable = True
        findings.refusals.append(
            f"version: it was made by dsv4-conformance {escaping.name(manifest.version)}, and this is "
            f"{dsv4_conformance.__version__}; verify it with the version that made it."
        )
    for number, (run, journal) in enumerate(zip(gathered.runs, gathered.journals, strict=True)):
        submitted = manifest.runs[number]
        named = (submitted.run_id, submitted.plan_hash, submitted.results_hash, submitted.commit, submitted.modified)
        environment = run.header.environment
        told = (run.header.run_id, run.header.plan_hash, run.results_hash, environment.commit, environment.modified)
        findings.part(f"{run.mark} manifest", iter(() if named == told else (f"{MANIFEST} tells another run.",)))
        findings.part(f"{run.mark} results", _results(run, journal))
        findings.part(f"{run.mark} waivers", _waivers(run, waivers))
        findings.part(f"{run.mark} environment", _environment(run.header, run.footer))
        findings.part(f"{run.mark} goldens", _judged_by(run, golden))
        if not findings.incomparable:
            findings.part(f"{run.mark} plan", _plan(journal, findings))
        findings.part(f"{run.mark} verdict", _qualifies(gathered, number))
    if not findings.incomparable:
        findings.part("goldens", _goldens(manifest))
        findings.part("report", _report(folder, manifest, gathered))
    return findings, gathered


def _files(folder: Path, manifest: Manifest) -> Iterator[str]:
    there = set(present(folder))
    for name in sorted(manifest.files.keys() - there):
        yield f"{name} is missing."
    for name in sorted(there - manifest.files.keys()):
        yield f"{escaping.name(name)} is not in {MANIFEST}."
    for name in sorted(there & manifest.files.keys()):
        if (folder / name).is_symlink():
            yield f"{name} is a link, which proves nothing."
        elif sha256(folder / name) != manifest.files[name]:
            yield f"{name} was changed."


def _results(run: Run, journal: JournalFile) -> Iterator[str]:
    header, footer = run.header, run.footer
    if footer is None:
        yield "the run did not end; its journal has no footer."
        return
    if plan_hash(journal.plan()) != header.plan_hash:
        yield "the plan is not the one that its plan_hash was made of."
    if run.missing:
        yield f"{run.missing} planned case(s) have no result."
    if run.unplanned:
        yield f"{run.unplanned} result(s) are of cases that were not planned."
    if footer.results_hash != run.results_hash:
        yield "the results are not those that the results_hash was made of."
    code, note = Ending(problems=tuple(footer.problems)).judge(header, sorted(run.statuses))
    counts = {status: run.counts[status] for status in Status if run.counts[status]}
    if footer.counts != counts:
        yield "the counts of the footer are not those of the results."
    if footer.requirements != {name: rule.status for name, rule in run.rules.items()}:
        yield "the statuses of requirements in the footer are not those of the results."
    told = verdict.sentence(code, header.profile, counts, note)
    if (footer.exit_code, footer.qualifies, footer.verdict) != (code, code == 0 and not note, told):
        yield f"the verdict does not follow from the results: {escaping.line(told, 300)}"
    yield from run.doubts


def _waivers(run: Run, folder: Path | None) -> Iterator[str]:
    """Waivers have to be valid, and to stand in a file that is here."""
    yield from run.waiver_doubts
    root = folder if folder is not None else resources.golden_dir() / "waivers"
    there: list[Waiver] = []
    if run.header.waivers and root.exists():
        try:
            there = read_waivers(root, load_registry(), datetime.now(UTC).date())
        except BadInput as error:
            yield str(error)
    for record in run.header.waivers:
        if not any(waiver.told_by(record) for waiver in there):
            yield f"{escaping.name(record.id)} does not stand so in {root}; name its file with --waivers."


def _environment(header: Header, footer: Footer | None) -> Iterator[str]:
    where = [(header.device, header.environment), *((source.device, source.environment) for source in header.merged)]
    for device, environment in where:
        if environment.modified:
            yield "the suites were run from a checkout with changes; commit them and run again."
        named = environment.driver and all(gpu.name for gpu in environment.gpus)
        if device == "cuda" and environment.gpus and not named:
            yield "the run was on a GPU, and the journal does not name it, or its driver."
        if not environment.packages.get("torch"):
            yield "the version of torch is not recorded."
    if len({environment.commit for _, environment in where}) > 1:
        yield "the merged journals are of several commits."
    if header.shard is not None or header.partial:
        yield "not all of the profile was run."
    if footer is not None and footer.finished < header.started:
        yield "the run ended before it began."


def _judged_by(run: Run, folder: Path | None) -> Iterator[str]:
    """Accuracy runs have to be judged by goldens that are here, and unedited."""
    from dsv4_conformance.accuracy import golden_files

    root = folder if folder is not None else resources.golden_dir()
    known = set()
    for name in golden_files.names(root) if run.accuracy else ():
        try:
            known.add(golden_files.load(root, name).content_hash)
        except BadInput as error:
            yield str(error)
    for record in run.accuracy:
        if "golden" not in record and record.get("verdict") == "INVALID":
            continue  # judged by nothing, and counted as what it is
        golden = record.get("golden")
        golden = golden if isinstance(golden, dict) else {}
        if golden.get("sha256") not in known:
            name = escaping.name(str(golden.get("name")))
            yield f"accuracy was judged by a golden {name!r} that is not in {root}; name its folder with --golden."


def _goldens(manifest: Manifest) -> Iterator[str]:
    root = resources.golden_dir()
    if manifest.goldens != goldens_hash():
        yield "they are not those of the installed version."
    for name, entry in load_goldens(root).files.items():
        if not (root / name).is_file() or sha256(root / name) != entry.sha256:
            yield f"{root / name} is not what its manifest says; restore it."


def _plan(journal: JournalFile, findings: Findings) -> Iterator[str]:
    from dsv4_conformance.report.planned import expected_plan

    header = journal.header
    here = describe()
    note = ""
    if header.environment.commit and here.commit and header.environment.commit != here.commit:
        note = f" (it was made at commit {header.environment.commit[:10]}, this is {here.commit[:10]})"
        findings.notes.append(f"the suites here are of another commit{note}.")
    if not header.environment.commit:
        findings.notes.append(f"the suites were an installed package, version {header.version}, without a commit.")
    try:
        expected = expected_plan(journal)
    except BadInput as error:
        yield str(error)
        return
    planned = {(entry.case_id, entry.surface) for entry in journal.plan()}
    for what, cases in (("lacks", expected - planned), ("adds", planned - expected)):
        if cases:
            yield f"the plan {what} {len(cases)} case(s) of the profile: {_named(sorted(c for c, _ in cases))}{note}."


def _qualifies(gathered: Gathered, number: int) -> Iterator[str]:
    found = gathered.verdicts[number]
    if not found.good:
        yield f"{found.word.lower()}."


def _report(folder: Path, manifest: Manifest, gathered: Gathered) -> Iterator[str]:
    tables: list[FaultTable] = [read_faults(folder / name) for name in manifest.faults if (folder / name).is_file()]
    for table in tables:
        yield from (f"{table.source}: {gap}" for gap in table.gaps)
    made_of = files(gathered, [*tables, *of_journals(gathered)])
    for name in sorted(manifest.files.keys() - {*made_of, *manifest.faults, *(run.journal for run in manifest.runs)}):
        yield f"{escaping.name(name)} is neither a journal nor faults nor made of them."
    for name, writer in made_of.items():
        path = folder / name
        if not path.is_file():
            yield f"{name} is missing."
            continue
        made = io.StringIO()
        writer(made)
        if path.read_bytes() != made.getvalue().encode("utf-8", "backslashreplace"):
            yield f"{name} is not what the journals give."


def _named(cases: list[str]) -> str:
    more = f" and {len(cases) - SHOWN} more" if len(cases) > SHOWN else ""
    return f"{', '.join(escaping.name(case) for case in cases[:SHOWN])}{more}"
