"""Plan against results, selections, repetition, interruption, and the folder they are written to."""

import json
import os
import signal
import subprocess
import time

import pytest

from dsv4_conformance.status import Status
from tests.plugin.conftest import Project, environment


def test_same_plan_and_same_verdicts_with_and_without_workers(project: Project) -> None:
    single = project.run(impl="Wrong").journal
    spread = project.run("-n", "2", impl="Wrong").journal
    assert single.footer is not None and spread.footer is not None
    assert single.header.plan == spread.header.plan
    assert single.header.plan_hash == spread.header.plan_hash
    assert single.footer.counts == spread.footer.counts
    assert single.footer.results_hash == spread.footer.results_hash
    assert {r.worker for r in single.results} == {"main"}
    assert {r.worker for r in spread.results} <= {"gw0", "gw1"}


def test_verdicts_that_differ_have_another_hash(project: Project) -> None:
    right, wrong = project.run().journal, project.run(impl="Wrong").journal
    assert right.footer is not None and wrong.footer is not None
    assert right.header.plan_hash == wrong.header.plan_hash
    assert right.footer.results_hash != wrong.footer.results_hash


@pytest.mark.parametrize("words", [("-x",), ("-x", "-n", "1")])
def test_planned_case_without_result_is_a_gap(project: Project, words: tuple[str, ...]) -> None:
    ran = project.run(*words, impl="Wrong")
    assert ran.code == 1
    assert len(ran.journal.results) == len(ran.journal.header.plan) == 7
    assert [r.status for r in ran.journal.results].count(Status.NOT_RUN) >= 3


def test_stopping_early_is_a_gap_even_if_all_was_right_so_far(project: Project) -> None:
    stop = "\ndef pytest_runtest_logfinish(nodeid):\n    STOP.session.shouldstop = 'enough'\n"
    hook = "\nclass STOP: pass\ndef pytest_sessionstart(session):\n    STOP.session = session\n"
    project.write("conftest.py", (project.folder / "conftest.py").read_text() + hook + stop)
    ran = project.run()
    assert [r.status for r in ran.journal.results] == [Status.PASS] + [Status.NOT_RUN] * 6
    assert ran.code == 1


@pytest.mark.parametrize("words", [(), ("-n", "2")])
def test_what_is_deselected_is_not_planned_but_named(project: Project, words: tuple[str, ...]) -> None:
    ran = project.run("-k", "few", *words)
    assert ran.code == 0
    header, footer = ran.journal.header, ran.journal.footer
    assert {entry.requirement for entry in header.plan} == {"INV-02"}
    assert {(n.what, n.reason) for n in header.not_selected} == {
        ("3 case(s) of INV-01", "deselected on the command line"),
        ("2 case(s) of INV-03", "deselected on the command line"),
    }
    assert footer is not None and not footer.qualifies
    assert "PASSED IN PART, which is no qualification" in ran.out
    assert "5 case(s) of 2 requirement(s): deselected on the command line" in ran.out


# Kills: cases of other surfaces that are planned, or that are left out without a word; workers that plan otherwise.
@pytest.mark.parametrize("words", [(), ("-n", "2")])
def test_a_surface_can_be_chosen(project: Project, words: tuple[str, ...]) -> None:
    text = (project.folder / "test_suite.py").read_text()
    project.write("test_suite.py", text.replace('"INV-02", on=KV', '"INV-02", on=("KVPageFormat", "SlotMapping")'))
    ran = project.run("--dsv4-surface", "SlotMapping", "--dsv4-surface", "SlotMapping", *words)
    assert {(entry.requirement, entry.surface) for entry in ran.journal.header.plan} == {("INV-02", "SlotMapping")}
    assert "deselected on the command line" in ran.out
    ran = project.run("--dsv4-surface", "KVPageFormat", *words)
    assert ran.code == 0 and {entry.surface for entry in ran.journal.header.plan} == {"KVPageFormat"}
    assert ran.journal.footer is not None and not ran.journal.footer.qualifies
    wrong = project.run("--dsv4-surface", "SparseDecod")
    assert wrong.code == 2 and "There is no surface 'SparseDecod' (did you mean SparseDecode?)" in wrong.out + wrong.err


def test_test_named_alone_is_no_qualification(project: Project) -> None:
    ran = project.run("test_suite.py::test_rows_come_back")
    assert ran.code == 0
    assert ran.journal.footer is not None and not ran.journal.footer.qualifies
    assert {n.what for n in ran.journal.header.not_selected} == {"2 case(s) of INV-02", "2 case(s) of INV-03"}


def test_requirement_whose_tests_are_not_collected_spoils_the_qualification(project: Project) -> None:
    text = (project.folder / "test_suite.py").read_text()
    project.write("test_suite.py", text[: text.index('@requirement("INV-02"')])
    ran = project.run()
    assert ran.code == 0
    assert ran.journal.footer is not None and not ran.journal.footer.qualifies
    assert {(n.what, n.reason) for n in ran.journal.header.not_selected} == {
        (name, "its tests were not collected") for name in ("INV-02", "INV-03")
    }


def test_what_the_profile_leaves_out_is_named_and_does_not_spoil_it(project: Project) -> None:
    ran = project.run("--dsv4-profile", "smoke")
    assert ran.journal.footer is not None and ran.journal.footer.qualifies
    assert {n.what for n in ran.journal.header.not_selected} == {"INV-02", "INV-03"}
    assert "profile smoke does not select it" in ran.out


def test_family_without_cases_is_named(project: Project) -> None:
    project.write("test_suite.py", (project.folder / "test_suite.py").read_text().replace('"few"', '"none"'))
    ran = project.run()
    assert [(n.what, n.reason) for n in ran.journal.header.not_selected] == [
        ("INV-02 on KVPageFormat (test_few_rows_come_back)", "family 'none' has no case of size laptop there"),
        ("INV-03 on KVPageFormat (test_rows_come_back_fast)", "family 'none' has no case of size laptop there"),
    ]


@pytest.mark.parametrize("words", [(), ("-n", "2")])
def test_reproducer_s_words_run_that_case_alone(project: Project, words: tuple[str, ...]) -> None:
    first = project.run("--dsv4-profile", "big", "--dsv4-seed", "7", impl="Wrong").journal
    chosen = first.header.plan[1]
    assert first.results[0].reproducer.endswith("--impl adapters:Wrong --profile big --seed 7")
    again = project.run("--dsv4-case", chosen.case_id, "--dsv4-seed", "7", *words)  # no profile: all are searched
    assert [entry.case_id for entry in again.journal.header.plan] == [chosen.case_id]
    assert again.code == 0
    assert again.journal.footer is not None and not again.journal.footer.qualifies
    other = project.run("--dsv4-case", chosen.case_id, "--dsv4-seed", "7", "--dsv4-profile", "default")
    assert other.code == 2


def test_absent_surface_can_be_reproduced(project: Project) -> None:
    project.write(
        "test_suite.py", (project.folder / "test_suite.py").read_text().replace("KVPageFormat", "SlotMapping")
    )
    case_id = project.run().journal.header.plan[0].case_id
    ran = project.run("--dsv4-case", case_id)
    assert [r.status for r in ran.journal.results] == [Status.NOT_APPLICABLE]


def test_older_journals_are_kept(project: Project) -> None:
    ids = [project.run("-n", "1").journal.header.run_id for _ in range(2)]
    project.run()
    results = project.folder / "dsv4-results"
    kept = {json.loads(p.read_text().splitlines()[0])["run_id"] for p in results.glob("journal-*.jsonl")}
    assert kept == set(ids)
    assert {p.name for p in results.glob("workers-*")} == {f"workers-{run_id}" for run_id in ids}


def test_unreadable_journal_is_kept_as_well(project: Project) -> None:
    results = project.folder / "dsv4-results"
    results.mkdir()
    (results / "journal.jsonl").write_text('{"run_id": "../../etc/x"}\n')
    assert project.run().code == 0
    assert [p.read_text() for p in results.glob("journal-unreadable-*.jsonl")] == ['{"run_id": "../../etc/x"}\n']


SLOW = """
import time
from dsv4_conformance.suite import requirement

@requirement("INV-01", on=("KVPageFormat",), cases="rows")
def test_slow(subject, case):
    subject.check(case)
    if case.tokens == 2:
        print("now", flush=True)
        time.sleep(60)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_interrupted_run_tells_what_it_did_not_do(project: Project, number: signal.Signals, code: int) -> None:
    project.write("test_suite.py", SLOW)
    process = subprocess.Popen(
        project.command("-s"), cwd=project.folder, env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "now" in line:
            break
    time.sleep(0.2)
    os.kill(process.pid, number)
    process.communicate(timeout=30)
    assert process.returncode == code
    from dsv4_conformance.plugin.journal import read_journal

    journal = read_journal(project.folder / "dsv4-results/journal.jsonl")
    if number == signal.SIGINT:
        assert journal.footer is not None and journal.footer.exit_code == 130 and not journal.footer.qualifies
        assert [r.status for r in journal.results] == [Status.PASS, Status.NOT_RUN, Status.NOT_RUN]
    else:
        assert journal.truncated
        assert len(journal.missing()) == 2


def test_lines_are_valid_json_without_nan(project: Project) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    ran = project.run()
    for line in (ran.results / "journal.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    assert ran.journal.results[0].record["metrics"] == {"out_ratio": 0.5, "odd": "nan"}


def test_summary_names_requirements_and_respects_quiet(project: Project) -> None:
    loud = project.run("-n", "2", impl="Wrong").out
    assert "INV-02 title of INV-02 2 1 1 0.50 4.00" in " ".join(loud.split())
    assert "short test summary" not in loud and "= FAILURES =" not in loud
    quiet = project.run("-q", impl="Wrong").out
    assert "margin" not in quiet and "row 2 came back as 3." in quiet and "DOES NOT QUALIFY" in quiet
    silent = project.run("-qq", impl="Wrong").out
    assert "row 2" not in silent and "DOES NOT QUALIFY" in silent
