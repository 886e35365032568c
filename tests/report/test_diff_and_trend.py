"""``diff`` and ``trend``: every class of change, from journals; exit codes; pages that hostile texts do not break."""

from pathlib import Path

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.journal import Result
from dsv4_conformance.report import diff_text, trend_text
from dsv4_conformance.report.comparing import compare
from dsv4_conformance.report.trending import Course, remarks, trend
from dsv4_conformance.status import Status
from tests.report import made
from tests.report.conftest import Command
from tests.report.made import result
from tests.report.malice import STRINGS, journal
from tests.report.test_hostile_texts import CONTROL, STRUCTURE, Page


def case(number: int, status: Status = Status.PASS, ratio: float | str | None = 0.3) -> Result:
    return result(f"INV-01-{number:08x}", status, ratio=ratio, reason="" if status is Status.PASS else "told why")


def two(tmp_path: Path, before: list[Result], after: list[Result], **more: object) -> tuple[Path, Path]:
    one = made.write(tmp_path / "a.jsonl", before)
    return one, made.write(tmp_path / "b.jsonl", after, run_id="b", **more)  # type: ignore[arg-type]


FAIL, CRASH, ABSENT, WARN = Status.FAIL, Status.CRASH, Status.NOT_APPLICABLE, Status.WARN


# Kills: each class left out or taken for another; a drift of half a budget that is not told, one below that is.
@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (case(1), case(1, FAIL, 4.0), "regressed"),
        (case(1, ABSENT, None), case(1, FAIL, 4.0), "regressed"),
        (case(1, FAIL, 4.0), case(1), "fixed"),
        (case(1, FAIL, 4.0), case(1, CRASH, None), "otherwise"),
        (case(1, FAIL, 4.0), case(1, FAIL, 9.0), None),
        (case(1), case(1, ABSENT, None), "uncovered"),
        (case(1, FAIL, 4.0), case(1, ABSENT, None), "uncovered"),
        (case(1, ABSENT, None), case(1), "covered"),
        (case(1, ABSENT, None), case(1, ABSENT, None), None),
        (case(1, ratio=0.25), case(1, ratio=0.75), "drifted"),
        (case(1, ratio=0.25), case(1, ratio=0.74), None),
        (case(1, ratio=0.9), case(1, ratio=0.1), None),
        (case(1, ratio=None), case(1, ratio=0.9), None),
        (case(1), case(1, WARN), None),
    ],
)
def test_a_case_that_both_have(tmp_path: Path, before: Result, after: Result, change: str | None) -> None:
    found = compare(*two(tmp_path, [before, case(2)], [after, case(2)]))
    assert dict(found.counts) == ({change: 1} if change else {})
    assert found.same == (1 if change else 2) and found.common == 2


def test_new_and_gone_cases(tmp_path: Path) -> None:
    found = compare(*two(tmp_path, [case(1), case(2)], [case(2), case(3)]))
    assert found.counts == {"new": 1, "gone": 1} and found.same == 1
    assert found.kept["gone"][0].case.id.endswith("1") and found.kept["new"][0].case.id.endswith("3")


# Kills: an interrupted second run that looks like one without failures.
def test_a_gap_of_the_second_run_is_a_regression(tmp_path: Path) -> None:
    one = made.write(tmp_path / "a.jsonl", [case(1), case(2)])
    other = made.write(tmp_path / "b.jsonl", [case(1)], planned=[case(1), case(2)], end=False, run_id="b")
    found = compare(one, other)
    assert [(c.case.id, c.case.status) for c in found.kept["regressed"]] == [("INV-01-00000002", "NOT_RUN")]


def test_what_differs_in_how_they_were_made_is_told(tmp_path: Path) -> None:
    found = compare(*two(tmp_path, [case(1)], [case(1)], torch="2.14.0", gpu="NVIDIA B200"))
    assert ("torch", "2.11.0", "2.14.0") in found.differing and ("device", "CPU", "NVIDIA B200") in found.differing
    assert not [name for name, _, _ in found.differing if name in ("run", "Python")]


def test_text_markdown_and_page_tell_the_same(tmp_path: Path) -> None:
    before = [case(1), case(2, ratio=0.2), case(3, FAIL, 4.0)]
    found = compare(*two(tmp_path, before, [case(1, FAIL, 4.0), case(2, ratio=0.8), case(3)]))
    text, markdown, page = "\n".join(diff_text.text(found)), diff_text.as_markdown(found), diff_text.as_page(found)
    assert text.splitlines()[-1] == "1 regressed, 1 drifted, 1 fixed; 0 of 3 common cases as before"
    for told in (text, markdown, page):
        assert "0.20 → 0.80 budgets" in told and "dsv4-conformance repro INV-01-00000001 --impl kernel" in told
        for word in ("egressed", "rifted", "ixed"):
            assert word in told


@pytest.mark.parametrize(
    ("after", "words", "code"),
    [
        ([case(1), case(2)], (), 0),
        ([case(1), case(2, ratio=0.9)], (), 0),
        ([case(1), case(2, ratio=0.9)], ("--fail-on", "drifted"), 1),
        ([case(1), case(2, FAIL, 3.0)], (), 1),
        ([case(1)], (), 1),
        ([case(1), case(2, ABSENT, None)], (), 1),
        ([case(1, ABSENT, None), case(2, ABSENT, None)], (), 5),
        ([case(8), case(9)], (), 7),
        ([case(1)], ("--fail-on", "worse"), 2),
        ([case(1)], ("--format", "pdf"), 2),
    ],
)
def test_exit_codes_of_diff(
    command: Command, tmp_path: Path, after: list[Result], words: tuple[str, ...], code: int
) -> None:
    two(tmp_path, [case(1), case(2)], after)
    done = command("diff", "a.jsonl", "b.jsonl", "-o", "out", *words)
    assert done.returncode == code, done.stdout + done.stderr
    assert (tmp_path / "out/diff.html").exists() is (code != 2)


def course(*statuses: Status | None, worst: tuple[float | None, ...] = ()) -> Course:
    from dsv4_conformance.report.folding import Rule

    rules: list[Rule | None] = []
    for number, status in enumerate(statuses):
        rule = None if status is None else Rule("INV-01", worst=worst[number] if worst else 0.3)
        if rule is not None and status is not None:
            rule.counts[status] = 2
        rules.append(rule)
    return Course("INV-01", "title", tuple(rules))


P = Status.PASS


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (course(P, P, P), ""),
        (course(P, FAIL, FAIL), "bad since B"),
        (course(FAIL, FAIL, P), "good again"),
        (course(P, FAIL, P), "changed sides 2 times"),
        (course(P, FAIL, P, FAIL), "bad since D, changed sides 3 times"),
        (course(P, P, None), "last checked in B"),
        (course(P, ABSENT), "last checked in A"),
        (course(ABSENT, ABSENT), "never checked"),
        (course(P, P, worst=(0.2, 0.6)), "error 0.20 → 0.60"),
        (course(P, P, worst=(0.2, 0.4)), ""),
    ],
)
def test_remarks_on_a_requirement(found: Course, told: str) -> None:
    assert remarks(found, "ABCD"[: len(found.rules)]) == told
    assert found.notable is (told not in ("", "never checked"))


def test_a_trend_is_in_order_of_time(tmp_path: Path) -> None:
    paths = [
        made.write(
            tmp_path / f"{day}.jsonl",
            [case(1, FAIL if day == 3 else P, 3.0 if day == 3 else 0.3), result("INV-02-00000002")],
            run_id=f"run {day}",
            started=f"2026-11-0{day}T00:00:00+00:00",
        )
        for day in (2, 3, 1)
    ]
    found = trend(paths)
    assert [run.header.run_id for run in found.runs] == ["run 1", "run 2", "run 3"]
    text = "\n".join(trend_text.text(found))
    assert "INV-01   ooF  Output follows the attention formula: bad since C" in text
    assert "1 of 2 requirements went as before" in text
    assert "| INV-01 | Output follows the attention formula | o | o | F | bad since C" in trend_text.as_markdown(found)
    page = trend_text.as_page(found)
    assert "1 of 2 requirements moved over 3 runs." in page and page.index("INV-01") < page.index("INV-02")
    with pytest.raises(BadInput, match="two journals or more"):
        trend(paths[:1])


def test_the_command_trend(command: Command, tmp_path: Path) -> None:
    two(tmp_path, [case(1)], [case(1, FAIL, 3.0)])
    done = command("trend", "a.jsonl", "b.jsonl", "-o", "out", "--format", "markdown")
    assert done.returncode == 0 and "bad since B" in done.stdout and (tmp_path / "out/trend.html").exists()
    for words in (
        ("trend", "a.jsonl"),
        ("trend", "a.jsonl", "absent"),
        ("trend", "a.jsonl", "b.jsonl", "--format", "x"),
    ):
        done = command(*words)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, words


# Kills: |safe in the templates of diff and trend; raw texts on the terminal.
def test_hostile_texts_break_neither(tmp_path: Path) -> None:
    paths = [journal(tmp_path / f"{number}.jsonl", text) for number, text in enumerate(STRINGS)]
    for one in paths[1:]:
        found = compare(paths[0], one)
        told = ["\n".join(diff_text.text(found)), diff_text.as_markdown(found)]
        over = trend([paths[0], one])
        told += ["\n".join(trend_text.text(over)), trend_text.as_markdown(over)]
        for text in told:
            assert not CONTROL.search(text.replace("\n", ""))
        for text in (diff_text.as_page(found), trend_text.as_page(over)):
            page = Page()
            page.feed(text)
            assert {tag: page.tags.count(tag) for tag in STRUCTURE} == STRUCTURE | {"script": 1} and not page.bad
            assert not CONTROL.search(text.replace("\n", ""))


# Kills: "Nothing changed" of a run that did not end, or of a journal that contradicts itself.
@pytest.mark.parametrize(
    ("after", "more", "why"),
    [(case(1), {"end": False}, "The run did not end"), (case(1, ratio=9.0), {}, "with an error beyond its budget")],
)
def test_a_run_that_cannot_be_relied_on_is_no_good_news(
    tmp_path: Path, command: Command, after: Result, more: dict[str, object], why: str
) -> None:
    two(tmp_path, [case(1)], [after], **more)
    for form in ("text", "markdown"):
        done = command("diff", "a.jsonl", "b.jsonl", "--format", form)
        assert done.returncode == 1 and why in done.stdout and "B cannot be relied on; " in done.stdout
        assert why in command("trend", "a.jsonl", "b.jsonl", "--format", form).stdout
    command("trend", "a.jsonl", "b.jsonl", "-o", "out")
    assert why in (tmp_path / "out/trend.html").read_text()


# Kills: a summary with the verdict of a footer that lies; summary and merge of what no reader can take.
def test_a_summary_has_the_verdict_of_the_results(tmp_path: Path, command: Command) -> None:
    lie = {"exit_code": 0, "qualifies": True, "verdict": "QUALIFIES in profile default: 1 checked"}
    made.write(tmp_path / "run/journal.jsonl", [case(1, FAIL, 4.0)], foot=lie)
    told = command("summary", "run").stdout
    assert "**DOES NOT QUALIFY in profile default" in told and "QUALIFIES in" not in told
    made.write(tmp_path / "j.jsonl", [case(1, ratio=9.0)])
    assert (
        "the journal contradicts itself: INV-01-00000001 passed with an error" in command("summary", "j.jsonl").stdout
    )
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    path = made.write(tmp_path / "half.jsonl", [case(1)])
    path.write_text(path.read_text().replace('"kernel"', '"\\ud800"'))
    for name in ("deep", "half"):
        for words in (("summary",), ("merge", "-o", "out")):
            done = command(*words, f"{name}.jsonl")
            assert done.returncode in (0, 2) and "Traceback" not in done.stderr
