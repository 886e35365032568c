"""``dsv4-conformance report``: verdicts that are recomputed, every section, exit codes, size and speed."""

import json
import re
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.journal import NotSelected, Result
from dsv4_conformance.report.faults import read_faults
from dsv4_conformance.report.gathering import gather
from dsv4_conformance.report.overview import overview
from dsv4_conformance.report.page import render
from dsv4_conformance.report.writing import files, write
from dsv4_conformance.status import Status
from tests.report import made
from tests.report.conftest import Command
from tests.report.made import result

GOOD = [result("INV-01-00000001"), result("INV-02-00000002")]
BAD = [
    result("INV-01-00000001", Status.FAIL, ratio=7.5, reason="out: error 3 is 7.5 budgets at row 2."),
    result("INV-02-00000002", Status.NOT_APPLICABLE, ratio=None, margin=None, reason="not offered"),
]


def judged(tmp_path: Path, results: list[Result], **more: object) -> tuple[str, str, list[str]]:
    """Word, tone and grave reasons of the verdict on one journal."""
    (found,) = gather([made.write(tmp_path / "j.jsonl", results, **more)]).verdicts  # type: ignore[arg-type]
    return found.word, found.tone, [reason.whole for reason in found.reasons if reason.grave]


def test_a_good_run_qualifies(tmp_path: Path) -> None:
    assert judged(tmp_path, GOOD) == ("Qualifies", "good", [])


def test_a_failure_is_told_with_its_requirement(tmp_path: Path) -> None:
    word, tone, reasons = judged(tmp_path, BAD)
    assert (word, tone) == ("Does not qualify", "bad")
    assert reasons == ["1 FAIL in one requirement: output follows the attention formula (INV-01)."]


# Kills: a verdict copied from a footer that lies; a truncated, partial or sharded run that qualifies.
@pytest.mark.parametrize(
    ("results", "more", "word", "told"),
    [
        (BAD, {"foot": {"exit_code": 0, "qualifies": True}}, "Does not qualify", "results make it 1"),
        (GOOD, {"foot": {"results_hash": "0" * 64}}, "Does not qualify", "contradicts itself: results hash"),
        (GOOD, {"foot": {"counts": {"PASS": 3}}}, "Does not qualify", "contradicts itself: counts"),
        (GOOD, {"planned": GOOD[:1]}, "Does not qualify", "cases that the plan does not have"),
        ([result("INV-01-00000001", ratio=9.0)], {}, "Does not qualify", "with an error beyond its budget"),
        ([result("INV-01-00000001", ratio="nan")], {}, "Does not qualify", "out_ratio that is no number"),
        ([result("INV-01-00000001", Status.WAIVED)], {}, "Does not qualify", "is waived without a valid waiver"),
        (GOOD, {"device": "cuda"}, "Does not qualify", "was on a GPU, and the journal does not say which"),
        (GOOD, {"profile": "nonsense"}, "Does not qualify", "there is no profile 'nonsense'"),
        (GOOD[:1], {"planned": GOOD}, "Does not qualify", "1 NOT_RUN in one requirement"),
        (GOOD, {"end": False}, "Did not end", "no footer"),
        (GOOD, {"partial": "only cases named by --dsv4-case"}, "Passed in part", "Not all of the profile was run"),
        (GOOD, {"foot": {"exit_code": 130, "verdict": "DOES NOT QUALIFY: interrupted"}}, "Interrupted", "interrupted"),
        (GOOD, {"problems": ("Waiver W-1 expired.",)}, "Does not qualify", "Waiver W-1 expired."),
        ([BAD[1]], {}, "Nothing was checked", "NOTHING WAS CHECKED"),
        ([result("INV-01-00000001", Status.INVALID)], {}, "Invalid comparison", "1 INVALID"),
    ],
)
def test_a_run_qualifies_by_its_results_alone(
    tmp_path: Path, results: list[Result], more: dict[str, object], word: str, told: str
) -> None:
    got, tone, reasons = judged(tmp_path, results, **more)
    if word == "Nothing was checked":
        assert (got, tone) == (word, "open")
        return
    assert got == word and tone != "good"
    assert any(told in reason for reason in reasons), reasons


# Kills: waived failures that nothing tells of, or an error of one of them told as within the limit.
def test_waived_failures_are_told_wherever_the_verdict_is(tmp_path: Path, command: Command) -> None:
    waived = [result(f"INV-01-0000001{n}", Status.WAIVED, ratio=1593.0, waiver="W-1") for n in range(2)]
    made.write(tmp_path / "j.jsonl", [*GOOD, *waived], waivers=[made.waiver()])
    done = command("report", "j.jsonl", "-o", "out")
    assert done.returncode == 0 and done.stdout.startswith("Qualifies with 2 waived failures.")
    assert "2 waived by W-1 (Ada Lovelace, until 2026-12-20: https://example.com/issues/1) (INV-01)." in done.stdout
    page = re.sub(r"\s+", " ", (tmp_path / "out/report.html").read_text())
    assert "<h1>Qualifies with 2 waived failures.</h1>" in page and '<li class="permitted">2 waived by W-1' in page
    assert "Largest error that is not waived: 0.30 budgets" in page and "Largest error 1,593" not in page
    assert "qualifies with 2 waived failures" in (tmp_path / "out/badges/A-kernel.svg").read_text()


# Kills: an adapter that inherits an identity and passes for the one that it inherits it from.
def test_what_ran_is_told_beside_a_name_that_is_not_its_own(tmp_path: Path, command: Command) -> None:
    mine = {"requested": "mine:Sub", "identity": {"name": "kernel", "version": "1.0"}, "surfaces": {}, "devices": []}
    made.write(tmp_path / "j.jsonl", GOOD, implementation=mine)
    done = command("report", "j.jsonl", "-o", "out")
    assert "  A  kernel (mine:Sub) 1.0 CPU, profile default: qualifies" in done.stdout
    assert "kernel (mine:Sub) 1.0" in (tmp_path / "out/report.md").read_text()
    assert "<strong>kernel (mine:Sub)</strong>" in (tmp_path / "out/report.html").read_text()


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """A good run on a GPU, and a bad one of another build on a CPU."""
    waived = result("INV-01-00000003", Status.WAIVED, ratio=1.5, waiver="W-1", reason="W-1 until 2026-12-20: known")
    good = made.write(tmp_path / "a.jsonl", [*GOOD, waived], gpu="NVIDIA H200", waivers=[made.waiver()])
    left = [NotSelected(what="INV-92", reason="no GPU"), NotSelected(what="INV-93", reason="no GPU")]
    bad = made.write(tmp_path / "b.jsonl", BAD, version="1.1", run_id="other", not_selected=left)
    return [good, bad]


def test_the_page_tells_all_sections(two: list[Path], tmp_path: Path) -> None:
    matrix = tmp_path / "faults.json"
    matrix.write_text(json.dumps({"faults": [
        {"id": "S02", "title": "sinks of another rank", "breaks": "INV-53", "killed": True, "by": ["INV-53"]},
        {"id": "V07", "title": "workspace too small", "breaks": "INV-72", "killed": False, "by": []},
    ]}))  # fmt: skip
    text = re.sub(r"\s+", " ", render(gather(two), [read_faults(matrix)]))
    for part in (
        "1 of 2 runs qualifies.",
        "NVIDIA H200",
        "7.5 budgets at row 2.",
        "dsv4-conformance repro INV-01-00000001 --impl kernel",
        "<strong>1 of 2</strong> rejected",
        "workspace too small",
        "Ada Lovelace",
        "20 d</td>",  # of the waiver, from the day of the run on
        "INV-92, INV-93",
        "no GPU",
    ):
        assert part in text, part
    assert text.index("V07") < text.index("S02")  # what was let through comes first
    # Both marks stand before a field that differs; torch does not.
    assert 'build<span class="ne"' in text and 'torch<span class="ne"' not in text


def test_markdown_tells_the_same(two: list[Path]) -> None:
    text = overview(gather(two))
    assert text.startswith("# 1 of 2 runs qualifies.")
    assert (
        "| Output follows the attention formula | **1/2 WAIVED** | **1/1 FAIL** | 1.50 | 7.50 | 40.00 | 40.00 |" in text
    )
    assert "B: INV-92, INV-93: no GPU" in text and "| A | W-1 | INV-01 | tolerated |" in text


# Kills: a failure that CI takes for a pass; two runs that share a suite.
def test_junit_and_ctrf_count_as_the_journals_do(two: list[Path], tmp_path: Path) -> None:
    write(tmp_path / "out", files(gather(two)))
    first, second = ElementTree.parse(tmp_path / "out/junit.xml").getroot()
    assert [first.get(n) for n in ("tests", "failures", "errors", "skipped")] == ["3", "0", "0", "0"]
    assert [second.get(n) for n in ("tests", "failures", "errors", "skipped")] == ["2", "1", "0", "1"]
    told = json.loads((tmp_path / "out/ctrf.json").read_text())["results"]
    assert told["summary"] | {"start": 0, "stop": 0} == {
        "tests": 5, "passed": 3, "failed": 1, "skipped": 1, "pending": 0, "other": 0, "start": 0, "stop": 0,
    }  # fmt: skip
    assert [run["qualifies"] for run in told["extra"]["dsv4"]] == [True, False]
    assert told["tests"][3]["extra"]["dsv4"]["ratios"] == {"out": 7.5, "lse": 0.01}
    names = sorted(path.name for path in (tmp_path / "out/badges").iterdir())
    assert names == ["A-kernel.svg", "B-kernel.svg"]
    assert "does not qualify default" in (tmp_path / "out/badges/B-kernel.svg").read_text()


# Kills: a date of today in a report, an order that is not fixed; verify compares bytes.
def test_a_report_of_the_same_journals_is_the_same(two: list[Path], tmp_path: Path) -> None:
    for name in ("one", "other"):
        write(tmp_path / name, files(gather(two)))
    for path in sorted((tmp_path / "one").rglob("*.*")):
        assert path.read_bytes() == (tmp_path / "other" / path.relative_to(tmp_path / "one")).read_bytes(), path


# Kills: work per case that grows with the cases; DOM written for every one of them.
def test_ten_thousand_cases_are_told_in_five_seconds_and_8_megabytes(tmp_path: Path) -> None:
    path = made.write(tmp_path / "j.jsonl", made.many(10_000, failing=60))
    began = time.process_time()
    write(tmp_path / "out", files(gather([path])))
    assert time.process_time() - began < 5
    page = (tmp_path / "out/report.html").read_text()
    assert len(page.encode()) < 8e6
    assert page.count("<tr") < 500
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page)[0])
    assert len(data["cases"]) == 10_000


def test_a_page_has_room_for_so_many_cases_and_says_what_it_left_out(tmp_path: Path) -> None:
    gathered = gather([made.write(tmp_path / "j.jsonl", made.many(100, failing=3))], page_cases=10)
    data = json.loads(re.findall(r'id="data">(.*?)</script>', render(gathered))[0])
    assert len(data["cases"]) == 10 and data["runs"][0]["leftOut"] == 90


def test_runs_of_one_build_are_told_apart(tmp_path: Path) -> None:
    paths = [
        made.write(tmp_path / f"{n}.jsonl", GOOD, run_id=f"run {n}", started=f"2026-11-3{n}T00:00:00+00:00")
        for n in range(3)
    ]
    assert len({run.label for run in gather(paths).runs}) == 3


def test_a_run_cannot_stand_beside_itself(tmp_path: Path) -> None:
    path = made.write(tmp_path / "j.jsonl", GOOD)
    with pytest.raises(BadInput, match="are of the same run"):
        gather([path, path])


@pytest.mark.parametrize("text", ["", "[]", "{", '{"faults": 3}', '[{"title": "no id"}]'])
def test_faults_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f.json"
    path.write_text(text)
    with pytest.raises(BadInput, match="faults"):
        read_faults(path)


def test_the_command_writes_everything_and_ends_in_the_runs_exit_code(command: Command, tmp_path: Path) -> None:
    made.write(tmp_path / "good/journal.jsonl", GOOD)
    made.write(tmp_path / "bad.jsonl", BAD, run_id="other")
    done = command("report", "good", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "Qualifies." and "report: out/report.html" in done.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "report.html", "report.md", "junit.xml", "ctrf.json", "badges",
    }  # fmt: skip
    done = command("report", "good", "bad.jsonl", "-o", "out")
    assert done.returncode == 1 and "1 FAIL in one requirement" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("report", "absent.jsonl", "-o", "out"), "cannot be read"),
        (("report", "good", "-o", "file/out"), "cannot be written"),
        (("report", "good", "-o", "out", "--faults", "absent"), "cannot be read"),
        (("report", "good"), "-o"),
    ],
)
def test_bad_input_is_one_sentence(command: Command, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    made.write(tmp_path / "good/journal.jsonl", GOOD)
    (tmp_path / "file").write_text("")
    done = command(*words)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
