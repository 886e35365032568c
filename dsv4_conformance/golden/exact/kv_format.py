"""Bytes of KV pages and index-key pages, and slots of compressed entries, by integer arithmetic (spec §9)."""

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction

from dsv4_conformance.golden.exact.numbers import GRID, bf16_on_grid, e4m3_eighths, rounded
from dsv4_conformance.spec.kv_layout import (
    FP8_MAX,
    INDEX_KEY_FP8,
    UE8M0_BIAS,
    PageLayout,
    Ue8m0Floor,
    compressed_page_size,
)

_FLOORS: dict[Ue8m0Floor, Callable[[Fraction], Fraction]] = {
    Ue8m0Floor.AMAX_1E_4: lambda amax: max(amax, Fraction(1, 10**4)) / FP8_MAX,
    Ue8m0Floor.SCALE_1E_4: lambda amax: max(amax / FP8_MAX, Fraction(1, 10**4)),
    Ue8m0Floor.AMAX_1E_8: lambda amax: max(amax, Fraction(1, 10**8)) / FP8_MAX,
}
"""The tile's scale before it is rounded up to a power of two, from its largest magnitude (spec §9.2)."""

_E4M3 = [e4m3_eighths(code) for code in range(0x7F)]
"""Finite magnitudes in units of 2**-9, ascending; the position is the code."""


def e4m3_nearest(x: Fraction) -> int:
    """Code 0 to 0x7e nearest to ``min(x, 448)``, x >= 0; the even code where two are equally near."""
    exact = x * 512
    below = min(bisect_right(_E4M3, exact), len(_E4M3)) - 1
    above = min(below + 1, len(_E4M3) - 1)
    left, right = exact - _E4M3[below], _E4M3[above] - exact
    return min((abs(left), below & 1, below), (abs(right), above & 1, above))[2]


def _power_of_two(e: int) -> Fraction:
    return Fraction(1 << e) if e >= 0 else Fraction(1, 1 << -e)


def scale_exponent(amax: Fraction, floor: Ue8m0Floor) -> int:
    """Smallest e with ``2**e >=`` the scale (spec §9.2)."""
    scale = _FLOORS[floor](amax)
    e = scale.numerator.bit_length() - scale.denominator.bit_length() - 1
    while scale > _power_of_two(e):
        e += 1
    return e


def pack_row(row: Sequence[int], floor: Ue8m0Floor) -> tuple[bytes, bytes]:
    """576 data bytes and 7 scale bytes of one token, given as 512 bf16 bit patterns (spec §9.1, §9.2)."""
    codes, scales = bytearray(), bytearray()
    for start in range(0, PageLayout.NOPE, PageLayout.TILE):
        tile = row[start : start + PageLayout.TILE]
        values = [abs(Fraction(bf16_on_grid(bits), 1 << GRID)) for bits in tile]
        e = scale_exponent(max(values), floor)
        factor = _power_of_two(-e)
        codes += bytes(e4m3_nearest(x * factor) | (bits >> 8 & 0x80) for x, bits in zip(values, tile, strict=True))
        scales.append(e + UE8M0_BIAS)
    rope = row[PageLayout.NOPE :]
    return bytes(codes) + struct.pack(f"<{len(rope)}H", *rope), bytes(scales)


def read_row(pages: bytes, page_size: int, slot: int) -> tuple[int, ...]:
    """The 512 values at ``slot`` of pages ``(num_pages, page_bytes)``, in units of 2**-GRID (spec §9.1, §9.2)."""
    layout = PageLayout(page_size)
    page, inside = divmod(slot, page_size)
    start = page * layout.page_bytes
    data = start + layout.data_offset(inside)
    scales = [pages[start + layout.scale_offset(inside, k)] for k in range(layout.TILES)]
    # A code in units of 2**-9 times 2**(byte - 127) is a whole number of 2**-136.
    nope = (e4m3_eighths(pages[data + dim]) << scales[dim // layout.TILE] for dim in range(layout.NOPE))
    rope = struct.unpack_from(f"<{layout.ROPE}H", pages, start + layout.rope_offset(inside))
    return *nope, *map(bf16_on_grid, rope)


def write_rows(pages: bytes, page_size: int, rows: Sequence[tuple[int, Sequence[int]]], floor: Ue8m0Floor) -> bytes:
    """``pages`` with tokens written at slots: pairs of (slot, 512 bf16 bit patterns); slot -1 skips its token."""
    layout, written = PageLayout(page_size), bytearray(pages)
    for slot, row in rows:
        if slot == -1:
            continue
        page, inside = divmod(slot, page_size)
        data, scales = pack_row(row, floor)
        for offset, part in ((layout.data_offset(inside), data), (layout.scale_offset(inside), scales)):
            start = page * layout.page_bytes + offset
            written[start : start + len(part)] = part
    return bytes(written)


def write_index_keys(pages: bytes, rows: Sequence[tuple[int, Sequence[float]]]) -> bytes:
    """Index-key pages with keys (128 float32 values) written at slots: codes, then scales (spec §9.3, FP8 form).

    The scale ``max(amax, 1e-4) / 448`` is rounded to float32, and the rounded one divides.
    """
    layout, written = INDEX_KEY_FP8, bytearray(pages)
    for slot, row in rows:
        page, inside = divmod(slot, layout.page_size)
        exact = max(abs(Fraction(x)) for x in row)
        quotient = max(exact, Fraction(1, 10**4)) / FP8_MAX
        scale = Fraction(rounded(quotient.numerator, quotient.denominator, 24, -149), 1 << 149)
        signs = struct.pack(f"<{len(row)}f", *row)[3::4]
        codes = bytes(e4m3_nearest(abs(Fraction(x)) / scale) | sign & 0x80 for x, sign in zip(row, signs, strict=True))
        start = page * layout.page_bytes
        for offset, part in ((layout.value_offset(inside), codes), (layout.scale_offset(inside), _f32(scale))):
            written[start + offset : start + offset + len(part)] = part
    return bytes(written)


def _f32(x: Fraction) -> bytes:
    """Little-endian bytes of a number that float32 holds exactly."""
    return struct.pack("<f", float(x))


def read_index_key(pages: bytes, slot: int) -> list[float]:
    """The 128 values at ``slot``: code times scale, exact in float64 (spec §9.3)."""
    layout = INDEX_KEY_FP8
    page, inside = divmod(slot, layout.page_size)
    start = page * layout.page_bytes
    values = pages[start + layout.value_offset(inside) :][: layout.value_bytes]
    (scale,) = struct.unpack_from("<f", pages, start + layout.scale_offset(inside))
    return [e4m3_eighths(code) / 512 * scale for code in values]


def compressed_slot(page_table: Sequence[int], entry: int, ratio: int) -> int:
    """Slot of a request's compressed entry; -1 stays -1 (spec §9.4)."""
    if entry == -1:
        return -1
    page, inside = divmod(entry, compressed_page_size(ratio))
    return page_table[page] * compressed_page_size(ratio) + inside
