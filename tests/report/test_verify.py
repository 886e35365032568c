"""``dsv4-conformance verify`` accepts what a run left, and refuses every edit and every gap."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.ending import Ending, footer
from dsv4_conformance.plugin.journal import PlanEntry, Result, plan_hash, read_journal
from dsv4_conformance.report import verifying
from dsv4_conformance.report.faults import read_faults
from dsv4_conformance.report.gathering import gather
from dsv4_conformance.report.planned import expected_plan
from dsv4_conformance.report.stream import JournalFile
from dsv4_conformance.report.submission import MANIFEST, collect, present, read_manifest, seal, sha256
from dsv4_conformance.report.writing import files, write
from dsv4_conformance.status import Status
from tests.report import made
from tests.report.conftest import Command
from tests.report.made import result

RESULTS = [result("INV-01-00000001"), result("INV-01-00000002"), result("INV-02-00000003")]


def submit(folder: Path, journal: Path, faults: str = '[{"id": "S02", "killed": true, "by": ["INV-53"]}]') -> Path:
    """What ``report --submission`` does."""
    matrix = folder.parent / "kill.json"
    matrix.write_text(faults)
    copies, matrices = collect(folder, [journal], [matrix])
    gathered = gather(copies)
    write(folder, files(gathered, [read_faults(path) for path in matrices]))
    seal(folder, gathered, matrices)
    return folder


@pytest.fixture
def accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A submission of three cases, for suites that plan just these."""
    cases = {(r.case_id, r.surface) for r in RESULTS}
    monkeypatch.setattr("dsv4_conformance.report.planned.expected_plan", lambda journal: cases)
    (tmp_path / "waivers.toml").write_text(WAIVER)
    return submit(tmp_path / "sub", made.write(tmp_path / "j.jsonl", RESULTS))


def refusals(folder: Path) -> list[str]:
    """Why the submission is refused; [] if it is not."""
    return verifying.verify(folder, read_manifest(folder), waivers=folder.parent / "waivers.toml")[0].refusals


def test_what_a_run_left_is_accepted(accepted: Path) -> None:
    assert refusals(accepted) == []


def edited(folder: Path, edit: Callable[[list[dict[str, Any]]], object], reseal: bool = True) -> Path:
    """Edit the journal's lines, then make footer, report and manifest anew, as a forger would."""
    path = folder / "journals/A-kernel.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    edit(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if reseal:
        gathered = gather([path])
        matrices = [folder / "faults/1-kill.json"]
        write(folder, files(gathered, [read_faults(matrix) for matrix in matrices]))
        seal(folder, gathered, matrices)
    return folder


def refooted(lines: list[dict[str, Any]]) -> None:
    """Give the journal the plan hash and the footer that its lines would have."""
    results = [Result.model_validate(line) for line in lines[1:-1]]
    lines[0]["plan_hash"] = plan_hash(PlanEntry.model_validate(entry) for entry in lines[0]["plan"])
    head = made.header(results, partial=lines[0].get("partial", ""))
    lines[-1] = {"kind": "footer", **footer(head, results, Ending()).model_dump(mode="json")}


def _without_a_case(lines: list[dict[str, Any]]) -> None:
    del lines[2]
    del lines[0]["plan"][1]
    refooted(lines)


WAIVER = """
[[waiver]]
id = "W-1"
requirement = "INV-01"
selector = {implementation = "*", cases = [], statuses = ["FAIL"]}
issue = "https://example.com/issues/1"
owner = "Ada Lovelace"
opened = 2026-11-01
expires = 2026-12-20
kind = "tolerated"
"""


def _waived_by(status: str | None = "FAIL", **more: Any) -> Callable[[list[dict[str, Any]]], object]:
    """An edit: a case that ended with ``status`` is waived by a waiver with other fields than the usual ones."""

    def edit(lines: list[dict[str, Any]]) -> None:
        lines[0]["waivers"] = [made.waiver(**more).model_dump()]
        lines[2] |= {"status": "WAIVED", "waiver": "W-1", "waived_status": status}
        refooted(lines)

    return edit


def _passed_with(**record: Any) -> Callable[[list[dict[str, Any]]], object]:
    """An edit: other fields in the record of a case that passed; None takes one out."""

    def edit(lines: list[dict[str, Any]]) -> None:
        told = {**lines[2]["record"], **record}
        lines[2]["record"] = {name: value for name, value in told.items() if value is not None}

    return edit


def _waived(lines: list[dict[str, Any]]) -> None:
    lines[2] |= {"status": "WAIVED", "waiver": "W-9"}
    refooted(lines)


def _waived_by_another(lines: list[dict[str, Any]]) -> None:
    lines[0]["waivers"] = [made.waiver(requirement="INV-02").model_dump()]
    lines[2] |= {"status": "WAIVED", "waiver": "W-1"}
    refooted(lines)


def _waived_too_late(lines: list[dict[str, Any]]) -> None:
    lines[0]["waivers"] = [made.waiver(opened="2026-10-01", expires="2026-11-29").model_dump()]
    lines[2] |= {"status": "WAIVED", "waiver": "W-1"}
    refooted(lines)


def _long_waiver(lines: list[dict[str, Any]]) -> None:
    lines[0]["waivers"] = [made.waiver(expires="2027-12-31").model_dump()]


def _failed(lines: list[dict[str, Any]]) -> None:
    lines[2]["status"] = "FAIL"
    refooted(lines)


def _partial(lines: list[dict[str, Any]]) -> None:
    lines[0]["partial"] = "1 case(s) deselected"
    refooted(lines)


EDITS: list[tuple[Callable[[list[dict[str, Any]]], object], str]] = [
    (lambda lines: lines[2].update(status="FAIL"), "results_hash was made of"),
    (lambda lines: lines.pop(2), "1 planned case(s) have no result"),
    (lambda lines: lines[0]["plan"].pop(1), "plan_hash was made of"),
    (lambda lines: lines.pop(), "did not end"),
    (lambda lines: lines[-1].update(verdict="QUALIFIES, by far"), "does not follow from the results"),
    (lambda lines: lines[-1].update(requirements={}), "statuses of requirements"),
    (lambda lines: lines[-1].update(counts={"PASS": 9}), "counts of the footer"),
    (lambda lines: lines[-1].update(exit_code=5), "does not follow from the results"),
    (lambda lines: lines[2]["record"]["metrics"].update(out_ratio=1.2), "beyond its budget"),
    (lambda lines: lines[2].update(record={}), "without a record"),
    (_passed_with(checked=False), "without a record"),
    (_passed_with(metrics=[1, 2]), "without a record"),
    (_passed_with(metrics=None), "without a record"),
    (_passed_with(metrics={}), "a budget for out and no error of it"),
    (_passed_with(metrics={"out_ratio": 0.3}), "a budget for out and no error of it"),
    (_passed_with(metrics={"out_ratio": "0.3", "out_error": 9e-5}), "out_ratio that is no number"),
    (_passed_with(metrics={"out_ratio": 0.3, "out_error": -9e-5}), "out_error that is no number, or negative"),
    (_passed_with(metrics={"out_ratio": 0.3, "out_error": 0.93}), "not its error over its budget"),
    (lambda lines: lines[0]["environment"]["packages"].update({"dsv4-conformance": "9.9"}), "list of packages has 9.9"),
    (lambda lines: lines[0].update(profile="nonsense"), "there is no profile 'nonsense'"),
    (_waived_by(selector={"implementation": "other*", "statuses": ["FAIL"]}), "for another adapter"),
    (_waived_by(selector={"implementation": "*", "device": "cuda", "statuses": ["FAIL"]}), "another adapter or device"),
    (_waived_by("CRASH"), "covers FAIL and not CRASH"),
    (_waived_by(None), "does not say with which status it ended"),
    (_waived_by(kind="quarantined"), "such a case does not run"),
    (lambda lines: lines[0]["environment"].update(modified=True), "a checkout with changes"),
    (lambda lines: lines[0].update(device="cuda"), "does not say which"),
    (lambda lines: lines[0]["environment"].update(packages={}), "torch is not recorded"),
    (lambda lines: lines[-1].update(finished="2020-01-01T00:00:00+00:00"), "ended before it began"),
    (_without_a_case, "the plan lacks 1 case(s) of the profile: INV-01-00000002"),
    (_waived, "waived without a valid waiver"),
    (_waived_by_another, "waived without a valid waiver"),
    (_waived_too_late, "waived without a valid waiver"),
    (_long_waiver, "open for more than 90 days"),
    (_failed, "does not qualify"),
    (_partial, "not all of the profile"),
]


# Kills: each part of the recomputation left out. Report and manifest are made anew, so that nothing else can tell.
@pytest.mark.parametrize(("edit", "told"), EDITS, ids=range(len(EDITS)))
def test_an_edited_journal_is_refused(
    accepted: Path, edit: Callable[[list[dict[str, Any]]], object], told: str
) -> None:
    found = refusals(edited(accepted, edit))
    assert any(told in sentence for sentence in found), found


def test_a_waiver_that_is_right_is_accepted(accepted: Path) -> None:
    edited(accepted, _waived_by())
    assert refusals(accepted) == []
    # The file of the waivers says something else, or there is none.
    (accepted.parent / "waivers.toml").write_text(WAIVER.replace("Ada", "Eve"))
    assert refusals(accepted) == [f"A waivers: W-1 does not stand so in {accepted.parent}/waivers.toml; name its file "
                                  "with --waivers."]  # fmt: skip
    (accepted.parent / "waivers.toml").unlink()
    assert "W-1 does not stand so" in refusals(accepted)[0]


def test_what_was_accepted_is_told(accepted: Path, command: Command) -> None:
    done = command("verify", str(edited(accepted, _waived_by())), "--waivers", str(accepted.parent / "waivers.toml"))
    assert done.returncode == 0, done.stdout
    assert "  A  kernel 1.0, CPU, profile default, seed 0: 3 checked, 1 waived\n" in done.stdout
    assert "     W-1: 1 of INV-01 until 2026-12-20\nACCEPTED" in done.stdout


# Kills: a kill matrix that was cut off, or whose control fails, in a submission that is accepted.
def test_faults_that_show_nothing_are_refused(accepted: Path) -> None:
    lines = [
        '{"kind": "header", "schema": "dsv4-faults/1", "profile": "kill", "wanted": ["S01", "S02"], "known": 149}',
        '{"kind": "outcome", "id": "control", "problem": ""}',
        '{"kind": "outcome", "id": "S02", "problem": "", "detections": [{"requirement": "INV-53"}]}',
    ]
    journal = accepted / "journals/A-kernel.jsonl"
    assert refusals(submit(accepted.parent / "cut", journal, "\n".join(lines))) == [
        "report: 1-kill.json: The trials did not end: 1 of 2 faults were tried."
    ]
    assert refusals(submit(accepted.parent / "whole", journal, "\n".join([*lines, '{"kind": "footer"}']))) == []


def test_a_file_that_no_journal_gives_is_refused(accepted: Path) -> None:
    (accepted / "badges/Z.svg").write_text("<svg/>")
    _rehashed(accepted)
    assert refusals(accepted) == ["report: badges/Z.svg is neither a journal nor faults nor made of them."]


def test_a_new_report_leaves_no_badge_or_journal_of_an_older_one(command: Command, tmp_path: Path) -> None:
    paths = [made.write(tmp_path / f"{n}.jsonl", RESULTS, run_id=n, name=n) for n in ("one", "two")]
    command("report", *map(str, paths), "-o", "sub", "--submission")
    (tmp_path / "sub/badges/mine.svg").write_text("")
    command("report", "sub/journals/A-one.jsonl", "-o", "sub", "--submission")
    left = [name for name in present(tmp_path / "sub") if "/" in name]
    assert left == ["badges/A-one.svg", "badges/mine.svg", "journals/A-one.jsonl"]


# Kills: files that are not hashed, not listed or gone; a page that was edited and hashed anew.
def test_an_edited_folder_is_refused(accepted: Path) -> None:
    for name in present(accepted):
        before = (accepted / name).read_bytes()
        (accepted / name).write_bytes(before + b"\n")
        assert f"files: {name} was changed." in refusals(accepted)
        (accepted / name).unlink()
        assert f"files: {name} is missing." in refusals(accepted)
        (accepted / name).write_bytes(before)
    (accepted / "extra.txt").write_text("")
    assert refusals(accepted) == [f"files: extra.txt is not in {MANIFEST}."]
    (accepted / "extra.txt").unlink()
    (accepted / "submission.json.sig").write_text("signature")
    assert refusals(accepted) == []


def _rehashed(folder: Path, **fields: Any) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"] = {name: sha256(folder / name) for name in present(folder)}
    (folder / MANIFEST).write_text(json.dumps(manifest | fields))


@pytest.mark.parametrize("name", ["report.html", "report.md", "junit.xml", "ctrf.json", "badges/A-kernel.svg"])
def test_a_report_that_is_not_what_the_journals_give_is_refused(accepted: Path, name: str) -> None:
    text = (accepted / name).read_text()
    (accepted / name).write_text(text.replace("ualifies", "ualified") if "ualifies" in text else text + " ")
    _rehashed(accepted)
    assert refusals(accepted) == [f"report: {name} is not what the journals give."]


def test_other_goldens_and_another_version_are_refused(accepted: Path) -> None:
    _rehashed(accepted, goldens="0" * 64)
    assert refusals(accepted) == ["goldens: they are not those of the installed version."]
    _rehashed(accepted, version="9.9")
    found, _ = verifying.verify(accepted, read_manifest(accepted))
    assert found.incomparable and "made by dsv4-conformance 9.9" in found.refusals[0]


def test_accuracy_judged_by_an_unknown_golden_is_refused(accepted: Path) -> None:
    record = {"task": "gsm8k", "golden": {"name": "mine", "sha256": "0" * 64}}
    found = refusals(edited(accepted, lambda lines: lines[1]["record"].update(accuracy=record)))
    assert len(found) == 1 and "a golden 'mine' that is not in" in found[0]


def test_what_is_no_submission_is_refused_in_a_sentence(command: Command, accepted: Path, tmp_path: Path) -> None:
    assert command("verify", "absent").returncode == 2
    for text in ("{", "[]", '{"schema_version": "dsv4-submission/9"}', '{"schema_version": "dsv4-submission/1"}'):
        (tmp_path / "sub" / MANIFEST).write_text(text)
        with pytest.raises(BadInput):
            read_manifest(accepted)
    (tmp_path / "sub" / MANIFEST).unlink()
    done = command("verify", "sub")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "report JOURNAL... -o DIR" in done.stderr


def test_paths_outside_the_folder_are_refused(accepted: Path) -> None:
    _rehashed(accepted, faults=["../../secret"])
    with pytest.raises(BadInput, match="outside the submission"):
        read_manifest(accepted)


def test_a_folder_with_other_files_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/mine.txt").write_text("mine")
    with pytest.raises(BadInput, match="holds other files"):
        collect(tmp_path / "sub", [made.write(tmp_path / "j.jsonl", RESULTS)], [])
    assert (tmp_path / "sub/mine.txt").read_text() == "mine"


# From end to end, with the plan that the suites really give: a smoke run, submitted, verified, forged.
def test_a_real_run_is_accepted_and_a_forged_one_is_not(command: Command, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "dsv4_conformance.cli", "run", "--profile", "smoke", "--results", "results"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, check=True)
    path = tmp_path / "results/journal.jsonl"
    journal = JournalFile(path)
    plan = {(entry.case_id, entry.surface) for entry in journal.plan()}
    assert expected_plan(journal) == plan
    # The tree of this test may have changes; a release has none.
    path.write_text(path.read_text().replace('"modified":true', '"modified":false'))
    done = command("report", "results", "-o", "sub", "--submission")
    assert done.returncode == 0, done.stdout
    done = command("verify", "sub")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ACCEPTED: 1 run(s), 6 files" in done.stdout and sha256(tmp_path / "sub" / MANIFEST) in done.stdout
    # A journal without one of its cases, from the plan to the footer.
    kept = read_journal(path)
    gone = next(r for r in kept.results if r.status is Status.PASS)
    rest = [entry for entry in kept.header.plan if entry.nodeid != gone.nodeid]
    head = kept.header.model_copy(update={"plan": rest, "plan_hash": plan_hash(rest)})
    results = [r for r in kept.results if r.nodeid != gone.nodeid]
    end = {"kind": "footer", **footer(head, results, Ending()).model_dump(mode="json")}
    told = [head.model_dump_json(by_alias=True), *(r.model_dump_json() for r in results), json.dumps(end)]
    path.write_text("\n".join(told) + "\n")
    forged = refusals(submit(tmp_path / "forged", path))
    assert len(forged) == 1 and f"the plan lacks 1 case(s) of the profile: {gone.case_id}" in forged[0]
