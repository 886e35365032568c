"""``waivers add`` writes what a run accepts; ``check`` finds what has to go."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dsv4_conformance.cli import main
from dsv4_conformance.plugin.waivers import read_waivers
from dsv4_conformance.spec.requirements import load_registry
from dsv4_conformance.status import Status
from tests.plugin.test_journal import HEADER, result

TODAY = datetime.now(UTC).date()
GIVEN = ["--implementation", "Mine", "--issue", "https://example.com/issues/7", "--owner", 'Ada "A" Lovelace']

MINE = {**HEADER, "implementation": {**HEADER["implementation"], "identity": {"name": "Mine"}}}


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["waivers", *words])
    told = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, told.out + told.err


def test_added_waivers_are_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "new" / "w.toml")
    for days in ("5", "90"):
        words = ["--requirement", "INV-02", *GIVEN, "--case", "INV-02-1a2b3c4d", "--days", days, "--waivers", file]
        code, told = command(capsys, "add", *words, "--reason", 'tabs\tand "quotes"\x7f')
        assert code == 0, told
    first, second = read_waivers(Path(file), load_registry(), TODAY)
    assert first.id != second.id and first.owner == 'Ada "A" Lovelace' and first.reason == 'tabs\tand "quotes"\x7f'
    assert (first.opened, first.expires, second.expires) == (
        TODAY,
        TODAY + timedelta(days=5),
        TODAY + timedelta(days=90),
    )
    assert first.selector.cases == ["INV-02-1a2b3c4d"] and first.kind == "tolerated"
    code, told = command(capsys, "list", "--waivers", file)
    assert code == 0 and told.splitlines()[0].startswith(f"{first.id}: 5 day(s) left")
    assert told.endswith("2 waiver(s)\n")


def test_failed_cases_of_a_run_are_taken_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = tmp_path / "journal.jsonl"
    lines = [MINE, result(0, "FAIL"), result(1), result(2, "CRASH")]
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    file = str(tmp_path / "w.toml")
    words = ["--requirement", "INV-01", *GIVEN, "--journal", str(journal), "--waivers", file]
    assert command(capsys, "add", *words)[0] == 0
    (made,) = read_waivers(Path(file), load_registry(), TODAY)
    assert made.selector.cases == ["INV-01-0", "INV-01-2"]
    assert set(made.selector.statuses) == {Status.FAIL, Status.CRASH}


# Kills: a waiver for an implementation that the run is not of, or for what did not fail in it.
def test_a_run_of_another_implementation_gives_no_waiver(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    lines = [MINE, result(0, "FAIL")]
    (tmp_path / "run/journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = [*GIVEN, "--journal", str(tmp_path / "run"), "--waivers", str(tmp_path / "w.toml")]
    other = ["another" if word == adapter() else word for word in given]
    code, told = command(capsys, "add", "--requirement", "INV-01", *other)
    assert code == 2 and "the waiver, for 'another', would match nothing" in told
    code, told = command(capsys, "add", "--requirement", "INV-02", *given)
    assert code == 2 and "No case of INV-02 failed" in told
    assert command(capsys, "add", "--requirement", "INV-01", *given)[0] == 0


def adapter() -> str:
    """The implementation that the waivers of these tests are for."""
    return GIVEN[GIVEN.index("--implementation") + 1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--requirement", "INV-02", "--days", "91", "--case", "x"], "expires on"),
        (["--requirement", "INV-777", "--case", "x"], "a requirement that does not exist"),
        (["--requirement", "INV-02", "--kind", "ignored", "--case", "x"], "wrong at kind"),
        (["--requirement", "INV-02"], "A waiver needs its cases"),
        (["--requirement", "INV-53", "--case", "INV-01-1a2b3c4d"], "is not of INV-53"),
        (["--requirement", "INV-02", "--case", "x", "--days", "-5"], "--days is -5"),
    ],
)
def test_wrong_addition_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    file = tmp_path / "w.toml"
    file.write_text("# mine\n")
    code, told = command(capsys, "add", *words, *GIVEN, "--waivers", str(file))
    assert code == 2 and sentence in told
    assert file.read_text() == "# mine\n"


def test_check_names_what_has_to_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.toml"
    words = ["--requirement", "INV-01", *GIVEN, "--waivers", str(file)]
    command(capsys, "add", *words, "--case", "INV-01-00000000", "--id", "gone")
    command(capsys, "add", *words, "--case", "INV-01-00000000", "--id", "over")
    text = file.read_text()
    old = text.replace(f"opened = {TODAY}", f"opened = {TODAY - timedelta(days=40)}")
    over = old.index('id = "over"')
    file.write_text(old[:over] + old[over:].replace(f"{TODAY + timedelta(days=30)}", f"{TODAY - timedelta(days=1)}"))
    journal = tmp_path / "journal.jsonl"
    journal.write_text(
        "".join(json.dumps(line) + "\n" for line in [HEADER, {**result(0, "STALE_WAIVER"), "waiver": "gone"}])
    )
    code, told = command(capsys, "check", "--waivers", str(file), str(journal))
    assert code == 1
    assert f"over expired on {TODAY - timedelta(days=1)}" in told
    assert "gone matches no case" in told and "gone is stale: INV-01-0 passed" in told
    assert told.endswith("2 waiver(s), 4 problem(s)\n")


# Kills: a check that believes only in the statuses of runs which had these waivers.
def test_a_case_that_passed_without_the_waiver_makes_it_stale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "w.toml"
    header = {**HEADER, "implementation": {**HEADER["implementation"], "identity": {"name": "Mine"}}}
    for name, adapter in (("W-1", "Mine"), ("W-2", "another")):
        words = ["--requirement", "INV-01", *GIVEN[2:], "--implementation", adapter, "--waivers", str(file)]
        assert command(capsys, "add", *words, "--case", "INV-01-0", "--id", name)[0] == 0
    journal = tmp_path / "journal.jsonl"
    journal.write_text("".join(json.dumps(line) + "\n" for line in [header, result(0), result(1)]))
    told = command(capsys, "check", "--waivers", str(file), str(journal))[1]
    assert f"W-1 is stale: INV-01-0 passed in {journal}; take it out." in told and "W-2 is stale" not in told


def test_no_waivers_are_no_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.toml"
    file.write_text("")
    assert command(capsys, "check", "--waivers", str(file)) == (0, "0 waiver(s), 0 problem(s)\n")
