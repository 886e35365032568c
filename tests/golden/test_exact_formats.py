"""The exact cache formats on the values the specification names (spec §9).

Mutants that fail here: ties away from even; no clamp; exponent of the next power of two; floors exchanged; scale row
beside its data row; sign lost on zeros; skipped row written; index scale not rounded before it divides; -1 mapped.
"""

import struct
from fractions import Fraction

import pytest

from dsv4_conformance.golden.exact import kv_format
from dsv4_conformance.golden.exact.numbers import GRID
from dsv4_conformance.spec.kv_layout import Ue8m0Floor

ONE, MINUS_ZERO, TWO = 0x3F80, 0x8000, 0x4000


@pytest.mark.parametrize(
    ("x", "code"),
    [
        (0, 0x00),
        (1, 0x38),
        (17, 0x58),  # between 16 (0x58) and 18 (0x59)
        (19, 0x5A),  # between 18 (0x59) and 20 (0x5a)
        (Fraction(17) + Fraction(1, 10**9), 0x59),
        (448, 0x7E),
        (449, 0x7E),
        (10**6, 0x7E),
        (Fraction(1, 512), 0x01),
        (Fraction(1, 1024), 0x00),  # half of the finest value
        (Fraction(3, 1024), 0x02),
        (Fraction(15, 1024), 0x08),  # between the largest subnormal and the smallest normal
    ],
)
def test_nearest_fp8_code(x: Fraction | int, code: int) -> None:
    assert kv_format.e4m3_nearest(Fraction(x)) == code


@pytest.mark.parametrize(
    ("amax", "floor", "e"),
    [
        (Fraction(448), Ue8m0Floor.AMAX_1E_4, 0),
        (Fraction(450), Ue8m0Floor.AMAX_1E_4, 1),
        (Fraction(448, 1 << 9), Ue8m0Floor.AMAX_1E_4, -9),
        (Fraction(448 << 80), Ue8m0Floor.AMAX_1E_4, 80),
        (Fraction(0), Ue8m0Floor.AMAX_1E_4, 105 - 127),
        (Fraction(0), Ue8m0Floor.SCALE_1E_4, 114 - 127),
        (Fraction(0), Ue8m0Floor.AMAX_1E_8, 92 - 127),
        (Fraction(1, 50), Ue8m0Floor.AMAX_1E_4, -14),
        (Fraction(1, 50), Ue8m0Floor.SCALE_1E_4, -13),
        (Fraction(5, 10**5), Ue8m0Floor.AMAX_1E_8, -23),
    ],
)
def test_scale_exponent_under_each_floor(amax: Fraction, floor: Ue8m0Floor, e: int) -> None:
    assert kv_format.scale_exponent(amax, floor) == e


def test_row_stands_where_the_layout_says_and_comes_back() -> None:
    row = [ONE] * 64 + [MINUS_ZERO] * 384 + [TWO] * 64
    blank = b"\xee" * (2 * 1728)
    pages = kv_format.write_rows(blank, 2, [(3, row), (-1, [TWO] * 512)], Ue8m0Floor.AMAX_1E_4)
    page = pages[1728:]
    assert pages[:1728] == blank[:1728]
    assert page[:576] == blank[:576]  # the page's first token was not written
    # 1 = 256 * 2**-8: 1 / 448 rounds up to 2**-8, byte 119, and 256 is code 0x78. A tile of -0 gets the floor's byte.
    assert page[576 : 576 + 448] == b"\x78" * 64 + b"\x80" * 384
    assert page[576 + 448 : 1152] == struct.pack("<64H", *[TWO] * 64)
    assert page[1152 + 8 : 1152 + 16] == bytes([119] + [105] * 6 + [0xEE])
    assert page[1152 : 1152 + 8] == page[1168:1176] == b"\xee" * 8
    got = kv_format.read_row(pages, 2, 3)
    assert [x / (1 << GRID) for x in (got[0], got[63], got[64], got[448], got[511])] == [1.0, 1.0, 0.0, 2.0, 2.0]


def test_index_keys_are_divided_by_the_rounded_scale() -> None:
    key = [0.0] * 126 + [-0.75, 3.0]
    pages = kv_format.write_index_keys(b"\xee" * 8448 * 2, [(64 + 5, key)])
    page = pages[8448:]
    (scale,) = struct.unpack_from("<f", page, 64 * 128 + 4 * 5)
    assert scale == struct.unpack("<f", struct.pack("<f", 3.0 / 448))[0]
    assert page[128 * 5 : 128 * 6] == b"\x00" * 126 + bytes([0x80 | 0x6E, 0x7E])  # 112 and 448
    assert page[: 128 * 5] + page[128 * 6 : 8192 + 20] == b"\xee" * (128 * 5 + 128 * 58 + 20)
    assert kv_format.read_index_key(pages, 69)[125:] == [0.0, -112 * scale, 448 * scale]


def test_the_rounded_index_scale_decides_between_two_codes() -> None:
    # 17 lies between two codes, 16 and 18: x is above it under the scale 8 / 448, below it under its float32.
    x = 17 * 8 / 448 * (1 + 2.0**-26)
    (scale,) = struct.unpack("<f", struct.pack("<f", 8 / 448))
    assert Fraction(x) / Fraction(8, 448) > 17 > Fraction(x) / Fraction(scale)
    pages = kv_format.write_index_keys(bytes(8448), [(0, [x, 8.0] + [0.0] * 126)])
    assert pages[:2] == b"\x58\x7e"


@pytest.mark.parametrize(
    ("entry", "ratio", "slot"), [(0, 4, 448), (63, 4, 511), (64, 4, 192), (3, 128, 7), (-1, 4, -1)]
)
def test_compressed_slots(entry: int, ratio: int, slot: int) -> None:
    assert kv_format.compressed_slot([7, 3], entry, ratio) == slot
