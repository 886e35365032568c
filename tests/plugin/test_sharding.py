"""Shards: every case in exactly one, about equally long, the same everywhere; merged they are the whole run."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.plugin.journal import read_journal
from dsv4_conformance.plugin.merging import merge, write
from dsv4_conformance.plugin.sharding import CASE_S, digest, split
from dsv4_conformance.report.evidence import PACKAGE
from dsv4_conformance.status import Status
from tests.plugin.conftest import Project

ROWS = [(f"INV-0{n % 3}-{n:08x}", f"INV-0{n % 3}", "S", f"test_it.py::test[{n}]") for n in range(60)]
DURATIONS = {(row[0], "S"): random.Random(n).expovariate(1.0) for n, row in enumerate(ROWS)}


@pytest.mark.parametrize("count", [1, 2, 4, 7, 60, 70])
def test_every_case_is_in_one_part_in_the_plan_s_order(count: int) -> None:
    parts = split(ROWS, count, DURATIONS)
    assert len(parts) == count
    assert sorted(row for part in parts for row in part) == sorted(ROWS)
    assert all(part == [row for row in ROWS if row in part] for part in parts)


def test_parts_take_about_equally_long() -> None:
    loads = [sum(DURATIONS[row[0], row[2]] for row in part) for part in split(ROWS, 4, DURATIONS)]
    assert max(loads) - min(loads) < min(DURATIONS.values()) + 0.1 * sum(loads) / 4
    counted = split(ROWS, 4, {})
    assert {len(part) for part in counted} == {15}


def test_unknown_case_counts_as_its_requirement_s_average() -> None:
    rows = [("A-1", "A", "S", "a"), ("A-2", "A", "S", "b"), ("B-1", "B", "S", "c"), ("B-2", "B", "S", "d")]
    known = {("A-1", "S"): 10.0, ("B-1", "S"): 1.0}
    parts = split(rows, 2, known)
    assert [{row[0] for row in part} for part in parts] == [{"A-1", "B-1"}, {"A-2", "B-2"}]
    assert CASE_S < 1.0


def test_split_does_not_depend_on_the_order_in_which_cases_were_collected() -> None:
    shuffled = random.Random(1).sample(ROWS, len(ROWS))
    assert [set(part) for part in split(shuffled, 5, DURATIONS)] == [set(part) for part in split(ROWS, 5, DURATIONS)]


def test_digest_tells_durations_apart() -> None:
    assert digest({}) == "" and digest(DURATIONS) == digest(dict(reversed(DURATIONS.items())))
    assert digest(DURATIONS) != digest({**DURATIONS, ("INV-09-0", "S"): 1.0})


def shards(project: Project, count: int, *words: str, impl: str = "Wrong") -> list[Path]:
    paths = []
    for index in range(1, count + 1):
        folder = f"shard{index}"
        project.run("--dsv4-shard", f"{index}/{count}", "--dsv4-results", folder, *words, impl=impl)
        paths.append(project.folder / folder / "journal.jsonl")
    return paths


def test_merged_shards_are_the_whole_run(project: Project) -> None:
    whole = project.run(impl="Wrong").journal
    paths = shards(project, 2, "--dsv4-durations", "dsv4-results/journal.jsonl")
    read = [read_journal(path) for path in paths]
    assert sorted(len(journal.header.plan) for journal in read) == [3, 4]
    assert all(j.footer is not None and not j.footer.qualifies and "shard " in j.footer.verdict for j in read)
    merged = merge(paths)
    assert merged.footer is not None and whole.footer is not None
    assert merged.header.plan_hash == whole.header.plan_hash
    assert merged.footer.results_hash == whole.footer.results_hash
    assert merged.footer.verdict == whole.footer.verdict and merged.footer.exit_code == 1
    assert [source.shard for source in merged.header.merged] == [1, 2]
    written = write(merged, project.folder / "merged")
    assert read_journal(written) == merged


def test_right_shards_qualify_together_and_a_missing_one_is_a_gap(project: Project) -> None:
    paths = shards(project, 2, impl="Good")
    both = merge(paths)
    assert both.footer is not None and both.footer.qualifies
    one = merge(paths[:1])
    assert one.footer is not None and not one.footer.qualifies and one.footer.exit_code == 1
    missing = [result for result in one.results if result.status is Status.NOT_RUN]
    assert len(one.results) == 7 and len(missing) == 7 - len(read_journal(paths[0]).results)
    assert {result.reason for result in missing} == {"None of the merged journals has a result of this case."}
    # A pass that nothing was measured for does not get into a merged journal.
    lines = [json.loads(line) for line in paths[1].read_text().splitlines()]
    next(line for line in lines if line.get("status") == "PASS")["record"] = {}
    paths[1].write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(BadInput, match=r"contradicts itself: .* passed without a record"):
        merge(paths)


def test_shard_that_was_killed_leaves_gaps(project: Project) -> None:
    paths = shards(project, 2, impl="Good")
    paths[1].write_text("".join(paths[1].read_text().splitlines(keepends=True)[:2]))
    merged = merge(paths)
    assert merged.footer is not None and merged.footer.exit_code == 1
    assert [r.status for r in merged.results].count(Status.NOT_RUN) == len(read_journal(paths[1]).header.plan) - 1


def changed(path: Path, **values: Any) -> Path:
    lines = path.read_text().splitlines(keepends=True)
    header = json.loads(lines[0])
    for name, value in values.items():
        place, _, inner = name.partition("__")
        if inner:
            header[place][inner] = value
        else:
            header[place] = value
    path.write_text("".join([json.dumps(header) + "\n", *lines[1:]]))
    return path


def test_what_does_not_fit_is_refused_by_name(project: Project) -> None:
    one, two = shards(project, 2, impl="Good")
    with pytest.raises(BadInput, match="are both of the run"):
        merge([one, one])
    environment = read_journal(one).header.environment
    commit, packages = environment.commit, environment.packages
    for change, sentence in (
        ({"seed": 5}, r"differs in seed \(5 there, 0 here\)"),
        ({"seed": 0, "environment__commit": "abc"}, "differs in commit of dsv4-conformance"),
        # An installed package tells its version twice: a merge compares journals that do not contradict themselves.
        (
            {"environment__commit": commit, "version": "9", "environment__packages": {**packages, PACKAGE: "9"}},
            "differs in version of dsv4-conformance",
        ),
    ):
        changed(two, **change)
        with pytest.raises(BadInput, match=sentence):
            merge([one, two])


def test_shard_twice_and_case_twice_are_refused(project: Project) -> None:
    one = shards(project, 2, impl="Good")[0]
    project.run("--dsv4-results", "again", "--dsv4-shard", "1/2")
    path = project.folder / "again/journal.jsonl"
    with pytest.raises(BadInput, match="are both of the shard 1"):
        merge([one, path])
    project.run("--dsv4-results", "a")
    with pytest.raises(BadInput, match="is of no shard"):
        merge([project.folder / "a/journal.jsonl"])
    two = project.folder / "shard2/journal.jsonl"
    lines = two.read_text().splitlines(keepends=True)
    taken = next(line for line in one.read_text().splitlines(keepends=True) if '"kind":"result"' in line)
    two.write_text("".join([*lines[:-1], taken]))
    with pytest.raises(BadInput, match="both have a result of INV-0"):
        merge([one, two])


def test_shard_can_be_resumed_and_other_shards_are_refused(project: Project) -> None:
    path = shards(project, 2)[0]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))
    words = ("--dsv4-resume", "--dsv4-results", "shard1", "--dsv4-shard")
    assert "differs in shard" in project.run(*words, "2/2", impl="Wrong").out
    assert "differs in number of shards" in project.run(*words, "1/3", impl="Wrong").out
    project.run(*words, "1/2", impl="Wrong")
    assert len(read_journal(path).results) == len(read_journal(path).header.plan)


@pytest.mark.parametrize("words", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_shard_that_is_none(project: Project, words: str) -> None:
    ran = project.run("--dsv4-shard", words)
    assert ran.code == 2 and "is no part of a whole" in ran.err
