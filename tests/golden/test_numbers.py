"""Exact inputs, correct rounding and proven enclosures.

Mutants that fail here: bf16 subnormals read with the implicit bit; e4m3 exponent off by one; ties not to even;
no smallest exponent in ``rounded``; exp or ln rounded to one end; ``decide`` without a second precision.
"""

import random
import struct
from decimal import Decimal
from fractions import Fraction

import pytest
import torch

from dsv4_conformance.errors import HarnessError
from dsv4_conformance.golden.exact.numbers import (
    GRID,
    Undecided,
    agree,
    bf16_on_grid,
    decide,
    e4m3_eighths,
    exact_decimal,
    exp_enclosure,
    floor_log2,
    ln_enclosure,
    rounded,
)

# Published digits (OEIS A001113, A092605, A002392).
E = "2.71828182845904523536028747135266249775724709369995957496696762772407663035354759457138217852516642742746"
E_TO_MINUS_TWO = "0.13533528323661269189399949497248440340763154590957588146815887265407337410148768993709812249"
LN_10 = "2.30258509299404568401799145468436420760110148862877297603332790096757260967735248023599720508959829834196"


def test_every_finite_bf16_is_the_float32_with_its_bits() -> None:
    for bits in range(1 << 16):
        if bits & 0x7F80 != 0x7F80:
            (value,) = struct.unpack("<f", struct.pack("<I", bits << 16))
            assert Fraction(bf16_on_grid(bits), 1 << GRID) == Fraction(value), hex(bits)


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC0])
def test_infinities_and_nan_are_no_input(bits: int) -> None:
    with pytest.raises(HarnessError):
        bf16_on_grid(bits)


def test_every_fp8_code_has_the_value_torch_gives_it() -> None:
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float64)
    for code in range(256):
        if code & 0x7F == 0x7F:
            with pytest.raises(HarnessError):
                e4m3_eighths(code)
        else:
            assert e4m3_eighths(code) / 512 == float(values[code]), hex(code)


def test_rounding_to_float32_is_that_of_the_machine() -> None:
    draw = random.Random(1)
    for _ in range(3000):
        x = draw.choice((1, -1)) * draw.getrandbits(53) * 2.0 ** draw.randint(-200, 40)
        numerator, denominator = x.as_integer_ratio()
        (want,) = struct.unpack("<f", struct.pack("<f", x))
        assert Fraction(rounded(numerator, denominator, 24, -149), 1 << 149) == Fraction(want), x


@pytest.mark.parametrize(
    ("numerator", "denominator", "want"),
    [
        (257, 256, 1.0),  # halfway between 1 and 1 + 2**-7: to the even one
        (259, 256, 1 + 2 / 128),  # halfway, the even one is above
        (257 * 1000 + 1, 256 * 1000, 1 + 1 / 128),
        (511, 256, 2.0),  # carries into the next binade
        (-259, 256, -1 - 2 / 128),
        (1, 3, 171 / 512),
    ],
)
def test_rounding_to_bf16_is_half_to_even(numerator: int, denominator: int, want: float) -> None:
    assert Fraction(rounded(numerator, denominator, 8, -133), 1 << 133) == Fraction(want)


@pytest.mark.parametrize(("x", "want"), [(Fraction(1), 0), (Fraction(7, 8), -1), (Fraction(8), 3), (Fraction(9, 2), 2)])
def test_floor_of_the_binary_logarithm(x: Fraction, want: int) -> None:
    assert floor_log2(x.numerator, x.denominator) == want


def test_a_dyadic_number_becomes_the_same_decimal() -> None:
    assert exact_decimal(Fraction(-3, 8)) == Decimal("-0.375")
    assert Fraction(exact_decimal(Fraction(2**90 + 1, 1 << 120))) == Fraction(2**90 + 1, 1 << 120)


@pytest.mark.parametrize(("x", "digits"), [(1, E), (-2, E_TO_MINUS_TWO)])
@pytest.mark.parametrize("bits", [60, 160, 290])
def test_exp_lies_in_a_narrow_enclosure(x: int, digits: str, bits: int) -> None:
    low, high = exp_enclosure(Fraction(x), bits)
    assert low <= Fraction(digits) * 2**bits <= high
    assert high - low <= 12


def test_exp_of_a_large_number_keeps_its_relative_width() -> None:
    low, high = exp_enclosure(Fraction(700), 160)
    assert 0 < high - low < high >> 150


@pytest.mark.parametrize("bits", [60, 160, 290])
def test_ln_lies_in_a_narrow_enclosure(bits: int) -> None:
    low, high = ln_enclosure(10 << bits, 10 << bits, bits)
    assert low < Fraction(LN_10) < high
    assert high - low < Fraction(16, 1 << bits)
    wide = ln_enclosure(9 << bits, 10 << bits, bits)
    assert wide[1] == high
    assert wide[0] < ln_enclosure(10 << bits, 10 << bits, bits)[0] - Fraction(1, 10)


def test_an_open_rounding_is_tried_with_more_bits() -> None:
    tried = []

    def compute(bits: int) -> float:
        tried.append(bits)
        return agree(1.0, 1.0 if len(tried) == 3 else 2.0)

    assert decide(compute) == 1.0
    assert tried == sorted(set(tried))
    assert len(tried) == 3


def test_a_rounding_that_stays_open_is_an_error() -> None:
    def never(bits: int) -> float:
        raise Undecided

    with pytest.raises(HarnessError, match="exactly between"):
        decide(never)
