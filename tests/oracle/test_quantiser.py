"""Scale exponents, codes and index-key scales of the oracle against exact fractions."""

from fractions import Fraction

import pytest
import torch

from dsv4_conformance.oracle.kv_format import (
    Floor,
    e4m3_value,
    pack,
    page_views,
    quantise,
    quantise_index_keys,
    scale_exponent,
    unpack,
)

MIN_SCALE: dict[Floor, Fraction] = {
    "amax_1e-4": Fraction(1e-4) / 448,
    "scale_1e-4": Fraction(1e-4),
    "amax_1e-8": Fraction(1e-8) / 448,
}
FLOOR_BYTE: dict[Floor, int] = {"amax_1e-4": 105, "scale_1e-4": 114, "amax_1e-8": 92}
FLOORS = list(MIN_SCALE)


def exponent(amax: float, floor: Floor) -> int:
    """Smallest e with ``2**e >= max(amax / 448, the floor's scale)``, found by trying."""
    scale = max(Fraction(amax) / 448, MIN_SCALE[floor])
    return next(e for e in range(-60, 140) if Fraction(2) ** e >= scale)


def next_bf16(x: float, up: bool) -> float:
    bits = torch.tensor(x).to(torch.bfloat16).view(torch.int16) + (1 if up else -1)
    return bits.view(torch.bfloat16).item()


# Kills: floor instead of ceil, a power of two pushed to the next exponent, log2 in floating point.
@pytest.mark.parametrize("floor", FLOORS)
def test_exponent_around_every_power_of_two(floor: Floor) -> None:
    edges = [448.0 * 2.0**k for k in range(-40, 60)]
    amax = [x for edge in edges for x in (next_bf16(edge, False), edge, next_bf16(edge, True))]
    got = scale_exponent(torch.tensor(amax, dtype=torch.float64), floor).tolist()
    assert got == [exponent(x, floor) for x in amax]
    above_every_floor = [(k, got[3 * i : 3 * i + 3]) for i, k in enumerate(range(-40, 60)) if k >= -12]
    assert all(three == [k, k, k + 1] for k, three in above_every_floor)


# Kills: a floor on the wrong quantity, a floor rule taken for another.
@pytest.mark.parametrize("floor", FLOORS)
def test_small_tiles_get_the_floor_s_byte(floor: Floor) -> None:
    tiny = torch.tensor([0.0, 1e-30, float(MIN_SCALE[floor] * 448) * 0.99], dtype=torch.float64)
    assert (scale_exponent(tiny, floor) + 127).tolist() == [FLOOR_BYTE[floor]] * 3
    lowest = 448.0 * 2.0 ** (FLOOR_BYTE[floor] - 127)  # up to here the floor's exponent fits
    edge = torch.tensor([lowest, next_bf16(lowest, True)], dtype=torch.float64)
    assert (scale_exponent(edge, floor) + 127).tolist() == [FLOOR_BYTE[floor], FLOOR_BYTE[floor] + 1]


# Kills: rules that agree everywhere (the three differ just below these maxima, and nowhere above the largest).
def test_floor_rules_differ_where_the_specification_says() -> None:
    amax = torch.tensor([5.3e-5, 5.4e-5, 1.06e-4, 0.027, 0.0274, 0.06], dtype=torch.float64)
    table = {floor: (scale_exponent(amax, floor) + 127).tolist() for floor in FLOORS}
    assert table["amax_1e-4"] == [105, 105, 105, 113, 114, 115]
    assert table["scale_1e-4"] == [114, 114, 114, 114, 114, 115]
    assert table["amax_1e-8"] == [104, 105, 105, 113, 114, 115]


# Kills: tiles that share a scale, a scale that multiplies, codes of the unscaled value, the clamp left out.
@pytest.mark.parametrize("floor", FLOORS)
def test_codes_are_the_nearest_to_the_scaled_value(floor: Floor) -> None:
    generator = torch.Generator().manual_seed(5)
    gain = torch.exp2(torch.randint(-30, 20, (6, 7, 1), generator=generator).float())
    nope = (torch.randn(6, 7, 64, generator=generator) * gain).to(torch.bfloat16)
    nope[0, 0] = 0.0
    nope[0, 1, 5] = -0.0
    codes, scales = quantise(nope.flatten(1), floor)
    amax = nope.double().abs().amax(-1)
    assert (scales.long() - 127).tolist() == [[exponent(x, floor) for x in row] for row in amax.tolist()]
    finite = e4m3_value(torch.arange(127, dtype=torch.uint8))
    scaled = nope.double().flatten(1) / torch.exp2(scales.double() - 127).repeat_interleave(64, -1)
    distance = (scaled.abs()[..., None] - finite).abs()
    assert torch.equal((e4m3_value(codes) - scaled).abs(), distance.amin(-1))
    assert torch.equal(codes >= 128, torch.signbit(scaled))


# Kills: a clamp at 240 or at infinity: the largest bf16 below the next exponent rounds to 448, never to NaN.
def test_tile_maximum_never_becomes_nan() -> None:
    top = [448.0, 447.0, next_bf16(448.0 * 2**9, False), next_bf16(448.0 * 2**9, True), 3.3895313892515355e38]
    nope = torch.zeros(len(top), 448, dtype=torch.bfloat16)
    nope[:, 3] = torch.tensor(top)
    nope[:, 4] = -torch.tensor(top)
    codes, scales = quantise(nope)
    assert ((codes & 0x7F) != 0x7F).all()
    assert (e4m3_value(codes[:, 3]) >= 224).all()
    assert scales[0, 0] == 127 and scales[3, 0] == 127 + 10
    assert torch.equal(codes[:, 4], codes[:, 3] + 128)


# Kills: packing that depends on the first scale (repeated quantisation drifts).
def test_packing_a_dequantised_row_again_changes_no_value() -> None:
    tokens = (torch.randn(40, 512, generator=torch.Generator().manual_seed(6)) * 3).to(torch.bfloat16)
    slots = torch.arange(40)

    def stored(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pages = torch.zeros(1, 65 * 576, dtype=torch.uint8).as_strided((1, 64, 1, 584), (65 * 576, 584, 584, 1))
        pack(rows, slots, pages)
        return unpack(pages, slots), page_views(pages)[1][0, :40, :7]

    once, first = stored(tokens)
    twice, second = stored(once)
    assert torch.equal(once, twice)
    assert (second <= first).all()
    assert (once != tokens).any()


# Kills: an unrounded scale in the division, no floor on amax, a scale over tiles of 64.
def test_index_keys_divide_by_their_rounded_scale() -> None:
    keys = torch.randn(50, 128, generator=torch.Generator().manual_seed(7))
    keys *= torch.exp2(torch.arange(-25, 25).float())[:, None]
    keys[0] = 0
    codes, scales = quantise_index_keys(keys)
    assert scales.dtype == torch.float32
    finite = [Fraction(x) for x in e4m3_value(torch.arange(127, dtype=torch.uint8)).tolist()]
    for row in (0, 1, 14, 26, 49):
        wanted = max(max(abs(Fraction(x)) for x in keys[row].tolist()), Fraction(1e-4)) / 448
        scale = Fraction(scales[row].item())
        assert abs(scale / wanted - 1) <= Fraction(1, 2**24)
        for x, code in zip(keys[row].tolist(), codes[row].tolist(), strict=True):
            scaled = min(abs(Fraction(x)) / scale, Fraction(448))
            assert abs(finite[code & 127] - scaled) <= min(abs(f - scaled) for f in finite) + Fraction(1, 2**45)
