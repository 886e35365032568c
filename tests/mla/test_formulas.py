"""Offsets are read off the views that kernels use."""

import pytest
import torch

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.formulas import evaluate
from dsv4_conformance.mla.kernels import kv_format
from dsv4_conformance.mla.pools import IndexKeyPool, KVPool


# Kills: a formula that is not what the code does: bytes written at a slot stand where the formula says.
@pytest.mark.parametrize("page_size", [2, 64, 61])
def test_offsets_are_where_rows_are_written(page_size: int) -> None:
    pool = KVPool(4, page_size, True, torch.bfloat16, "cpu")
    slot = 3 * page_size - 1
    before = pool.buffer.clone()
    pool.store(torch.full((1, 512), 3.0, dtype=torch.bfloat16), torch.tensor([slot]))
    changed = torch.nonzero((pool.buffer != before).flatten())[:, 0]
    (data,), (scale,) = evaluate("kv_data_byte", [(page_size, slot)]), evaluate("kv_scale_byte", [(page_size, slot)])
    assert int(changed[0]) == data and scale in changed.tolist() and int(changed[-1]) == scale + 6
    index = IndexKeyPool(4, True, "cpu")
    index.store(torch.full((1, 128), 3.0), torch.tensor([130]))
    changed = torch.nonzero(index.buffer.flatten())[:, 0]
    assert int(changed[0]) == evaluate("index_value_byte", [(130,)])[0]
    assert evaluate("index_scale_byte", [(130,)])[0] <= int(changed[-1]) < evaluate("index_scale_byte", [(130,)])[0] + 4


# Kills: an address computed in the type of the list, which is int32.
def test_places_are_wide() -> None:
    view = torch.empty(1 << 26, 64, 132, dtype=torch.uint8, device="meta")
    page, place = kv_format.place(torch.tensor([2**31 - 1], dtype=torch.int32), view)
    assert page.dtype == place.dtype == torch.int64
    assert evaluate("index_value_byte", [(2**31 - 1,)]) == [(2**25 - 1) * 64 * 132 + 63 * 128]


def test_what_no_list_can_name_is_refused() -> None:
    for name, point in (
        ("kv_data_byte", (64, 2**31)),
        ("window_slot", (2**23, 0)),
        ("compressed_slot", (4, 2**25, 0)),
        ("selected_slot", (2**25, 0)),
    ):
        with pytest.raises(BadInput, match="int32"):
            evaluate(name, [point])
    with pytest.raises(BadInput, match="no formula 'kv'"):
        evaluate("kv", [])
