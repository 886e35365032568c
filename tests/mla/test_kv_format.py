"""Cache bytes of the built-in implementation, checked one byte at a time against loops written here."""

import math
import struct
from itertools import pairwise

import pytest
import torch

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.kernels import kv_format

PAGES = 3


def make_pages(page_size: int, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A buffer of random bytes and the kernel view of PAGES pages that starts ``offset`` bytes into it."""
    page_bytes = -(-584 * page_size // 576) * 576
    generator = torch.Generator().manual_seed(page_size)
    buffer = torch.randint(0, 256, (PAGES * page_bytes + offset,), dtype=torch.uint8, generator=generator)
    return buffer, buffer.as_strided((PAGES, page_size, 1, 584), (page_bytes, 584, 584, 1), offset)


def make_tokens(count: int, seed: int = 0) -> torch.Tensor:
    """Tokens whose tiles differ in magnitude by powers of two, so that every tile has its own scale."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(count, 512, generator=generator)
    tokens[:, :448] *= torch.repeat_interleave(2.0 ** torch.arange(-4, 3), 64)
    return tokens.bfloat16()


def e4m3(code: int) -> float:
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    magnitude = math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10)
    return -magnitude if code & 128 else magnitude


MAGNITUDES = [e4m3(code) for code in range(127)]


def nearest_code(value: float) -> int:
    """Code nearest to a value within +-448; of two equally near ones the even code."""
    distances = [abs(abs(value) - magnitude) for magnitude in MAGNITUDES]
    best = min(range(127), key=lambda code: (distances[code], code & 1))
    return best | (128 if math.copysign(1.0, value) < 0 else 0)


def scale_byte(tile: list[float]) -> int:
    """Smallest e with 448 * 2^(e - 127) >= max(amax, 1e-4), found by trying."""
    floor = max(max(abs(value) for value in tile), 1e-4)
    return next(byte for byte in range(1, 255) if math.ldexp(448.0, byte - 127) >= floor)


def token_bytes(token: torch.Tensor) -> tuple[list[int], list[int]]:
    values = [float(value) for value in token]
    scales = [scale_byte(values[64 * k : 64 * k + 64]) for k in range(7)]
    codes = [nearest_code(math.ldexp(values[d], 127 - scales[d // 64])) for d in range(448)]
    rope = b"".join(struct.pack("<f", value)[2:] for value in values[448:])
    return codes + list(rope), scales


# Kills: scales beside their token, scale rows before data rows, a page stride of 584 P, the pad byte written.
@pytest.mark.parametrize("page_size", [2, 53, 64])
def test_pack_writes_the_token_s_data_and_seven_scale_bytes_and_nothing_else(page_size: int) -> None:
    buffer, pages = make_pages(page_size)
    expected = buffer.tolist()
    slots = [0, 2 * page_size + page_size - 1, page_size + 1]
    tokens = make_tokens(3)
    for slot, token in zip(slots, tokens, strict=True):
        page, i = divmod(slot, page_size)
        base = page * len(buffer) // PAGES
        data, scales = token_bytes(token)
        expected[base + 576 * i : base + 576 * i + 576] = data
        expected[base + 576 * page_size + 8 * i : base + 576 * page_size + 8 * i + 7] = scales
    kv_format.pack_pages(tokens, torch.tensor(slots), pages)
    assert buffer.tolist() == expected


# Kills: log2 in floating point, floor instead of ceil, a scale that is no power of two.
@pytest.mark.parametrize("power", [-21, -8, 0, 7, 100])
def test_scale_byte_steps_exactly_above_448_times_a_power_of_two(power: int) -> None:
    tokens = torch.zeros(3, 512, dtype=torch.bfloat16)
    tokens[0, 5] = 448 * 2.0**power
    tokens[1, 5] = -torch.nextafter(tokens[0, 5], torch.tensor(torch.inf, dtype=torch.bfloat16))
    tokens[2, 5] = torch.nextafter(tokens[0, 5], torch.tensor(0.0, dtype=torch.bfloat16))
    data, scales = kv_format.quantise(tokens)
    assert scales[:, 0].tolist() == [127 + power, 128 + power, 127 + power]
    assert [e4m3(int(code)) for code in data[:, 5]] == [448.0, -224.0, 448.0]


# Kills: the floors "scale_1e-4" (114) and "amax_1e-8" (92 for zeros), and a clamp applied after the power of two.
@pytest.mark.parametrize(("value", "byte"), [(0.0, 105), (1e-6, 105), (9e-5, 105), (1.05e-4, 105), (1.1e-4, 106)])
def test_small_tiles_stop_at_byte_105(value: float, byte: int) -> None:
    tokens = torch.zeros(1, 512, dtype=torch.bfloat16)
    tokens[0, 70] = value
    data, scales = kv_format.quantise(tokens)
    assert int(scales[0, 1]) == byte
    assert int(data[0, 70]) == nearest_code(math.ldexp(float(tokens[0, 70]), 127 - byte))


def test_a_tile_with_a_nan_or_infinity_reads_as_nan_and_its_neighbours_do_not() -> None:
    tokens = make_tokens(2)
    tokens[0, 3], tokens[1, 3] = torch.nan, torch.inf
    _, pages = make_pages(2)
    kv_format.pack_pages(tokens, torch.tensor([0, 1]), pages)
    rows = kv_format.unpack_slots(pages, torch.tensor([0, 1]))
    assert rows[:, :64].isnan().all()
    assert rows[:, 64:].isfinite().all()


# Kills: codes read as another dialect, the bias of the scale, sign or subnormals lost.
def test_unpack_reads_every_code_at_every_scale() -> None:
    _, pages = make_pages(64)
    data, scales = kv_format.page_views(pages)
    data[0, :, :256] = torch.arange(256, dtype=torch.uint8)
    bytes_of_slot = [3, 90, 105, 120, 127, 128, 140, 200, 245]
    for slot, byte in enumerate(bytes_of_slot):
        scales[0, slot] = byte
    rows = kv_format.unpack_slots(pages, torch.arange(len(bytes_of_slot)))
    for row, byte in zip(rows, bytes_of_slot, strict=True):
        for code in range(256):
            expected = math.ldexp(e4m3(code), byte - 127) if code & 127 != 127 else math.nan
            assert float(row[code]) == expected or (math.isnan(expected) and math.isnan(float(row[code])))


def test_rope_bits_survive_even_as_nan_payloads() -> None:
    bits = torch.randint(-(2**15), 2**15, (4, 64), dtype=torch.int16, generator=torch.Generator().manual_seed(1))
    bits[0, 0] = 0x7FA5
    tokens = torch.zeros(4, 512, dtype=torch.bfloat16)
    tokens[:, 448:] = bits.view(torch.bfloat16)
    _, pages = make_pages(2)
    kv_format.pack_pages(tokens, torch.arange(4), pages)
    assert torch.equal(kv_format.unpack_slots(pages, torch.arange(4))[:, 448:].view(torch.int16), bits)


@pytest.mark.parametrize("offset", [1, 4, 8, 24])
def test_pages_may_start_at_any_byte_of_a_buffer(offset: int) -> None:
    buffer, pages = make_pages(2, offset)
    before = buffer[:offset].clone()
    tokens = make_tokens(6)
    kv_format.pack_pages(tokens, torch.arange(6), pages)
    _, aligned = make_pages(2)
    kv_format.pack_pages(tokens, torch.arange(6), aligned)
    assert torch.equal(kv_format.unpack_slots(pages, torch.arange(6)), kv_format.unpack_slots(aligned, torch.arange(6)))
    assert torch.equal(buffer[:offset], before)


def test_slot_minus_one_skips_on_write_and_reads_as_zeros() -> None:
    buffer, pages = make_pages(2)
    before = buffer.clone()
    kv_format.pack_pages(make_tokens(2), torch.tensor([-1, -1]), pages)
    assert torch.equal(buffer, before)
    buffer.fill_(255)
    assert not kv_format.unpack_slots(pages, torch.tensor([-1])).any()


@pytest.mark.parametrize("slot", [-2, 6, 2**31 - 1])
def test_slots_outside_the_pages_are_refused(slot: int) -> None:
    _, pages = make_pages(2)
    with pytest.raises(BadInput, match="below 6"):
        kv_format.pack_pages(make_tokens(1), torch.tensor([slot]), pages)
    with pytest.raises(BadInput, match="below 6"):
        kv_format.unpack_slots(pages, torch.tensor([slot]))


def test_a_tensor_that_is_no_page_view_is_refused() -> None:
    with pytest.raises(BadInput, match="584"):
        kv_format.page_views(torch.zeros(2, 2, 1, 576, dtype=torch.uint8))
    with pytest.raises(BadInput, match="contiguous"):
        kv_format.page_views(torch.zeros(2, 2, 1, 592, dtype=torch.uint8)[..., :584])


# Kills: interleaved scales, a power-of-two scale, the floor left out.
def test_index_key_pages_hold_codes_then_fp32_scales() -> None:
    pages = torch.randint(0, 256, (2, 8448), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    expected = pages.clone()
    keys = torch.randn(3, 128, generator=torch.Generator().manual_seed(3))
    keys[1] = 0.0
    slots = [0, 127, 70]
    for slot, key in zip(slots, keys, strict=True):
        page, i = divmod(slot, 64)
        scale = key.abs().max().clamp(min=1e-4) / 448
        codes = [nearest_code(float(value / scale)) for value in key]
        expected[page, 128 * i : 128 * i + 128] = torch.tensor(codes, dtype=torch.uint8)
        packed = struct.pack("<f", float(scale))
        expected[page, 8192 + 4 * i : 8192 + 4 * i + 4] = torch.tensor(list(packed), dtype=torch.uint8)
    kv_format.pack_index_keys(torch.cat((keys, keys[:1])), torch.tensor([*slots, -1]), pages)
    assert torch.equal(pages, expected)
    read = kv_format.unpack_index_keys(pages, torch.tensor([*slots, -1]))
    assert torch.allclose(read[:3], keys, rtol=1 / 16, atol=1e-4)
    assert not read[3].any()


@pytest.mark.parametrize(("ratio", "per_page"), [(4, 64), (128, 2)])
def test_compressed_slots_are_a_bijection_that_follows_the_page_table(ratio: int, per_page: int) -> None:
    table = torch.tensor([[7, 1, 4], [0, 9, 3]], dtype=torch.int32)
    entries = torch.arange(3 * per_page).repeat(2, 1)
    slots = kv_format.compressed_slots(table, entries, ratio)
    assert slots.dtype == torch.int64
    assert len(set(slots.flatten().tolist())) == slots.numel()
    for r, pages in enumerate([[7, 1, 4], [0, 9, 3]]):
        for n, page in enumerate(pages):
            run = slots[r, n * per_page : (n + 1) * per_page].tolist()
            assert run[0] == page * per_page
            assert all(b - a == 1 for a, b in pairwise(run))


def test_compressed_slots_keep_holes_and_refuse_what_does_not_exist() -> None:
    table = torch.tensor([[5]], dtype=torch.int32)
    assert kv_format.compressed_slots(table, torch.tensor([[-1, 1]]), 128).tolist() == [[-1, 11]]
    with pytest.raises(BadInput, match="page table"):
        kv_format.compressed_slots(table, torch.tensor([[2]]), 128)
    with pytest.raises(BadInput, match="ratio 8"):
        kv_format.compressed_slots(table, torch.tensor([[0]]), 8)


# Kills: a byte view of an empty float32 tensor, which torch refuses.
def test_packing_no_index_key_writes_nothing() -> None:
    pages = torch.full((2, 64 * 132), 0xFF, dtype=torch.uint8)
    kv_format.pack_index_keys(torch.zeros(0, 128), torch.zeros(0, dtype=torch.int64), pages)
    assert bool((pages == 0xFF).all())
