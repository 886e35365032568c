"""The recorded goldens: what the arithmetic gives today, what the oracle and the built-in implementation give, too.

Mutants that fail here: a byte of any golden edited; a constant of the generator, of the oracle or of an error budget
changed; an edge dropped from the set of cases; a changelog line removed.
"""

import ast
import json
import sys
from pathlib import Path

import pytest
import torch

from dsv4_conformance.cases.problem import problem_of, rows_first
from dsv4_conformance.golden import changelog, manifest
from dsv4_conformance.golden.cases import GOLDENS
from dsv4_conformance.golden.tensors import problems
from dsv4_conformance.implementations.api import DecodeCall
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.numerics.compare import compare_all
from dsv4_conformance.numerics.truth import truth_of
from dsv4_conformance.oracle import kv_format as oracle_format
from dsv4_conformance.resources import golden_dir

from .recorded import Tensors, call_of, kernel_view, paths, read

ATTENTION = [path for surface in ("SparseDecode", "SparsePrefill") for path in paths(surface)]
OUTPUTS = ("out", "lse", "max_logits")


def name(path: Path) -> str:
    return path.stem


def test_goldens_are_computed_anew_byte_for_byte() -> None:
    assert problems(golden_dir()) == []


def test_every_hash_is_the_newest_of_an_unbroken_history() -> None:
    text = changelog.read(golden_dir())
    history = changelog.history(text)
    for path, entry in manifest.load(golden_dir()).files.items():
        assert history[path][0][1] == entry.sha256[:12]
        old = [before for before, _ in history[path]]
        assert old == [after for _, after in history[path][1:]] + ["new"]


def test_goldens_stay_small() -> None:
    assert sum(path.stat().st_size for path in golden_dir().rglob("*") if path.is_file()) < 2_000_000


def test_every_kernel_surface_has_goldens() -> None:
    assert {golden.surface for golden in GOLDENS} == {
        *("SparseDecode", "SparsePrefill", "KVPageFormat", "IndexKeyFormat", "SlotMapping", "HeadLayout")
    }


@pytest.mark.parametrize("path", ATTENTION, ids=name)
def test_oracle_is_the_golden_to_float64(path: Path) -> None:
    stored = read(path)
    truth = truth_of(problem_of(call_of(stored)))
    for output in OUTPUTS:
        torch.testing.assert_close(getattr(truth.answer, output), stored[f"expected_{output}"], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("path", ATTENTION, ids=name)
def test_budgets_are_those_of_the_suites(path: Path) -> None:
    # The suites' reference rounds its float32 sums: now and then one P falls into another bf16, which moves a budget.
    stored = read(path)
    budgets = truth_of(problem_of(call_of(stored))).budgets
    for output, room in (("out", 0.25), ("lse", 1e-6), ("max_logits", 1e-6)):
        torch.testing.assert_close(getattr(budgets, output), stored[f"budget_{output}"], rtol=room, atol=0.0)
    same = (budgets.out - stored["budget_out"]).abs() <= 1e-9 * stored["budget_out"]
    assert same.to(torch.float64).mean() > 0.8


@pytest.mark.parametrize("path", ATTENTION, ids=name)
def test_builtin_is_within_the_golden_budgets(path: Path) -> None:
    stored, builtin = read(path), Builtin("cpu")
    call = call_of(stored)
    if isinstance(call, DecodeCall):
        out, lse = builtin.decode(call)
        got = {"out": out.flatten(0, 1), "lse": rows_first(call, lse)}
    else:
        out, top, lse = builtin.prefill(call)
        assert top is not None
        got = {"out": out, "lse": lse, "max_logits": top}
    verdicts = compare_all([(n, x, stored[f"expected_{n}"], stored[f"budget_{n}"]) for n, x in got.items()])
    assert [verdict.sentence() for verdict in verdicts if not verdict.passed] == []


@pytest.mark.parametrize("path", paths("KVPageFormat"), ids=name)
def test_pages_are_those_of_oracle_and_builtin(path: Path) -> None:
    stored, size = read(path), int(read(path)["page_size"])
    for floor in ("amax_1e-4", "scale_1e-4", "amax_1e-8"):
        written = stored["pages"].clone()
        oracle_format.pack(stored["tokens"], stored["slots"], kernel_view(written, size), floor)
        assert torch.equal(written, stored.get(f"expected_pages_{floor}", stored["expected_pages"])), floor
    written = stored["pages"].clone()
    Builtin("cpu").pack(stored["tokens"], stored["slots"], kernel_view(written, size))
    assert torch.equal(written, stored["expected_pages"])
    pages = kernel_view(stored["expected_pages"], size)
    for rows in (
        oracle_format.unpack(pages, stored["unpack_slots"]),
        Builtin("cpu").unpack(pages, stored["unpack_slots"]),
    ):
        assert torch.equal(rows.to(torch.float64), stored["expected_values"])


@pytest.mark.parametrize("path", paths("IndexKeyFormat"), ids=name)
def test_index_keys_are_those_of_oracle_and_builtin(path: Path) -> None:
    stored = read(path)
    want, page, row = stored["expected_pages"], stored["slots"] // 64, stored["slots"] % 64
    codes, scales = oracle_format.quantise_index_keys(stored["keys"])
    assert torch.equal(want[:, :8192].view(-1, 64, 128)[page, row], codes)
    assert torch.equal(want[:, 8192:].contiguous().view(torch.float32)[page, row], scales)
    written = stored["pages"].clone()
    Builtin("cpu").pack_index_keys(stored["keys"], stored["slots"], written)
    assert torch.equal(written, want)
    got = Builtin("cpu").unpack_index_keys(want, stored["slots"]).to(torch.float64)
    torch.testing.assert_close(got, stored["expected_values"], rtol=2.0**-24, atol=0.0)


def test_compressed_slots_are_those_of_oracle_and_builtin() -> None:
    (path,) = paths("SlotMapping")
    stored = read(path)
    for ratio in (4, 128):
        entries, want = stored[f"entries_{ratio}"], stored[f"expected_slots_{ratio}"]
        assert torch.equal(oracle_format.compressed_slot(stored["page_table"], entries, ratio), want)
        assert torch.equal(Builtin("cpu").compressed_slots(stored["page_table"], entries, ratio), want)
        assert bool((want == -1).any())


def test_head_layouts_are_those_of_the_builtin() -> None:
    (path,) = paths("HeadLayout")
    table = {n: t.tolist() for n, t in read(path).items()}
    builtin = Builtin("cpu")
    for place, (n_heads, tp, rank) in enumerate(zip(table["n_heads"], table["tp"], table["rank"], strict=True)):
        padded, first, local = (table[f"expected_{n}"][place] for n in ("padded_heads", "first_head", "local_heads"))
        assert builtin.padded_heads(n_heads, tp) == padded
        sink = torch.arange(n_heads, dtype=torch.float32) + 1
        mine = builtin.local_sink(sink, rank, tp)
        assert mine.shape == (padded,)
        assert torch.equal(mine[:local], sink[first : first + local])
        assert local * tp == n_heads


def listed(stored: Tensors, prefix: str) -> tuple[list[list[int]], set[int]]:
    """Entries inside the lengths, row by row, and the set of those beyond."""
    lists = stored[f"{prefix}indices"].flatten(0, -2).tolist()
    cut = list(zip(lists, stored[f"{prefix}topk_length"].tolist(), strict=True))
    return [row[:n] for row, n in cut], {entry for row, n in cut for entry in row[n:]}


def test_decode_lists_hold_every_edge() -> None:
    stored = read(golden_dir() / "tensors/decode-lists.safetensors")
    for prefix in ("window_", "extra_"):
        inside, beyond = listed(stored, prefix)
        keys = [[entry for entry in row if entry != -1] for row in inside]
        assert any(-1 in row for row in inside)
        assert any(len(set(row)) < len(row) for row in keys)
        assert {2**31 - 1, -(2**31)} <= beyond
        assert inside[-1] == []
        assert 0 < len(inside[0]) < 8 <= len(inside[1])
    assert {-torch.inf, torch.inf} < set(stored["sink"].tolist())
    assert bool(stored["expected_lse"][-1].isposinf().all())
    assert float(stored["expected_out"][-1].abs().max()) == 0.0


def test_prefill_lists_hold_every_edge() -> None:
    stored = read(golden_dir() / "tensors/prefill-lists.safetensors")
    rows = len(stored["kv"])
    inside, beyond = listed(stored, "")
    holes = {entry for row in inside for entry in row if not 0 <= entry < rows}
    assert holes == {-1, -(2**31), -123456, rows, rows + 5, 2**31 - 1}
    assert {2**31 - 1, -(2**31), rows} <= beyond
    keys = [[entry for entry in row if 0 <= entry < rows] for row in inside]
    assert any(len(set(row)) < len(row) for row in keys)
    assert inside[-1] == []
    assert bool(stored["expected_max_logits"][-1].isneginf().all())
    assert bool(stored["kv"].isnan().any())


@pytest.mark.parametrize("file", ["decode-needle", "prefill-needle"])
def test_one_key_dominates_a_needle(file: str) -> None:
    stored = read(golden_dir() / f"tensors/{file}.safetensors")
    assert not [key for key in stored if key.endswith("topk_length")]
    assert float((stored["expected_lse"] - stored["expected_max_logits"]).max()) < 0.01
    assert float(stored["scale"]) == 2 * 512**-0.5


def test_marker_has_an_empty_extra_scope_and_edge_codes_reach_both_ends() -> None:
    marker, edge = (read(golden_dir() / f"tensors/decode-{name}.safetensors") for name in ("marker", "edge-codes"))
    assert marker["extra_topk_length"].tolist() == [0]
    assert "sink" not in edge
    inside, _ = listed(edge, "window_")
    slots = torch.tensor([entry for row in inside for entry in row if entry != -1])
    data, scales = oracle_format.page_views(kernel_view(edge["window_pages"], 64))
    assert {0x00, 0x02, 0x06, 0x08, 0x7E} <= set((data[slots // 64, slots % 64, :448] & 0x7F).flatten().tolist())
    assert 105 in scales[slots // 64, slots % 64, :7]


def test_sinks_are_not_near_a_rounding_of_their_generator() -> None:
    # draw_sink rounds a float64 lse to 1/16: another machine's last bits must not reach the inputs.
    for path in ATTENTION:
        lse = read(path)["expected_lse"][0]
        assert float(((lse * 16) % 1 - 0.5).abs().min()) > 1e-9, path.name


def test_files_align_their_tensors() -> None:
    for path in sorted((golden_dir() / "tensors").iterdir()):
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        header.pop("__metadata__")
        width = {"U8": 1, "BF16": 2, "I32": 4, "F32": 4, "I64": 8, "F64": 8}
        assert not [n for n, t in header.items() if (8 + size + t["data_offsets"][0]) % width[t["dtype"]]], path.name


def test_exact_arithmetic_shares_nothing_with_the_oracle() -> None:
    import dsv4_conformance.golden.exact as room

    allowed = {"dsv4_conformance.spec.kv_layout", "dsv4_conformance.errors"}
    (folder,) = room.__path__
    for path in Path(folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for found in names:
                own = found.startswith("dsv4_conformance.golden.exact.")
                assert own or found in allowed or found.split(".")[0] in sys.stdlib_module_names, (path.name, found)
