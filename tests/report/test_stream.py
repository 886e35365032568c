"""Journals read as streams give what plugin.journal.read_journal gives, in bounded memory."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.journal import read_journal, results_hash
from dsv4_conformance.report.folding import fold
from dsv4_conformance.report.stream import JournalFile
from dsv4_conformance.status import Status
from tests.report.made import many, result, write

ONE, TWO, THREE = (result(f"INV-0{n}-0000000{n}") for n in (1, 2, 3))


# Kills: the earlier of two lines kept; a later one told twice; another order.
def test_the_last_line_of_a_case_counts(tmp_path: Path) -> None:
    again = ONE.model_copy(update={"status": Status.CRASH})
    path = write(tmp_path / "j.jsonl", [ONE, TWO, again], planned=[ONE, TWO])
    journal = JournalFile(path)
    assert list(journal.results()) == read_journal(path).results == [TWO, again]
    assert journal.repeated == 1


# Kills: a failure that a line behind or before it hides, a line that stands there twice.
@pytest.mark.parametrize("pair", [("FAIL", "PASS"), ("PASS", "PASS"), ("FAIL", "FAIL"), ("CRASH", "WARN")])
def test_a_second_result_that_takes_nothing_back_is_refused(tmp_path: Path, pair: tuple[str, str]) -> None:
    twice = [ONE.model_copy(update={"status": Status(status)}) for status in pair]
    path = write(tmp_path / "j.jsonl", [twice[0], TWO, twice[1]], planned=[ONE, TWO])
    for read in (JournalFile, read_journal):
        with pytest.raises(BadInput, match="has a second result of INV-01-00000001 at line 4"):
            read(path)


# Kills: a gap that is not told, or told of a case that has a result.
def test_gaps_come_last_as_not_run(tmp_path: Path) -> None:
    journal = JournalFile(write(tmp_path / "j.jsonl", [TWO], planned=[ONE, TWO, THREE], end=False))
    told = [(found.case_id, found.status) for found in journal.results()]
    assert told == [("INV-02-00000002", "PASS"), ("INV-01-00000001", "NOT_RUN"), ("INV-03-00000003", "NOT_RUN")]
    requested = journal.header.implementation.requested
    assert list(journal.results())[1].reproducer == f"dsv4-conformance repro INV-01-00000001 --impl {requested}"
    assert (journal.planned, journal.missing, journal.unplanned, journal.footer) == (3, 2, 0, None)


# Kills: a result outside the plan that nobody notices.
def test_results_outside_the_plan_are_counted(tmp_path: Path) -> None:
    assert JournalFile(write(tmp_path / "j.jsonl", [ONE, TWO], planned=[ONE])).unplanned == 1


# Kills: half a last line that makes a journal unreadable, or a whole one that is ignored.
def test_a_torn_last_line_is_tolerated(tmp_path: Path) -> None:
    path = write(tmp_path / "j.jsonl", [ONE, TWO])
    path.write_text(path.read_text()[:-20])
    journal = JournalFile(path)
    assert journal.torn and journal.footer is None and len(list(journal.results())) == 2


# Kills: a key "plan" elsewhere in the header taken for the plan.
def test_the_plan_is_the_headers_own(tmp_path: Path) -> None:
    path = write(tmp_path / "j.jsonl", [ONE], name='"plan":[')
    text = path.read_text().replace('"homepage":""', '"homepage":{"plan":[{"case_id":"no"}]}')
    path.write_text(text)
    journal = JournalFile(path)
    assert [entry.case_id for entry in journal.plan()] == [ONE.case_id]
    assert journal.header.implementation.identity["homepage"] == {"plan": [{"case_id": "no"}]}


# Kills: a traceback where a sentence belongs.
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "j.jsonl is empty"),
        ("{}\n", "is no journal"),
        ("[1, 2]\n", "is no journal"),
        ('{"kind":"header","schema":"dsv4-journal/1","plan":[1 2]}\n', "is no journal"),
        ('{"kind":"header","schema":"dsv4-journal/9"}\n', "has schema 'dsv4-journal/9'"),
        ('{"kind":"header","schema":"dsv4-journal/1"}\n', "is damaged at line 1"),
        ("[" * 100_000, "is no journal"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_journal_is_refused_in_a_sentence(tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / "j.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match=told):
        JournalFile(path)


@pytest.mark.parametrize("line", ["nonsense", '{"kind":"result"}', '{"kind":"footer","counts":{"GOOD":1}}', "[" * 9999])
def test_damage_inside_is_told_with_its_line(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "j.jsonl", [ONE, TWO])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], line, *lines[2:]]) + "\n")
    with pytest.raises(BadInput, match="damaged at line 3"):
        JournalFile(path)


# Kills: a fold that counts or hashes otherwise than the plugin; errors or margins of another requirement.
def test_a_fold_has_the_journals_numbers(tmp_path: Path) -> None:
    told = [*many(400, failing=7), result("INV-50-ffffffff", Status.WARN, ratio=None, margin=None)]
    path = write(tmp_path / "j.jsonl", told)
    run = fold(JournalFile(path), "A", keep=100)
    assert run.results_hash == results_hash(told)
    assert run.counts == {"PASS": 393, "FAIL": 7, "WARN": 1}
    assert len(run.kept) == 100 and run.left_out == 301 and len(run.bad) == 7
    rule = run.rules["INV-03"]
    assert (rule.status, rule.cases, rule.failed, rule.worst) == (Status.FAIL, 10, 1, 4.5)
    assert (rule.margin, rule.weakest, rule.area) == (40.0, "sink_dropped", "attention")
    assert sum(rule.bins) == 10 and run.rules["INV-50"].worst is None
    # Beside the failures, those with the largest errors are kept.
    assert min(case.worst or 0 for case in run.kept if not case.bad) > 0.7


_MEASURE = """
import resource, sys
from collections.abc import Callable
from pathlib import Path
from dsv4_conformance.report.folding import fold
from dsv4_conformance.report.stream import JournalFile
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run = fold(JournalFile(Path(sys.argv[1])), "A", keep=1000)
print(run.total, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


# Kills: a reader that keeps records, or the plan, in memory. Both take over 3 KB for each line.
def test_memory_does_not_grow_with_the_records(tmp_path: Path) -> None:
    lines = 15_000
    path = write(tmp_path / "j.jsonl", many(lines))
    done = subprocess.run([sys.executable, "-c", _MEASURE, str(path)], capture_output=True, text=True, check=True)
    total, grown = map(int, done.stdout.split())
    assert total == lines
    assert grown / lines < 1000


# Kills: bytes that are no text, read as if something else stood there; a line that was cut off within a character.
@pytest.mark.parametrize("read", [JournalFile, read_journal])
def test_what_is_not_utf_8_is_damage(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = write(tmp_path / "j.jsonl", [result("INV-01-00000001"), result("INV-01-00000002")])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2].replace(b"gw0", b"gw\xff"), *lines[3:]]))
    with pytest.raises(BadInput, match="damaged at line 3: it is not UTF-8"):
        read(path)
    path.write_bytes(b"".join([*lines[:2], lines[2][:100], b"\xe2"]))
    read(path)
    path.write_bytes(lines[0].replace(b'"kernel"', b'"\xff"'))
    with pytest.raises(BadInput, match="damaged at line 1: it is not UTF-8"):
        read(path)
