"""One installed release of SGLang under the suites; run by `tox run -e sglang-0.5.23`, or for another release.

What is wrong in which release is docs/findings.md's, and a test here that fails once that changes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from dsv4_conformance.cases.state_case import ChunkCase
from dsv4_conformance.cases.state_inputs import chunk_inputs
from dsv4_conformance.implementations import sglang_release
from dsv4_conformance.implementations.sglang import SGLang
from dsv4_conformance.implementations.state_api import StepBatch

ROOT = Path(__file__).resolve().parents[2]
RELEASES = (
    *("0.5.13.post1", "0.5.14", "0.5.15.post1", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22"),
    "0.5.23",
)
FINDINGS = (
    ("INV-52", "WARN", "0.5.13.post1", "0.5.13.post1"),
    ("INV-54", "FAIL", "0.5.14", "0.5.22"),
    ("INV-73", "FAIL", "0.5.13.post1", "0.5.20"),
    ("INV-74", "WARN", "0.5.13.post1", "0.5.14"),
    ("INV-74", "FAIL", "0.5.13.post1", "0.5.14"),
    ("INV-75", "FAIL", "0.5.13.post1", "0.5.14"),
    ("INV-78", "FAIL", "0.5.13.post1", "0.5.14"),
    ("INV-82", "FAIL", "0.5.13.post1", "0.5.14"),
    ("INV-117", "WARN", "0.5.13.post1", "0.5.14"),
    ("INV-154", "FAIL", "0.5.13.post1", "0.5.23"),
)
"""Requirement, status, first and last release: all that is neither PASS nor not applicable in profile interpreted."""
HERE = sglang_release.version()


def between(first: str, last: str) -> bool:
    """Whether the installed release is one of these."""
    return RELEASES.index(first) <= RELEASES.index(HERE) <= RELEASES.index(last)


def test_the_suites_say_what_the_findings_say(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dsv4_conformance.cli", "run", "--impl", "sglang", "--profile", "interpreted"]
    command += ["-n", "2", "--results", str(tmp_path)]
    # Workers of the run that this test is part of have no say in its own.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    entries = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    found = {(e["requirement"], e["status"]) for e in entries if e["kind"] == "result"}
    others = {"PASS", "NOT_APPLICABLE"}
    right = {(name, status) for name, status, first, last in FINDINGS if between(first, last)}
    assert {pair for pair in found if pair[1] not in others} == right, done.stdout[-3000:]
    passed = {requirement for requirement, status in found if status == "PASS"}
    assert passed >= {f"INV-{number:02}" for number in (*range(1, 20), 51, 53, 55, 60, 61, 62, 63, 79, 116)}


def test_heads_are_padded_as_the_release_pads_them() -> None:
    adapter = SGLang("cpu")
    wide = between("0.5.13.post1", "0.5.13.post1")
    assert adapter.padded_heads(128, 4) == (128 if wide else 64)
    assert adapter.padded_heads(64, 1) == 64 and adapter.padded_heads(256, 2) == 256


# Kills: an adapter that answers from the checkpoint's sinks, or that refreshes what the engine does not.
def test_sinks_after_a_weight_update_are_what_the_release_makes_of_them() -> None:
    adapter, sink = SGLang("cpu"), torch.arange(128, dtype=torch.float32)
    before = adapter.local_sink(sink, 1, 4)
    sink += 500
    adapter.refresh_sink(sink, 1, 4)
    after = adapter.local_sink(sink, 1, 4)
    first = 32 if between("0.5.13.post1", "0.5.13.post1") else 0
    stale = between("0.5.14", "0.5.22")
    assert float(after[first]) == (32 if stale else 532) and after.data_ptr() == before.data_ptr()


def test_gathers_are_as_large_as_the_release_makes_them() -> None:
    """Requests of 300 and 17 tokens under a table of 64 pages."""
    case = ChunkCase("SparsePrefillChunkCache", (300, 17), (44, 17), spare_pages=62)
    given = chunk_inputs(case, torch.device("cpu"))
    cache: Any = SGLang("cpu").open_chunk_cache(given.batch)
    cache.ensure_c4(given.page_table)
    cache.ensure_c128(given.c128_slots)
    wide, ragged = between("0.5.13.post1", "0.5.14"), between("0.5.22", "0.5.23")
    assert len(cache.token_ids(4)) == (8192 if wide else 75 + 4 if ragged else 150)
    assert len(cache.token_ids(128)) == (256 if wide else 4)


def test_a_replay_drops_the_chunk_cache_where_the_release_does() -> None:
    table = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
    adapter = SGLang("cpu")
    held, other = (adapter.build_metadata(StepBatch(lens, table, 512)) for lens in ((300, 5), (128, 129)))
    held.attach_chunk_cache("of the step before")
    held.refresh_(other)
    assert held.chunk_cache() == ("of the step before" if between("0.5.13.post1", "0.5.14") else None)
    held.attach_chunk_cache("of the step before")
    held.copy_(other)
    assert held.chunk_cache() is None
