"""One call, its keys dumped in every accepted form: the same verdict, and the same slot named."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dsv4_conformance.judge.dump import Dump, load
from dsv4_conformance.judge.explaining import explain
from dsv4_conformance.judge.judging import judge
from dsv4_conformance.oracle.kv_format import unpack
from tests.judge.dumps import Tensors, decode_call, inputs, mistaken, write

NAMES = ("window", "extra")


def sizes(tensors: Tensors) -> dict[str, int]:
    return {name: int(tensors[f"{name}_page_size"]) for name in NAMES}


def as_they_are(tensors: Tensors) -> None:
    pass


def with_tails(tensors: Tensors) -> None:
    for name, size in sizes(tensors).items():
        pages = tensors[f"{name}_pages"]
        tail = -(-584 * size // 576) * 576 - 584 * size
        tensors[f"{name}_pages"] = torch.cat((pages, torch.full((len(pages), tail), 255, dtype=torch.uint8)), 1)


def as_kernel_view(tensors: Tensors) -> None:
    for name, size in sizes(tensors).items():
        tensors[f"{name}_pages"] = tensors[f"{name}_pages"].view(-1, size, 1, 584)
        del tensors[f"{name}_page_size"]


def as_fp8(tensors: Tensors) -> None:
    for name in NAMES:
        tensors[f"{name}_pages"] = tensors[f"{name}_pages"].view(torch.float8_e4m3fn)


def as_int8(tensors: Tensors) -> None:
    for name in NAMES:
        tensors[f"{name}_pages"] = tensors[f"{name}_pages"].view(torch.int8)


def only_used_pages(tensors: Tensors) -> None:
    """In descending order, so that order must not matter."""
    for name, size in sizes(tensors).items():
        pages, indices = tensors[f"{name}_pages"], tensors[f"{name}_indices"]
        used = torch.unique(indices[(indices >= 0) & (indices < len(pages) * size)] // size).flip(0)
        tensors |= {f"{name}_pages": pages[used], f"{name}_page_ids": used}
    assert len(tensors["window_pages"]) < int(tensors["window_page_ids"].max()) + 1


def as_rows(tensors: Tensors) -> None:
    for name, size in sizes(tensors).items():
        pages = tensors.pop(f"{name}_pages").view(-1, size, 1, 584)
        tensors[f"{name}_kv"] = unpack(pages, torch.arange(len(pages) * size))
        del tensors[f"{name}_page_size"]


FORMS = [as_they_are, with_tails, as_kernel_view, as_fp8, as_int8, only_used_pages, as_rows]


def key_named(dump: Dump) -> tuple[str, int | None, int]:
    found = judge(dump)
    key = explain(dump, int(found.rows[found.worst_row()]), found.heads).key
    assert key is not None
    assert key.explains
    return key.scope, key.place, key.slot


@pytest.mark.parametrize("form", FORMS)
def test_forms_agree(form: Callable[[Tensors], None], tmp_path: Path) -> None:
    call = decode_call()
    tensors = mistaken(call, "key_dropped")
    plain = load(write(tmp_path, dict(tensors)))
    expected, named = judge(plain), key_named(plain)
    form(tensors)
    dump = load(write(tmp_path, tensors))
    found = judge(dump)
    assert {name: ratio.tolist() for name, ratio in found.ratio.items()} == {
        name: ratio.tolist() for name, ratio in expected.ratio.items()
    }
    assert key_named(dump) == named


def test_slots_of_pages_that_are_absent_hold_nan(tmp_path: Path) -> None:
    tensors = inputs(decode_call())
    tensors |= {"out": tensors["q"].clone(), "window_page_ids": torch.arange(len(tensors["window_pages"])) + 1}
    tensors["window_indices"][tensors["window_indices"] >= 0] += 64
    store = load(write(tmp_path, tensors)).stores[0]
    assert store.fetch(torch.tensor([0, 63])).isnan().all()
    assert torch.equal(store.fetch(torch.tensor([64 + 5])), load_first(tensors, 5))
    assert store.holds(torch.tensor([-1, 0, 63, 64, store.slots - 1, store.slots])).tolist() == [
        False, False, False, True, True, False,
    ]  # fmt: skip


def load_first(tensors: Tensors, token: int) -> torch.Tensor:
    """Dequantised token of the first page, from its bytes by hand: e4m3 * 2^(byte - 127), then bf16."""
    page = tensors["window_pages"][0]
    codes = page[576 * token : 576 * token + 448].view(torch.float8_e4m3fn).double()
    scales = page[576 * 64 + 8 * token : 576 * 64 + 8 * token + 7].double()
    nope = codes * torch.exp2(scales - 127).repeat_interleave(64)
    rope = page[576 * token + 448 : 576 * token + 576].view(torch.bfloat16)
    return torch.cat((nope.bfloat16(), rope))[None]
