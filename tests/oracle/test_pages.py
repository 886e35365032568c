"""Where the bytes of a page stand, with offsets computed here from the byte table; slots of compressed entries."""

import struct

import pytest
import torch

from dsv4_conformance.oracle.kv_format import compressed_slot, pack, page_views, unpack

PAGES = 3


def make(page_size: int, start: int, slack: int = 0) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Random bytes, the kernel view of PAGES pages that begins ``start`` bytes into them, and the page stride."""
    stride = -(-584 * page_size // 576) * 576 + slack
    generator = torch.Generator().manual_seed(page_size + start)
    size = start + (PAGES - 1) * stride + 584 * page_size  # ends with the last scale row: no byte to spare
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    return raw, raw.as_strided((PAGES, page_size, 1, 584), (stride, 584, 584, 1), start), stride


def e4m3(code: int) -> float:
    if code & 127 == 127:
        return float("nan")
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = mantissa / 8 * 2**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -value if code & 128 else value


def row_at(raw: list[int], base: int, page_size: int, i: int) -> list[float]:
    data = raw[base + 576 * i : base + 576 * i + 576]
    scales = raw[base + 576 * page_size + 8 * i : base + 576 * page_size + 8 * i + 7]
    nope = [e4m3(data[d]) * 2.0 ** (scales[d // 64] - 127) for d in range(448)]
    return nope + [struct.unpack("<f", bytes([0, 0, *data[d : d + 2]]))[0] for d in range(448, 576, 2)]


# Kills: scales beside their token, a page stride of 584 P, a storage offset that is ignored, rope bytes swapped,
# either of the two ways of reading (aligned tables, and the plain one for strides that are no multiple of 576).
@pytest.mark.parametrize("page_size", [1, 2, 53, 64])
@pytest.mark.parametrize(("start", "slack"), [(0, 0), (576 * 4, 0), (6, 0), (576, 16)])
def test_unpack_reads_the_bytes_of_the_table(page_size: int, start: int, slack: int) -> None:
    raw, pages, stride = make(page_size, start, slack)
    for page in range(PAGES):  # scales that writers produce, so that bf16 holds every product
        at = start + page * stride + 576 * page_size
        raw[at : at + 8 * page_size] = 92 + raw[at : at + 8 * page_size] % 80
    slots = torch.tensor([[0, page_size - 1], [3 * page_size - 1, page_size], [2 * page_size, page_size]])
    got = unpack(pages, slots)
    assert got.shape == (3, 2, 512) and got.dtype == torch.bfloat16
    listed = raw.tolist()
    for place, slot in zip(got.flatten(0, 1).float().tolist(), slots.flatten().tolist(), strict=True):
        page, i = divmod(slot, page_size)
        want = row_at(listed, start + page * stride, page_size, i)
        assert all(g == w or (g != g and w != w) for g, w in zip(place, want, strict=True))


# Kills: views over the kernel view's 584-byte rows instead of the two tables behind it.
@pytest.mark.parametrize("page_size", [2, 64])
def test_views_are_data_rows_then_scale_rows(page_size: int) -> None:
    raw, pages, stride = make(page_size, 576)
    data, scales = page_views(pages)
    assert data.shape == (PAGES, page_size, 576) and scales.shape == (PAGES, page_size, 8)
    for page, i, byte in ((0, 0, 0), (1, page_size - 1, 575), (2, 1, 448)):
        assert data[page, i, byte] == raw[576 + page * stride + 576 * i + byte]
    for page, i, byte in ((0, 0, 0), (1, page_size - 1, 6), (2, 1, 7)):
        assert scales[page, i, byte] == raw[576 + page * stride + 576 * page_size + 8 * i + byte]


# Kills: the pad byte or a neighbour written, slot -1 as the last slot, tokens and slots that lose their pairing.
@pytest.mark.parametrize("page_size", [2, 53, 64])
def test_pack_touches_576_data_and_7_scale_bytes_of_each_slot(page_size: int) -> None:
    raw, pages, stride = make(page_size, 576)
    before = raw.clone()
    tokens = torch.randn(4, 512, generator=torch.Generator().manual_seed(8)).to(torch.bfloat16)
    slots = torch.tensor([2 * page_size, -1, page_size - 1, page_size])
    pack(tokens, slots, pages)
    free = torch.ones_like(raw, dtype=torch.bool)
    listed = raw.tolist()
    for token, slot in zip(tokens, slots.tolist(), strict=True):
        if slot < 0:
            continue
        page, i = divmod(slot, page_size)
        base = 576 + page * stride
        free[base + 576 * i : base + 576 * i + 576] = False
        free[base + 576 * page_size + 8 * i : base + 576 * page_size + 8 * i + 7] = False
        row = torch.tensor(row_at(listed, base, page_size, i))
        assert torch.equal(row[448:], token[448:].float())
        assert ((row[:448] - token[:448].float()).abs() <= token[:448].float().abs() / 16 + 2**-13).all()
        assert not torch.equal(row[:448], token[:448].float())  # fp8, not bf16, was stored
    assert torch.equal(raw[free], before[free])


# Kills: ratio 4 with 2 entries a page, page numbers not taken from the table, -1 mapped to a slot, 32-bit overflow.
def test_compressed_slots_by_hand() -> None:
    tables = torch.tensor([[7, 3, 9], [1, 40_000_000, 2]], dtype=torch.int32)
    entries = torch.tensor([[0, 63, 64, -1, 130], [64, 127, -1, 0, 191]])
    got = compressed_slot(tables, entries, 4)
    assert got.tolist() == [[448, 511, 192, -1, 578], [2_560_000_000, 2_560_000_063, -1, 64, 191]]
    got = compressed_slot(tables, torch.tensor([[0, 1, 2, 5, -1], [2, 3, 4, -1, 1]]), 128)
    assert got.tolist() == [[14, 15, 6, 19, -1], [80_000_000, 80_000_001, 4, -1, 3]]
