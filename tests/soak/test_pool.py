"""Workers that end where no case can be blamed."""

from pathlib import Path

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.soak import pool
from dsv4_conformance.soak.files import Log, Plan
from dsv4_conformance.soak.worker import Setup
from tests.soak import ending


def made(tmp_path: Path, cases: int) -> tuple[pool.Pool, Log]:
    """A pool of one worker."""
    log = Log(tmp_path / "soak", Plan("impl", "1", 0, "cpu", "small"), resume=False)
    setup = Setup(str(tmp_path / "flag"), "cpu", "small", 0, (), None)
    return pool.Pool([setup], log, pool.Limits(cases), lambda: None), log


# Kills: a chunk tried again for ever, or lost without a word, or a soak that one such end ends.
def test_cases_whose_process_ended_before_they_began_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "work", ending.once)
    runs, log = made(tmp_path, 2 * pool.CHUNK)
    runs.run()
    assert dict(log.progress.statuses) == {"NOT_RUN": pool.CHUNK, "PASS": 2 * pool.CHUNK}
    assert sorted(log.progress.chunks) == [0, 1, 2]


# Kills: a soak that makes new processes for hours.
def test_processes_that_always_end_so_end_the_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "work", ending.always)
    runs, log = made(tmp_path, 20_000)
    with pytest.raises(BadInput, match=r"3 workers of the soak ended one after another .*\(exit code 9\)"):
        runs.run()
    assert log.progress.statuses["NOT_RUN"] == 3 * pool.CHUNK


# Kills: failures that are lost because a process in place of another does not start.
def test_processes_that_cannot_be_replaced_end_the_soak_with_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "work", ending.never_again)
    runs, log = made(tmp_path, 20_000)
    with pytest.raises(BadInput, match=r"3 workers of the soak ended one after another .*\(exit code 3\)"):
        runs.run()
    assert log.progress.statuses["CRASH"] == 1 and log.progress.files
