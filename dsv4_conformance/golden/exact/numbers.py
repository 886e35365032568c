"""Numbers without rounding error: cache formats on one integer grid, enclosures of exp and ln, one rounding at the end.

A result is right if both ends of an interval that is proven to hold the true value round to the same number; where
they do not, the interval is made narrower (``decide``). No platform's arithmetic enters: integers and ``decimal`` only.
"""

from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Clamped, Context, Decimal, Inexact
from fractions import Fraction
from typing import TypeVar

from dsv4_conformance.errors import HarnessError

T = TypeVar("T")

GRID = 136
"""Inputs are integers in units of 2**-GRID: the finest are e4m3 subnormals (2**-9) under scale byte 0 (2**-127)."""

PRECISIONS = (160, 320, 640, 1280)
"""Bits after the point of the enclosures, tried in turn."""

_WIDE = Context(prec=20_000, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, Clamped])


class Undecided(Exception):
    """The two ends of an enclosure round to different numbers."""


def decide(compute: Callable[[int], T]) -> T:
    """``compute(bits)`` at the first precision at which it is decided.

    Raises HarnessError where none is: the true value lies on, or within 2**-1200 of, the middle between two numbers.
    """
    for bits in PRECISIONS:
        try:
            return compute(bits)
        except Undecided:
            continue
    raise HarnessError("A golden's value cannot be rounded: it seems to lie exactly between two numbers.")


def agree(low: T, high: T) -> T:
    """The number that both ends of an enclosure round to. Raises Undecided if there is none."""
    if low != high:
        raise Undecided
    return low


def bf16_on_grid(bits: int) -> int:
    """A bf16 bit pattern in units of 2**-GRID. Raises HarnessError for inf and NaN, which no referenced input holds."""
    exponent, mantissa = bits >> 7 & 0xFF, bits & 0x7F
    if exponent == 0xFF:
        raise HarnessError("A golden's case refers to an infinity or a NaN.")
    magnitude = mantissa << GRID - 133 if exponent == 0 else (mantissa | 0x80) << GRID - 134 + exponent
    return -magnitude if bits >> 15 else magnitude


def e4m3_eighths(code: int) -> int:
    """An e4m3fn code in units of its finest value, 2**-9. Raises HarnessError for NaN."""
    exponent, mantissa = code >> 3 & 0xF, code & 7
    if code & 0x7F == 0x7F:
        raise HarnessError("A golden's case refers to a NaN.")
    magnitude = mantissa if exponent == 0 else (mantissa | 8) << exponent - 1
    return -magnitude if code >> 7 else magnitude


def floor_log2(numerator: int, denominator: int) -> int:
    """Largest e with ``2**e <= numerator / denominator``, both positive."""
    e = numerator.bit_length() - denominator.bit_length()
    reached = numerator >= denominator << e if e >= 0 else numerator << -e >= denominator
    return e if reached else e - 1


def rounded(numerator: int, denominator: int, bits: int, finest: int) -> int:
    """``numerator / denominator`` rounded half to even to ``bits`` significant bits, in units of ``2**finest``.

    ``denominator > 0``; ``finest`` is the exponent of the format's smallest subnormal: bf16 (8, -133), float32
    (24, -149).
    """
    if numerator == 0:
        return 0
    magnitude = abs(numerator)
    unit = max(floor_log2(magnitude, denominator) - bits + 1, finest)
    top, bottom = (magnitude, denominator << unit) if unit >= 0 else (magnitude << -unit, denominator)
    whole, rest = divmod(top, bottom)
    if 2 * rest > bottom or (2 * rest == bottom and whole & 1):
        whole += 1
    return (whole if numerator > 0 else -whole) << unit - finest


def exact_decimal(x: Fraction) -> Decimal:
    """A fraction whose denominator is a power of two, as a decimal without rounding."""
    places = x.denominator.bit_length() - 1
    assert x.denominator == 1 << places
    return _WIDE.scaleb(Decimal(x.numerator * 5**places), -places)


def _context(bits: int) -> Context:
    """Decimal arithmetic whose relative error is below ``2**-(bits + 3)``."""
    return Context(prec=bits * 302 // 1000 + 3, Emin=MIN_EMIN, Emax=MAX_EMAX)


def exp_enclosure(x: Fraction, bits: int) -> tuple[int, int]:
    """Integers ``low <= 2**bits e**x <= high`` for dyadic x; ``decimal`` rounds exp correctly."""
    numerator, denominator = _context(bits).exp(exact_decimal(x)).as_integer_ratio()
    near = (numerator << bits) // denominator
    slack = (near >> bits) + 1
    return max(near - slack, 0), near + slack + 1


def ln_enclosure(low: int, high: int, bits: int) -> tuple[Fraction, Fraction]:
    """An interval that holds ``ln(x / 2**bits)`` for every x in ``[low, high]``, ``low > 0``."""
    ends = []
    for end, sign in ((low, -1), (high, 1)):
        value = Fraction(_context(bits).ln(exact_decimal(Fraction(end, 1 << bits))))
        ends.append(value + sign * abs(value) / (1 << bits))
    return ends[0], ends[1]
