"""Signatures beside the manifest of a submission."""

from pathlib import Path

from dsv4_conformance.report.gathering import gather
from dsv4_conformance.report.submission import seal
from tests.report import made
from tests.report.test_verify import RESULTS, submit


# Kills: a signature that lies beside another manifest than it signed; one removed for nothing.
def test_a_signature_goes_with_the_manifest_that_it_signed(tmp_path: Path) -> None:
    folder = submit(tmp_path / "sub", made.write(tmp_path / "j.jsonl", RESULTS))
    signature = folder / "submission.json.sig"
    signature.write_text("signed")
    gathered, matrices = gather([folder / "journals/A-kernel.jsonl"]), [folder / "faults/1-kill.json"]
    assert seal(folder, gathered, matrices).unsigned == []
    assert signature.read_text() == "signed"
    (folder / "report.md").write_text("another")
    assert seal(folder, gathered, matrices).unsigned == ["submission.json.sig"]
    assert not signature.exists()
