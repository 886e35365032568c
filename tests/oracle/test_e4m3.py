"""The fp8 codec of the oracle against torch's cast and against exact fractions."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch

from dsv4_conformance.oracle.kv_format import dequantise, e4m3_code, e4m3_value

CODES = torch.arange(256, dtype=torch.uint8)


def fraction(code: int) -> Fraction:
    """Magnitude of the finite codes 0 to 126, from the format's definition."""
    exponent, mantissa = code >> 3, code & 7
    return Fraction(mantissa, 512) if exponent == 0 else Fraction(8 + mantissa, 8) * Fraction(2) ** (exponent - 7)


def nearest(value: float) -> int:
    """Code nearest to ``value``, the even one of two, by comparing exact distances."""
    wanted = abs(Fraction(value))
    best = min(range(127), key=lambda code: (abs(fraction(code) - wanted), code & 1))
    return best | (128 if math.copysign(1.0, value) < 0 else 0)


# Kills: a bias of 8, subnormals with a hidden one, 0x7f as 480 or infinity, a sign lost at zero.
def test_value_of_every_code_is_torch_s() -> None:
    want = CODES.view(torch.float8_e4m3fn).to(torch.float64)
    got = e4m3_value(CODES)
    assert got.dtype == torch.float64
    assert torch.equal(got.nan_to_num(nan=777.0), want.nan_to_num(nan=777.0))
    assert torch.equal(torch.signbit(got[:127]), torch.signbit(want[:127]))
    assert torch.equal(torch.signbit(got[128:255]), torch.signbit(want[128:255]))
    assert got.isnan().nonzero().flatten().tolist() == [0x7F, 0xFF]


# Kills: values that do not come back to their own code, -0 as 0.
def test_every_finite_code_survives_the_round_trip() -> None:
    finite = CODES[(CODES & 0x7F) != 0x7F]
    assert torch.equal(e4m3_code(e4m3_value(finite)), finite)


# Kills: rounding half away from zero or half up, at normals, at subnormals and where the exponent changes.
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_ties_go_to_the_even_code(sign: float) -> None:
    ties = [float((fraction(a) + fraction(b)) / 2) * sign for a, b in pairwise(range(127))]
    got = e4m3_code(torch.tensor(ties, dtype=torch.float64)).tolist()
    assert got == [nearest(tie) for tie in ties]
    assert got == torch.tensor(ties).to(torch.float8_e4m3fn).view(torch.uint8).tolist()
    assert all(code % 2 == 0 for code in got)


# Kills: a float32 step in between, which turns a value just beside a tie into the tie.
def test_values_just_beside_a_tie_go_to_the_nearer_code() -> None:
    ties = [float((fraction(a) + fraction(b)) / 2) for a, b in pairwise(range(127))]
    beside = [math.nextafter(tie, end) for tie in ties for end in (0.0, math.inf)]
    got = e4m3_code(torch.tensor(beside, dtype=torch.float64)).tolist()
    assert got == [code for pair in pairwise(range(127)) for code in pair]


# Kills: a wrong exponent at any binade, subnormals rounded in steps of their own exponent.
def test_random_values_of_every_binade_round_as_torch_rounds() -> None:
    generator = torch.Generator().manual_seed(3)
    exponent = torch.randint(-14, 9, (20000,), generator=generator)
    x = (torch.rand(20000, generator=generator) + 1) * torch.exp2(exponent.float())
    x = (x * torch.where(torch.rand(20000, generator=generator) < 0.5, 1.0, -1.0)).clamp(-448, 448)
    want = x.to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(e4m3_code(x.to(torch.float64)), want)
    assert len(set(want.tolist())) == 254  # all finite codes were drawn


# Kills: NaN as a number, a sign bit on it.
def test_nan_has_the_nan_code() -> None:
    assert e4m3_code(torch.tensor([math.nan, -math.nan], dtype=torch.float64)).tolist() == [0x7F, 0x7F]


# Kills: a product that rounds, scale bytes off by one, a tile's scale applied to its neighbour, rope dims scaled.
def test_dequantised_values_are_code_times_power_of_two_exactly() -> None:
    scales = torch.arange(10, 247)  # beyond these bf16 under- or overflows for some code
    data = torch.zeros(len(scales), 4, 576, dtype=torch.uint8)
    data[..., :448] = CODES.repeat(len(scales), 7).view(len(scales), 4, 448)  # each code in 7 places of 4 rows
    rope = torch.randn(len(scales), 4, 64, generator=torch.Generator().manual_seed(4)).to(torch.bfloat16)
    data[..., 448:] = rope.view(torch.uint8)
    bytes_ = torch.zeros(len(scales), 4, 8, dtype=torch.int64)
    bytes_[..., :7] = 10 + (scales[:, None, None] + 31 * torch.arange(7)) % 237
    bytes_[..., 7] = 255  # the pad byte means nothing
    got = dequantise(data, bytes_.to(torch.uint8))
    assert got.dtype == torch.bfloat16 and got.shape == (len(scales), 4, 512)
    value = e4m3_value(data[..., :448]) * torch.exp2(bytes_[..., :7].double() - 127).repeat_interleave(64, -1)
    assert torch.equal(got[..., :448].double().nan_to_num(nan=-7.0), value.nan_to_num(nan=-7.0))
    assert torch.equal(got[..., 448:].view(torch.int16), rope.view(torch.int16))


# Kills: scale byte 255 read as 2**128.
def test_scale_byte_255_means_nan() -> None:
    scales = torch.full((1, 8), 127, dtype=torch.uint8)
    scales[0, 3] = 255
    row = dequantise(torch.zeros(1, 576, dtype=torch.uint8), scales)[0]
    assert row.isnan().nonzero().flatten().tolist() == list(range(192, 256))
