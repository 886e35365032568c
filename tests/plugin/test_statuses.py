"""What an adapter does becomes the right status, sentence and exit code, in one process and under xdist."""

import xml.etree.ElementTree as ET

import pytest

from dsv4_conformance.status import Status
from tests.plugin.conftest import Project

PASS, FAIL = Status.PASS, Status.FAIL


def test_right_adapter_passes_and_each_profile_case_is_planned_once(project: Project) -> None:
    ran = project.run()
    assert ran.code == 0, ran.out + ran.err
    assert ran.statuses == {"INV-01": [PASS] * 3, "INV-02": [PASS] * 2, "INV-03": [PASS] * 2}
    footer = ran.journal.footer
    assert footer is not None and footer.qualifies and footer.exit_code == 0
    assert "QUALIFIES in profile default: 7 checked" in ran.out


@pytest.mark.parametrize("words", [(), ("-n", "2")])
def test_wrong_adapter_fails_where_it_is_wrong_and_a_should_only_warns(
    project: Project, words: tuple[str, ...]
) -> None:
    ran = project.run(*words, impl="Wrong")
    assert ran.code == 1, ran.out + ran.err
    assert ran.statuses == {"INV-01": [PASS, FAIL, PASS], "INV-02": [PASS, FAIL], "INV-03": [PASS, Status.WARN]}
    wrong = next(r for r in ran.journal.results if r.status is FAIL)
    assert wrong.reason == "row 2 came back as 3."
    assert wrong.reproducer == f"dsv4-conformance repro {wrong.case_id} --impl adapters:Wrong"
    assert "DOES NOT QUALIFY in profile default: 7 checked, 1 WARN, 2 FAIL" in ran.out
    assert wrong.reproducer in ran.out
    assert "conftest.py" not in ran.out  # no traceback into the harness


def test_traceback_comes_back_on_demand(project: Project) -> None:
    ran = project.run("--tb=long", impl="Wrong")
    assert "conftest.py" in ran.out and "ConformanceFailure" in ran.out


def test_adapter_that_declares_itself_out_of_every_case_checks_nothing(project: Project) -> None:
    ran = project.run(impl="Picky")
    assert ran.code == 5, ran.out
    assert {s for found in ran.statuses.values() for s in found} == {Status.NOT_APPLICABLE}
    assert "NOTHING WAS CHECKED" in ran.out


def test_memory_error_is_a_status_of_its_own_and_fails(project: Project) -> None:
    ran = project.run(impl="Hungry")
    assert ran.code == 1
    assert ran.statuses["INV-03"] == [PASS, Status.OUT_OF_MEMORY]  # a SHOULD does not soften it


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("pass", "ended without comparing"),
        ("raise KeyError('k')", "KeyError"),
    ],
)
def test_fault_of_the_suite_is_told_from_a_fault_of_the_adapter(project: Project, body: str, sentence: str) -> None:
    project.write(
        "test_suite.py",
        "from dsv4_conformance.suite import requirement\n"
        "@requirement('INV-01', on=('KVPageFormat',), cases='few')\n"
        f"def test_it(subject, case):\n    {body}\n",
    )
    ran = project.run()
    assert ran.code == 3, ran.out
    assert set(ran.statuses["INV-01"]) == {Status.HARNESS_ERROR}
    assert sentence in ran.journal.results[0].reason


BODIES = {
    "INV-01": ("raise KeyError('k')", "KeyError: 'k'"),
    "INV-02": ("raise ValueError('row \\udcff')", r"ValueError: row \udcff"),
    "INV-03": ("raise Mute()", "Mute: Mute without a message"),
}


@pytest.mark.parametrize("words", [(), ("-n", "1"), ("-n", "1", "--tb=long")])
def test_any_exception_s_text_arrives(project: Project, words: tuple[str, ...]) -> None:
    tests = [
        f"@requirement('{name}', on=('KVPageFormat',), cases='few')\n"
        f"def test_{name[-2:]}(subject, case):\n    {body}\n\n"
        for name, (body, _) in BODIES.items()
    ]
    project.write(
        "test_suite.py",
        "from dsv4_conformance.suite import requirement\n"
        "class Mute(Exception):\n    def __str__(self):\n        raise RuntimeError\n\n" + "".join(tests),
    )
    ran = project.run(*words)
    assert ran.code == 3 and "INTERNALERROR" not in ran.out + ran.err, ran.out + ran.err
    assert sorted((r.requirement, r.status, r.reason) for r in ran.journal.results) == [
        (name, Status.HARNESS_ERROR, sentence) for name, (_, sentence) in BODIES.items() for _ in range(2)
    ]


def test_traceback_of_a_failure_travels_from_a_worker(project: Project) -> None:
    ran = project.run("-n", "1", "--tb=long", impl="Wrong")
    assert ran.code == 1 and "ConformanceFailure" in ran.out and "INTERNALERROR" not in ran.out + ran.err


def test_skip_inside_a_suite_is_a_gap_not_a_pass(project: Project) -> None:
    project.write(
        "test_suite.py",
        "import pytest\nfrom dsv4_conformance.suite import requirement\n"
        "@requirement('INV-01', on=('KVPageFormat',), cases='few')\n"
        "def test_it(subject, case):\n    pytest.skip('not today')\n",
    )
    ran = project.run()
    assert ran.code == 1
    assert set(ran.statuses["INV-01"]) == {Status.NOT_RUN}


ABSENT = """
from dsv4_conformance.suite import requirement

@requirement("INV-01", on=("KVPageFormat", "IndexKeyFormat"), cases="few")
def test_both(subject, case):
    subject.check(case)
"""


def test_absent_surface_is_one_not_applicable_item(project: Project) -> None:
    project.write("test_suite.py", ABSENT)
    ran = project.run()
    assert ran.statuses["INV-01"] == [PASS, PASS, Status.NOT_APPLICABLE]
    assert "good does not offer IndexKeyFormat" in ran.journal.results[-1].reason
    assert ran.code == 0


def test_absent_surface_fails_where_the_profile_demands_it(project: Project) -> None:
    project.write("test_suite.py", ABSENT)
    ran = project.run("--dsv4-profile", "strict", "--junitxml", "junit.xml")
    assert ran.code == 1
    assert ran.statuses["INV-01"] == [PASS, PASS, Status.UNSUPPORTED_REQUIRED]
    tree = ET.parse(project.folder / "junit.xml").getroot()
    assert len(tree.findall(".//failure")) == 1 and not tree.findall(".//error")


def test_teardown_error_takes_the_pass_away(project: Project) -> None:
    project.write(
        "test_suite.py",
        "import pytest\nfrom dsv4_conformance.suite import requirement\n"
        "@pytest.fixture\ndef messy():\n    yield\n    raise OSError('left open')\n\n"
        "@requirement('INV-01', on=('KVPageFormat',), cases='few')\n"
        "def test_it(messy, subject, case):\n    subject.check(case)\n",
    )
    ran = project.run()
    assert set(ran.statuses["INV-01"]) == {Status.HARNESS_ERROR}
    assert ran.code == 3


def test_foreign_failing_test_beside_a_green_suite_fails_the_session(project: Project) -> None:
    project.write("test_other.py", "def test_it():\n    assert 1 == 2\n")
    ran = project.run()
    assert ran.code == 1
    assert "assert 1 == 2" in ran.out  # pytest's own report is left alone


def test_junit_has_requirement_status_and_margin(project: Project) -> None:
    project.run("--junitxml", "junit.xml", impl="Wrong")
    cases = ET.parse(project.folder / "junit.xml").getroot().findall(".//testcase")
    found = [{p.get("name"): p.get("value") for p in case.iter("property")} for case in cases]
    assert len(found) == 7
    assert {p["dsv4_status"] for p in found} == {"PASS", "FAIL", "WARN"}
    assert found[0]["dsv4_requirement"] == "INV-01" and found[0]["dsv4_margin_out"] == "inf"
