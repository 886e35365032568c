"""Sections of the report beside the matrix: accuracy, faults, performance, waivers, as their records really are."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from dsv4_conformance.accuracy.gate import Moved, Score
from dsv4_conformance.faults.outcome import Detection, Outcome
from dsv4_conformance.report.accuracy import accuracies
from dsv4_conformance.report.faults import FaultTable, read_faults
from dsv4_conformance.report.gathering import Gathered, gather
from dsv4_conformance.report.overview import overview
from dsv4_conformance.report.page import render
from dsv4_conformance.report.performance import performance
from dsv4_conformance.status import Status
from tests.report import made
from tests.report.made import result

LOST = Moved(item="gsm8k-test-17", golden=8, runs=8, candidate=0, repeats=2, p=1e-4)
SCORE = Score(0.951, 0.962, -0.011, 0.003, -0.017, -0.005, 0.008, lost=(LOST,), gained=(), broken=())
JUDGED = {
    "verdict": "FAIL",
    "task": "gsm8k",
    "candidate": "served",
    "golden": {"name": "trusted", "sha256": "0" * 64, "runs": 8},
    "passes": 2,
    "invalid": [],
    "score": json.loads(json.dumps(asdict(SCORE))),
    "findings": [{"gate": "score", "verdict": "FAIL", "sentence": "1.10 points down"}],
    "rule": {"margin": 0.01},
    "paragraph": "FAIL: GSM8K is down 1.10 points.",
}


def page_of(gathered: Gathered) -> str:
    return re.sub(r"\s+", " ", render(gathered))


# Kills: shares told as points; one accuracy run told once for each of the requirements that look at it.
def test_an_accuracy_run_is_told_once_with_interval_and_questions(tmp_path: Path) -> None:
    told = [
        result(f"INV-13{n}-0000000{n}", Status.FAIL if n == 0 else Status.PASS, record={"accuracy": JUDGED})
        for n in range(3)
    ]
    gathered = gather([made.write(tmp_path / "j.jsonl", told)])
    (found,) = accuracies(gathered)
    assert found.statuses == {"INV-130": "FAIL", "INV-131": "PASS", "INV-132": "PASS"}
    assert found.difference == pytest.approx((-1.7, -1.1, -0.5)) and found.margin == pytest.approx(1.0)
    assert found.scores == pytest.approx((95.1, 96.2)) and found.passes == "2 against 8"
    assert found.moved == (("lost", "gsm8k-test-17", "8/8", "0/2"),)
    page = page_of(gathered)
    assert "-1.10 (-1.70 … -0.50)" in page and "gsm8k-test-17" in page and "1.10 points down" in page
    assert "difference -1.10 points, interval -1.70 to -0.50, limit -1" in page
    assert "FAIL: GSM8K is down 1.10 points." in overview(gathered)


def test_an_accuracy_run_that_cannot_be_compared_is_told_without_numbers(tmp_path: Path) -> None:
    record = {**JUDGED, "verdict": "INVALID", "score": None, "invalid": ["temperature was 1 and is 0"], "findings": []}
    path = made.write(tmp_path / "j.jsonl", [result("INV-130-00000000", Status.INVALID, record={"accuracy": record})])
    (found,) = accuracies(gather([path]))
    assert found.scores is None and found.invalid == ("temperature was 1 and is 0",)
    assert "temperature was 1 and is 0" in page_of(gather([path]))


# Kills: the control counted as a fault; a fault that is caught by a crash only counted as rejected.
def test_the_journal_of_faults_is_read_as_it_is_written(tmp_path: Path) -> None:
    caught = Detection(
        requirement="INV-53",
        case_id="INV-53-1",
        surface="HeadLayout",
        folder="sinks",
        reason="",
        raised=False,
        seconds=1,
    )
    outcomes = [
        Outcome(id="control", cases=100),
        Outcome(id="S02", title="sinks of another rank", area="sinks", breaks="INV-53", detections=[caught]),
        Outcome(id="V07", title="workspace too small", area="sizing", breaks="INV-72"),
        Outcome(id="V08", title="reads too far", breaks="INV-72", lost="SIGSEGV", at="INV-72-1"),
    ]
    lines = [{"kind": "header", "schema": "dsv4-faults/1", "profile": "kill"}]
    lines += [{"kind": "outcome", **outcome.model_dump(), "problem": outcome.problem} for outcome in outcomes]
    path = tmp_path / "faults.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"kind": "footer", "problems": []}]))
    found = read_faults(path)
    assert [(row.id, row.caught) for row in found.rows] == [("V08", False), ("V07", False), ("S02", True)]
    assert found.caught == 1 and found.rows[2].by == ("INV-53",)
    gathered = gather([made.write(tmp_path / "j.jsonl", [result()])])
    page = re.sub(r"\s+", " ", render(gathered, [found]))
    assert "<strong>1 of 3</strong> rejected" in page and "it survives" in page and "caught by a crash only" in page
    assert "let through: **V07** workspace too small" in overview(gathered, [found])


# Kills: a matrix of one fault, or one that was cut off, that reads like the whole one.
def test_a_part_of_the_matrix_is_told_as_a_part(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"kind": "header", "schema": "dsv4-faults/1", "profile": "kill", "wanted": ["S01", "S02"], "known": 149},
        {"kind": "outcome", "id": "control", "problem": "the unchanged implementation fails INV-01: off"},
        {"kind": "outcome", "id": "S02", "title": "sinks", "detections": [{"requirement": "INV-53"}], "problem": ""},
    ]
    path = tmp_path / "faults.jsonl"

    def read(some: list[dict[str, object]]) -> FaultTable:
        path.write_text("".join(json.dumps(line) + "\n" for line in some))
        return read_faults(path)

    cut = read(lines)
    assert cut.gaps == (
        "The trials did not end: 1 of 2 faults were tried.",
        "No rejection shows anything: the unchanged implementation fails INV-01: off.",
    )
    assert cut.remarks == ("149 faults are known; 147 of them were not asked for.", "Profile kill.")
    gathered = gather([made.write(tmp_path / "j.jsonl", [result()])])
    for text in (re.sub(r"\s+", " ", render(gathered, [cut])), overview(gathered, [cut])):
        assert "did not end: 1 of 2" in text and "147 of them were not asked for" in text
    footer: dict[str, object] = {"kind": "footer", "problems": []}
    assert read([lines[0], lines[2], footer]).gaps == (
        "The unchanged implementation was not tried, so that no rejection shows anything.",
    )
    whole = [lines[0] | {"known": 2}, lines[1] | {"problem": ""}, lines[2], footer]
    assert (read(whole).gaps, read(whole).remarks) == ((), ("Profile kill.",))


RELATION = {"relative_time": 0.56, "relative_time_low": 0.54, "relative_time_high": 0.62, "relative_time_limit": 0.7}
ROOF = {"flop": 2e12, "bytes": 1e9, "ms": 4.0, "achieved_flops": 5e14, "achieved_bandwidth": 2.5e11,
        "ceiling_flops": 8e14, "ceiling_bandwidth": 4e12, "roofline_share": 0.625, "spread": 0.03}  # fmt: skip


def timed(case: str, metrics: dict[str, float]) -> object:
    test = "suites/performance/test_performance.py::test_x"
    return result(case, test=test, record={"metrics": metrics, "margins": {}})


def test_performance_cases_are_told_as_relations_and_under_the_roof(tmp_path: Path) -> None:
    told = [timed("INV-161-00000001", RELATION), timed("INV-164-00000002", ROOF), result("INV-01-00000003")]
    gathered = gather([made.write(tmp_path / "j.jsonl", told, gpu="NVIDIA H200")])  # type: ignore[arg-type]
    found = performance(gathered)
    assert [case.relation for case in found.cases] == [(0.54, 0.56, 0.62, 0.7), None]
    ((run, flops, wide, points),) = found.roofs
    assert (run.mark, flops, wide, points) == ("A", 8e14, 4e12, [("2", 2000.0, 5e14)])
    assert found.cases[1].numbers["achieved flops, TFLOP/s"] == "500"
    assert (
        found.cases[1].numbers["roofline share"] == "62%"
        and found.cases[1].numbers["ceiling bandwidth, TB/s"] == "4.00"
    )
    page = page_of(gathered)
    assert "0.56 times (0.54 to 0.62), limit 0.70" in page and "0.56 (0.54 to 0.62), limit 0.70" in overview(gathered)
    assert "out ratio" not in page and "roofline with 1 points" in page
    assert "62%" in overview(gathered)


@pytest.mark.parametrize("bad", [0.0, -1.0, "inf", "nan"])
def test_a_roofline_of_impossible_numbers_is_not_drawn(tmp_path: Path, bad: float | str) -> None:
    told = [timed("INV-164-00000002", {**ROOF, name: bad}) for name in ("bytes",)]  # type: ignore[dict-item]
    gathered = gather([made.write(tmp_path / "j.jsonl", told)])  # type: ignore[arg-type]
    assert not performance(gathered).roofs and "roofline with" not in page_of(gathered)


# Kills: days counted from today on; a stale or expired waiver that does not stand out.
def test_waivers_are_told_with_their_debt(tmp_path: Path) -> None:
    waivers = [made.waiver(), made.waiver(id="W-2", opened="2026-09-01", expires="2026-11-20", issue="javascript:x")]
    told = [
        result("INV-01-00000001", Status.WAIVED, ratio=2.0, waiver="W-1"),
        result("INV-01-00000002", Status.STALE_WAIVER, waiver="W-2"),
    ]
    page = page_of(gather([made.write(tmp_path / "j.jsonl", told, waivers=waivers)]))
    assert "2 waived or set-aside cases under 2 waivers; the oldest has been open for 90 days." in page
    assert "EXPIRED" in page and "(1 stale)" in page and "20 d</td>" in page and "29 d " in page
    assert 'href="https://example.com/issues/1"' in page and 'href="javascript' not in page


# Kills: folders of a machine in a report that is handed over.
def test_the_command_is_told_without_the_machines_folders(tmp_path: Path) -> None:
    words = ["/home/ada/venv/bin/dsv4-conformance", "run", "--results", "/home/ada/secret/results"]
    page = page_of(gather([made.write(tmp_path / "j.jsonl", [result()], command=words)]))
    assert "dsv4-conformance run --results results" in page and "secret" not in page
