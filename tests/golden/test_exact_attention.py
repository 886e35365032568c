"""The exact attention against values known in closed form.

Mutants that fail here: sink scaled, or added to lse; -inf sink as a number; lse of base 2; value and key dims mixed;
cancellation left open; a lower weight used for the upper end of the numerator; P rounded once for both phases.
"""

import math
from fractions import Fraction

import pytest

from dsv4_conformance.golden.exact.attention import Attended, Head, Keys, _quotient, attended, head_of
from dsv4_conformance.golden.exact.budgets import Rules, allowed
from dsv4_conformance.golden.exact.numbers import GRID, Undecided

RULES = Rules((0.0, 0.37), 2.0)


def vector(*values: float) -> tuple[int, ...]:
    """512 numbers on the grid: the given ones, then 0."""
    return tuple(int(Fraction(x) * (1 << GRID)) for x in values) + (0,) * (512 - len(values))


def answer(q: tuple[int, ...], keys: list[tuple[int, ...]], sink: float | None, scale: float = 1.0) -> Attended:
    return attended(head_of(q, Keys(keys), sink, scale))


@pytest.mark.parametrize("sink", [None, -math.inf])
def test_one_key_is_returned_as_it_is(sink: float | None) -> None:
    got = answer(vector(2.0, 1.0), [vector(3.0, -0.75)], sink, scale=0.5)
    assert got.out[:3] == [3.0, -0.75, 0.0]
    assert got.lse == got.max_logits == (2 * 3 - 0.75) / 2


def test_zero_query_averages_keys_and_sink() -> None:
    got = answer(vector(), [vector(1.0, 5.0), vector(3.0, -4.0)], 0.0)
    assert got.out[:2] == [4 / 3, 1 / 3]
    assert got.lse == 0.6931471805599453  # ln 2
    assert got.max_logits == 0.0


def test_finite_sink_takes_its_share_and_stays_out_of_lse() -> None:
    # 1 / (1 + e**-2) = 0.8807970779778824440597...; the scale multiplies the key's logit 3, not the sink.
    got = answer(vector(1.0), [vector(3.0, 1.0)], -0.5, scale=0.5)
    assert got.out[1] == 0.8807970779778824
    assert got.lse == 1.5


def test_infinite_sink_takes_everything() -> None:
    got = answer(vector(1.0), [vector(3.0), vector(1.0)], math.inf)
    assert got.out == [0.0] * 512
    assert got.max_logits == 3.0
    assert got.lse == 3.1269280110429727  # 3 + ln(1 + e**-2)


def test_values_that_cancel_give_exactly_zero() -> None:
    keys = [vector(1.0, 0.5), vector(2.0, 0.25), vector(1.0, -0.5), vector(2.0, -0.25)]
    got = answer(vector(1.0), keys, None)
    assert str(got.out[1]) == "0.0"  # not -0.0
    assert got.out[0] == pytest.approx((1 + 2 * math.e) / (1 + math.e), rel=1e-15)


@pytest.mark.parametrize(("q", "k"), [(2.0**-30, 2.0**-30), (2.0**-81, 3 * 2.0**-81)])
def test_values_that_almost_cancel_keep_full_precision(q: float, k: float) -> None:
    # Logits 0 and d = q k, values 1 and -1: out = (1 - e**d) / (1 + e**d) = -tanh(d / 2), which is -d / 2 to 2**-119.
    got = answer(vector(0.0, 0.0, q), [vector(1.0), vector(-1.0, 0.0, k)], None)
    assert got.out[0] == -q * k / 2


@pytest.mark.parametrize(("bottom", "top"), [(3, 3), (-3, -3), (0, 3), (-3, 0)])
def test_an_open_denominator_leaves_the_quotient_open(bottom: int, top: int) -> None:
    with pytest.raises(Undecided):
        _quotient(bottom << GRID, top << GRID, 1, 2)
    assert _quotient(3 << GRID, 3 << GRID, 2, 2) == 1.5


def test_duplicates_count_once_per_occurrence() -> None:
    twice = answer(vector(1.0), [vector(0.0, 1.0), vector(0.0, 1.0), vector(0.0, 4.0)], None)
    assert twice.out[1] == 2.0
    assert twice.lse == 1.0986122886681098  # ln 3


def test_distant_keys_neither_underflow_nor_stall() -> None:
    got = answer(vector(1.0), [vector(0.0, 1.0), vector(-900.0, 1.0)], None)
    assert got.out[:2] == [0.0, 1.0]
    assert got.lse == 0.0


def test_logit_budget_is_the_documented_formula() -> None:
    head = head_of(vector(8.0), Keys([vector(4.0), vector(-5.0), vector(1.0), vector(0.0)]), None, 1.0)
    room = allowed(head, attended(head), RULES)
    unit = 2.0**-24
    assert room.max_logits == pytest.approx(unit * (4 * math.sqrt(512) * 40 + 8 + 2 + 2 * 32), rel=1e-15)
    assert room.lse == pytest.approx(room.max_logits, rel=1e-6)


def test_small_logits_count_as_one_in_their_budget() -> None:
    head = head_of(vector(0.5), Keys([vector(0.5)]), None, 1.0)
    want = 2.0**-24 * (4 * math.sqrt(512) * 1 + 8 + 1 + 2 * 0.25)
    assert allowed(head, attended(head), RULES).max_logits == pytest.approx(want, rel=1e-15)


def test_out_budget_is_twice_the_ideal_reference_plus_an_ulp() -> None:
    # Logits 0 and -1/4 without a sink. Phase 0: P = 1 and bf16(e**-0.25) = 199/256.
    head = Head(Keys([vector(1.0), vector(-1.0)]), [Fraction(0), Fraction(-1, 4)], None)
    right = attended(head)
    weight = math.exp(-0.25)
    plain = _bf16((1 - 199 / 256) / (1 + weight))
    # Phase 0.37: both are rounded, e**-0.37 = 0.69073 to 177/256 and e**-0.62 = 0.53794 to 138/256.
    other = _bf16((177 - 138) / 256 / (math.exp(-0.37) + math.exp(-0.62)))
    errors = [abs(reference - right.out[0]) for reference in (plain, other)]
    assert errors[0] != errors[1]
    ulp = 2.0**-4 / 128  # |out| is 0.1244
    assert right.out[0] == pytest.approx((1 - weight) / (1 + weight), rel=1e-15)
    for phases in ((0.0,), (0.37,), (0.0, 0.37)):
        want = 2 * max(e for e, phase in zip(errors, (0.0, 0.37), strict=True) if phase in phases) + ulp
        assert allowed(head, right, Rules(phases, 2.0)).out == pytest.approx(want, rel=1e-12)


def test_infinite_sink_allows_no_error() -> None:
    head = head_of(vector(1.0), Keys([vector(3.0)]), math.inf, 1.0)
    assert allowed(head, attended(head), RULES).out == 0.0


def _bf16(x: float) -> float:
    """Nearest bf16 of a positive number below 1, not a tie."""
    step = 2.0 ** (math.frexp(x)[1] - 8)
    return round(x / step) * step
