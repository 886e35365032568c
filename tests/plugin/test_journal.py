"""The journal's reader, its hashes and its published schema."""

import json
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.journal import (
    Footer,
    PlanEntry,
    Result,
    json_schema,
    plan_hash,
    read_journal,
    results_hash,
)
from dsv4_conformance.status import Status

ROOT = Path(__file__).resolve().parents[2]

ENVIRONMENT = {
    "python": "3.11",
    "platform": "Linux",
    "cpu_count": 2,
    "gpus": [],
    "driver": "",
    "packages": {},
    "commit": "",
    "modified": False,
}
HEADER: dict[str, Any] = {
    "kind": "header",
    "schema": "dsv4-journal/1",
    "run_id": "r",
    "started": "2026-01-01T00:00:00+00:00",
    "version": "0",
    "command": [],
    "profile": "default",
    "seed": 0,
    "device": "cpu",
    "workers": 1,
    "implementation": {"requested": "x", "identity": {}, "surfaces": {}, "devices": []},
    "environment": ENVIRONMENT,
    "requirements": [{"id": "INV-01", "level": "MUST", "title": "t"}],
    "plan": [{"case_id": f"INV-01-{i}", "requirement": "INV-01", "surface": "s", "nodeid": f"n{i}"} for i in range(3)],
    "plan_hash": "",
    "not_selected": [],
}


def result(number: int, status: str = "PASS") -> dict[str, Any]:
    return {
        "kind": "result",
        "case_id": f"INV-01-{number}",
        "requirement": "INV-01",
        "surface": "s",
        "nodeid": f"n{number}",
        "status": status,
        "reason": "",
        "record": {"metrics": {"out_ratio": "inf"}},
        "duration_s": 0.1,
        "worker": "main",
        "reproducer": "r",
    }


FOOTER = {
    "kind": "footer",
    "finished": "2026-01-01T00:00:01+00:00",
    "counts": {"PASS": 3},
    "requirements": {"INV-01": "PASS"},
    "exit_code": 0,
    "qualifies": True,
    "verdict": "v",
    "results_hash": "",
}


def written(folder: Path, *lines: dict[str, Any] | str, end: str = "\n") -> Path:
    path = folder / "journal.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + end)
    return path


def test_complete_journal(tmp_path: Path) -> None:
    journal = read_journal(written(tmp_path, HEADER, *(result(i) for i in range(3)), FOOTER))
    assert isinstance(journal.footer, Footer) and not journal.truncated and not journal.torn
    assert [r.nodeid for r in journal.results] == ["n0", "n1", "n2"] and not journal.missing()


def test_later_result_of_a_case_counts(tmp_path: Path) -> None:
    journal = read_journal(written(tmp_path, HEADER, result(0), result(1), result(0, "CRASH")))
    assert [(r.nodeid, r.status) for r in journal.results] == [("n1", Status.PASS), ("n0", Status.CRASH)]


def test_journal_without_footer_is_truncated_and_knows_what_is_missing(tmp_path: Path) -> None:
    journal = read_journal(written(tmp_path, HEADER, result(1)))
    assert journal.truncated and not journal.torn
    assert [entry.nodeid for entry in journal.missing()] == ["n0", "n2"]


def test_torn_last_line_is_tolerated(tmp_path: Path) -> None:
    journal = read_journal(written(tmp_path, HEADER, result(0), json.dumps(result(1))[:40], end=""))
    assert journal.truncated and journal.torn and len(journal.results) == 1


def test_field_of_a_later_minor_version_is_ignored(tmp_path: Path) -> None:
    journal = read_journal(written(tmp_path, {**HEADER, "mood": "good"}, {**result(0), "colour": "blue"}))
    assert len(journal.results) == 1


def test_line_separator_inside_a_reason_does_not_split_it(tmp_path: Path) -> None:
    line = json.dumps({**result(0), "reason": "one\u2028two\x85three"}, ensure_ascii=False)
    assert read_journal(written(tmp_path, HEADER, line)).results[0].reason == "one\u2028two\x85three"


@pytest.mark.parametrize(
    ("lines", "end", "sentence"),
    [
        (["half a li", result(0)], "\n", "is no journal|line 1: it is not JSON"),
        ([HEADER, "half a li", result(0)], "\n", "damaged at line 2: it is not JSON"),
        ([HEADER, "half a li"], "\n", "damaged at line 2: it is not JSON"),
        ([result(0)], "\n", "its first line is no header"),
        ([], "", "is empty"),
        (["[" * 100_000], "\n", "line 1: it is not JSON"),
        (["[1]"], "\n", "its first line is no header"),
        ([{**HEADER, "schema": "dsv4-journal/2"}], "\n", "schema 'dsv4-journal/2'"),
        ([{k: v for k, v in HEADER.items() if k != "plan"}], "\n", "line 1: header.plan: Field required"),
        ([HEADER, {**result(0), "status": "GREEN"}], "\n", "line 2: result.status"),
        ([HEADER, FOOTER, result(0)], "\n", "goes on after its end at line 3"),
        ([HEADER, HEADER], "\n", "goes on after its end at line 2"),
    ],
)
def test_bad_journal_is_bad_input(tmp_path: Path, lines: list[Any], end: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_journal(written(tmp_path, *lines, end=end))


def test_missing_file_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_journal(tmp_path / "nowhere.jsonl")


def test_hashes_depend_on_content_and_not_on_order() -> None:
    plan = [PlanEntry.model_validate(entry) for entry in HEADER["plan"]]
    moved = [entry.model_copy(update={"nodeid": "elsewhere"}) for entry in reversed(plan)]
    assert plan_hash(plan) == plan_hash(moved)
    assert plan_hash(plan) != plan_hash(plan[:2])
    results = [Result.model_validate(result(i)) for i in range(3)]
    slower = [r.model_copy(update={"duration_s": 9.0, "worker": "gw1"}) for r in reversed(results)]
    assert results_hash(results) == results_hash(slower)
    assert results_hash(results) != results_hash([*results[:2], Result.model_validate(result(2, "FAIL"))])


def test_published_schema_is_the_models_schema() -> None:
    """To publish a change: python -m dsv4_conformance.plugin.journal_schema > docs/journal-v1.schema.json."""
    published = json.loads((ROOT / "docs/journal-v1.schema.json").read_text())
    assert published == json_schema()
