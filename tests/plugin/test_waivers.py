"""Waivers permit what they name, for a while, and nothing else; each that should go fails the run with a sentence."""

import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.waivers import Waiver, Waivers, read_waivers
from dsv4_conformance.spec.requirements import load_registry
from dsv4_conformance.status import Status
from tests.plugin.conftest import Project

TODAY = datetime.now(UTC).date()
PASS, FAIL, WAIVED, STALE = Status.PASS, Status.FAIL, Status.WAIVED, Status.STALE_WAIVER
WORKERS = pytest.mark.parametrize("workers", ["0", "1"])


def waiver(selector: str = "", **changes: Any) -> str:
    fields = {
        "id": "W-1",
        "requirement": "INV-01",
        "issue": "https://example.com/issues/1",
        "owner": "Ada",
        "opened": TODAY - timedelta(days=10),
        "expires": TODAY + timedelta(days=10),
        "kind": "tolerated",
        **changes,
    }
    lines = [f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}" for key, value in fields.items()]
    chosen = selector or 'implementation = "good"\ntests = "*-n2-*"'
    return "\n".join(["[[waiver]]", *lines, "[waiver.selector]", chosen, ""])


def run(project: Project, *texts: str, impl: str = "Wrong", words: tuple[str, ...] = ()) -> Any:
    project.write("waivers.toml", "\n".join(texts))
    return project.run("--dsv4-waivers", "waivers.toml", "--junitxml", "junit.xml", *words, impl=impl)


@WORKERS
def test_tolerated_failure_is_waived_and_only_that(project: Project, workers: str) -> None:
    ran = run(project, waiver(), words=("-n", workers))
    assert ran.statuses == {"INV-01": [PASS, WAIVED, PASS], "INV-02": [PASS, FAIL], "INV-03": [PASS, Status.WARN]}
    assert ran.code == 1
    waived = next(result for result in ran.journal.results if result.status is WAIVED)
    assert waived.waiver == "W-1" and waived.waived_status is Status.FAIL
    assert {r.waived_status for r in ran.journal.results if r.status is not WAIVED} == {None}
    assert waived.reason == (
        f"W-1 until {TODAY + timedelta(days=10)} (Ada, https://example.com/issues/1): row 2 came back as 3."
    )
    assert [record.id for record in ran.journal.header.waivers] == ["W-1"]
    suite = ET.parse(project.folder / "junit.xml").getroot().find("testsuite")
    assert suite is not None and (suite.get("failures"), suite.get("skipped"), suite.get("tests")) == ("1", "1", "7")


def test_run_whose_every_failure_is_waived_qualifies(project: Project) -> None:
    ran = run(project, waiver(), waiver(id="W-2", requirement="INV-02"))
    assert ran.code == 0 and ran.journal.footer.qualifies, ran.out
    assert "1 WARN, 2 WAIVED" in ran.journal.footer.verdict


@WORKERS
def test_waiver_of_a_case_that_passes_now_is_stale(project: Project, workers: str) -> None:
    ran = run(project, waiver(), impl="Good", words=("-n", workers))
    assert ran.code == 1 and ran.statuses["INV-01"] == [PASS, STALE, PASS]
    assert "Waiver W-1 is stale: this case passes now" in ran.out


def test_expired_waiver_permits_nothing_and_fails_a_right_run(project: Project) -> None:
    over = waiver(expires=TODAY - timedelta(days=1))
    ran = run(project, over)
    assert ran.statuses["INV-01"] == [PASS, FAIL, PASS]
    sentence = f"Waiver W-1 expired on {TODAY - timedelta(days=1)}; Ada has to renew or remove it"
    assert ran.journal.footer.problems == [f"{sentence} (https://example.com/issues/1)."]
    narrow = waiver('implementation = "good"\ntests = "*-n3-*"', expires=TODAY - timedelta(days=1))
    fixed = run(project, narrow, impl="Good")
    assert fixed.code == 1 and sentence in fixed.journal.footer.verdict


def test_waiver_holds_on_its_last_day(project: Project) -> None:
    assert run(project, waiver(expires=TODAY)).statuses["INV-01"] == [PASS, WAIVED, PASS]


@WORKERS
def test_waiver_that_matches_nothing_fails_the_run(project: Project, workers: str) -> None:
    ran = run(project, waiver('implementation = "good"\ntests = "*-n7777-*"'), impl="Good", words=("-n", workers))
    assert ran.code == 1
    assert ran.journal.footer.problems == ["Waiver W-1 matches no case; correct its selector, or remove it."]


def test_waiver_for_what_another_run_runs_is_left_alone(project: Project) -> None:
    """A case of a bigger profile, another implementation, another device, tests that were left out."""
    bigger = waiver('implementation = "good"\ntests = "*-n103-*"')
    for text, words in (
        (bigger, ()),
        (waiver('implementation = "other"\ntests = "nothing"'), ()),
        (waiver('implementation = "good"\ndevice = "cuda"\ntests = "nothing"'), ()),
        (waiver('implementation = "good"\ntests = "nothing"'), ("--dsv4-seed", "1")),
    ):
        assert run(project, text, impl="Good", words=words).code == 0
    alone = run(project, waiver(requirement="INV-03"), impl="Good", words=("test_suite.py::test_rows_come_back",))
    assert alone.code == 0


@WORKERS
def test_quarantined_case_does_not_run_and_does_not_qualify(project: Project, workers: str) -> None:
    ran = run(project, waiver(kind="quarantined"), impl="Killed", words=("-n", workers))
    assert ran.statuses["INV-01"] == [PASS, Status.QUARANTINED, PASS]
    assert ran.statuses["INV-02"] == [PASS, Status.CRASH]
    quiet = run(project, *(waiver(id=f"W-{n}", requirement=f"INV-0{n}", kind="quarantined") for n in (1, 2, 3)))
    assert quiet.code == 1 and not quiet.journal.footer.qualifies
    over = run(project, waiver(kind="quarantined", expires=TODAY - timedelta(days=1)), impl="Killed")
    assert over.statuses["INV-01"] == [PASS, Status.CRASH, PASS]


@WORKERS
def test_crash_is_waived_only_where_the_waiver_says_so(project: Project, workers: str) -> None:
    ran = run(project, waiver(), impl="Killed", words=("-n", workers))
    assert ran.statuses["INV-01"] == [PASS, Status.CRASH, PASS]
    crash = next(result for result in ran.journal.results if result.requirement == "INV-01" and result.reason)
    assert crash.reason.endswith("Waiver W-1 does not cover this, only FAIL.")
    covering = waiver('implementation = "good"\ntests = "*-n2-*"\nstatuses = ["CRASH"]')
    ran = run(project, covering, impl="Killed", words=("-n", workers))
    assert ran.statuses["INV-01"] == [PASS, WAIVED, PASS]
    assert [r.waived_status for r in ran.journal.results if r.status is WAIVED] == [Status.CRASH]
    suite = ET.parse(project.folder / "junit.xml").getroot().find("testsuite")
    assert suite is not None and (suite.get("failures"), suite.get("skipped"), suite.get("tests")) == ("2", "1", "7")


REGISTRY = load_registry()
REQUIREMENT = REGISTRY.ids[0]
SELECTOR = 'implementation = "x"'
WRONG = {
    "too long": (waiver(SELECTOR, expires=TODAY + timedelta(days=81)), "expires on"),
    "ends before it begins": (waiver(SELECTOR, expires=TODAY - timedelta(days=11)), "expires on"),
    "opened tomorrow": (waiver(SELECTOR, opened=TODAY + timedelta(days=1)), "which is still to come"),
    "no owner": (waiver(SELECTOR, owner=""), "wrong at owner"),
    "no issue": (waiver(SELECTOR, issue="see chat"), "wrong at issue: Value error, give the URL of an issue"),
    "unknown kind": (waiver(SELECTOR, kind="ignored"), "wrong at kind"),
    "unknown field": (waiver(SELECTOR, approved="yes"), "wrong at approved"),
    "selector without implementation": (waiver('tests = "*"'), "wrong at selector.implementation"),
    "covers everything": (waiver(SELECTOR + '\nstatuses = ["NOT_RUN"]'), "a waiver covers FAIL, CRASH"),
    "no such requirement": (waiver(SELECTOR, requirement="INV-777"), "a requirement that does not exist"),
    "id twice": (waiver(SELECTOR) + waiver(SELECTOR), "the id of another one"),
    "no TOML": ("[[waiver]", "are no TOML"),
    "another table": ("[waivers]\n", "where only [[waiver]] may stand"),
    "no expiry": (waiver(SELECTOR).replace(f"expires = {TODAY + timedelta(days=10)}\n", ""), "wrong at expires"),
}


@pytest.mark.parametrize("name", WRONG)
def test_malformed_waiver_is_bad_input(tmp_path: Path, name: str) -> None:
    text, sentence = WRONG[name]
    path = tmp_path / "w.toml"
    path.write_text(text.replace('"INV-01"', f'"{REQUIREMENT}"'))
    with pytest.raises(BadInput) as refused:
        read_waivers(path, REGISTRY, TODAY)
    assert sentence in str(refused.value) and str(path) in str(refused.value)


def test_ninety_days_are_allowed_and_a_folder_is_read_whole(tmp_path: Path) -> None:
    for number in (1, 2):
        text = waiver(SELECTOR, id=f"W-{number}", opened=TODAY, expires=TODAY + timedelta(days=90))
        (tmp_path / f"{number}.toml").write_text(text.replace('"INV-01"', f'"{REQUIREMENT}"'))
    assert [w.id for w in read_waivers(tmp_path, REGISTRY, TODAY)] == ["W-1", "W-2"]


def test_malformed_waivers_stop_a_run(project: Project) -> None:
    ran = run(project, "[[waiver]")
    assert ran.code == 2 and "are no TOML" in ran.err and "Traceback" not in ran.err


def test_what_is_no_result_is_not_waived() -> None:
    made = Waiver.model_validate(
        {
            "id": "W",
            "requirement": "INV-01",
            "selector": {"implementation": "*"},
            "issue": "https://example.com/issues/1",
            "owner": "Ada",
            "opened": TODAY,
            "expires": TODAY,
            "kind": "tolerated",
        }
    )
    waivers = Waivers([made], TODAY)
    for status in (Status.NOT_RUN, Status.NOT_APPLICABLE):
        assert waivers.judge(made, status, "r") == (status, "r", "")
    assert waivers.judge(made, Status.HARNESS_ERROR, "r")[0] is Status.HARNESS_ERROR
