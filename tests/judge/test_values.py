"""Where no answer is defined, the judge says so and names the place, and judges the other rows if asked to."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dsv4_conformance.oracle.kv_format import page_views
from tests.judge.command import refusal, run_judge
from tests.judge.dumps import Tensors, decode_call, prefill_call, right, write


def slot_of(tensors: Tensors, row: int, place: int) -> int:
    return int(tensors["window_indices"].flatten(0, 1)[row, place])


def spoil_scale(tensors: Tensors) -> None:
    """Scale byte 255 in the first key of row 2's window list."""
    slot = slot_of(tensors, 2, 0)
    view = tensors["window_pages"].view(-1, 64, 1, 584)
    page_views(view)[1][slot // 64, slot % 64, 3] = 255


def at(name: str, where: tuple[int, ...], value: float) -> Callable[[Tensors], object]:
    def change(tensors: Tensors) -> None:
        tensors[name][where] = value

    return change


UNDEFINED: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "index outside": (at("window_indices", (1, 1, 0), 10**6), "slot 1000000 (page 15625, token 0) at row 3"),
    "negative index": (at("window_indices", (0, 0, 0), -7), "window_indices names slot -7"),
    "length too long": (at("window_topk_length", (1,), 129), "window_topk_length is 129 at row 2 (b 1, query 0)"),
    "negative length": (at("extra_topk_length", (0,), -1), "extra_topk_length is -1 at row 0 (b 0, query 0)"),
    "NaN in a key": (spoil_scale, "of the window holds NaN or infinity, and window_indices names it"),
    "NaN in q": (at("q", (1, 0, 5, 7), torch.nan), "q holds NaN or infinity at row 2 (b 1, query 0), head 5"),
    "infinity in q": (at("q", (1, 0, 5, 7), torch.inf), "q holds NaN or infinity"),
    "NaN sink": (at("sink", (6,), torch.nan), "sink holds NaN at head 6"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNDEFINED)
def test_undefined_answer(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, sentence = UNDEFINED[name]
    tensors = right(decode_call())
    change(tensors)
    assert sentence in refusal(capsys, write(tmp_path, tensors))


def test_nan_key_is_named_by_slot_row_and_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = right(decode_call())
    slot = slot_of(tensors, 2, 0)
    spoil_scale(tensors)
    told = refusal(capsys, write(tmp_path, tensors))
    assert f"the key in slot {slot} (page {slot // 64}, token {slot % 64})" in told


def test_other_rows_can_be_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = right(decode_call())
    tensors["q"][1, 0, 5, 7] = torch.nan
    path = write(tmp_path, tensors)
    assert run_judge(capsys, path, "--row", "0-1", "--row", "3-5").code == 0
    refusal(capsys, path, "--row", "2")


@pytest.mark.parametrize("name", ["index outside", "length too long", "NaN in a key", "NaN in q"])
def test_row_is_named_by_its_place_in_the_dump(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, _ = UNDEFINED[name]
    tensors = right(decode_call())
    change(tensors)
    row = 3 if name == "index outside" else 2
    assert f"row {row} (b 1, query {row % 2})" in refusal(capsys, write(tmp_path, tensors), "--row", f"{row}-5")


def test_anything_may_stand_beyond_the_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = right(decode_call())
    lengths = tensors["window_topk_length"]
    for b, length in enumerate(lengths.tolist()):
        tensors["window_indices"][b, :, length:] = 2**31 - 1
    assert run_judge(capsys, write(tmp_path, tensors)).code == 0


@pytest.mark.parametrize("value", [-1, -(2**31), 160, 2**31 - 1])
def test_prefill_indices_outside_are_holes(value: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """160 is s_kv."""
    tensors = right(prefill_call())
    assert len(tensors["kv"]) == 160
    indices = tensors["indices"]
    indices[(indices < 0) | (indices >= 160)] = value
    assert run_judge(capsys, write(tmp_path, tensors)).code == 0


def test_page_that_was_not_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = right(decode_call())
    page = slot_of(tensors, 0, 0) // 64
    kept = torch.tensor([p for p in range(len(tensors["window_pages"])) if p != page])
    tensors |= {"window_pages": tensors["window_pages"][kept], "window_page_ids": kept}
    told = refusal(capsys, write(tmp_path, tensors))
    assert f"(page {page}, token" in told
    assert "that page is not among" in told
