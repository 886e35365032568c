"""What happens to a sealed submission, and to signatures beside its manifest, when a report is made again."""

from pathlib import Path

from dsv4_conformance.report.gathering import gather
from dsv4_conformance.report.submission import seal
from tests.report import made
from tests.report.conftest import Command
from tests.report.test_verify import RESULTS, submit


# Kills: a signature that lies beside another manifest than it signed; one removed for nothing.
def test_a_signature_goes_with_the_manifest_that_it_signed(tmp_path: Path) -> None:
    folder = submit(tmp_path / "sub", made.write(tmp_path / "j.jsonl", RESULTS))
    signature = folder / "submission.json.sig"
    signature.write_text("signed")
    (folder / "submission.json.bak").write_text("mine")
    (folder / "submission.json.asc").mkdir()
    gathered, matrices = gather([folder / "journals/A-kernel.jsonl"]), [folder / "faults/1-kill.json"]
    assert seal(folder, gathered, matrices).unsigned == []
    assert signature.read_text() == "signed"
    (folder / "report.md").write_text("another")
    assert seal(folder, gathered, matrices).unsigned == ["submission.json.sig"]
    assert not signature.exists() and (folder / "submission.json.bak").exists()


# Kills: a sealed folder that a plain report has changed, so that verify refuses it.
def test_a_plain_report_leaves_a_submission_alone(command: Command, tmp_path: Path) -> None:
    journal = made.write(tmp_path / "j.jsonl", RESULTS)
    command("report", str(journal), "-o", "sub", "--submission")
    before = {path: path.read_bytes() for path in (tmp_path / "sub").rglob("*") if path.is_file()}
    done = command("report", str(made.write(tmp_path / "k.jsonl", RESULTS[:1])), "-o", "sub")
    assert done.returncode == 2 and "holds a submission" in done.stderr and "--submission" in done.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "sub").rglob("*") if path.is_file()} == before
