"""Comparison of state tensors: budgets by precision, special values first, the place of the worst element."""

import math

import pytest
import torch

from dsv4_conformance.errors import HarnessError
from dsv4_conformance.numerics.state import BFLOAT16_DERIVATION, FLOAT32_DERIVATION, close


def want() -> torch.Tensor:
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
    x[1, 2] = 8.0
    return x


# Kills: a budget per element or per row, another constant, a relative error.
@pytest.mark.parametrize(("error", "passes"), [(7.9e-5, True), (8.1e-5, False), (-8.1e-5, False)])
def test_float32_may_err_by_a_hundred_thousandth_of_the_largest_value(error: float, passes: bool) -> None:
    got = want()
    got[2, 1] += error
    verdict = close("entries", got, want())
    assert verdict.passed is passes and verdict.derivation == FLOAT32_DERIVATION
    assert verdict.error == pytest.approx(abs(error)) and verdict.ratio == pytest.approx(abs(error) / 8e-5)
    assert verdict.place == (2, 1) and "row 2, element 1" in verdict.sentence()


# Kills: special values compared after errors, NaN that passes, -inf taken for +inf.
@pytest.mark.parametrize(
    ("given", "right", "said"),
    [
        (math.nan, 0.5, "nan where 0.5 is right"),
        (math.inf, -math.inf, "inf where -inf is right"),
        (0.5, math.nan, "0.5 where nan is right"),
        (-math.inf, 0.25, "-inf where 0.25 is right"),
    ],
)
def test_special_values_must_stand_where_they_are_right(given: float, right: float, said: str) -> None:
    got, exact = want(), want()
    got[0, 0] += 5.0
    got[1, 3], exact[1, 3] = given, right
    verdict = close("entries", got, exact)
    assert not verdict.passed and math.isinf(verdict.ratio)
    assert verdict.sentence() == f"entries: {said} at row 1, element 3"


# Kills: an infinite budget where the truth holds an infinity; equal special values that count as errors.
def test_equal_special_values_are_right_and_set_no_scale() -> None:
    exact = want()
    exact[0, 1], exact[0, 2], exact[0, 3] = math.inf, -math.inf, math.nan
    assert close("entries", exact.clone(), exact).ratio == 0
    off = exact.clone()
    off[2, 3] += 1e-3
    assert not close("entries", off, exact).passed


# Kills: zeros that allow anything, an empty tensor that fails.
def test_zeros_are_exact_and_nothing_is_right() -> None:
    zero = torch.zeros(2, 3, dtype=torch.float64)
    assert close("x", zero.float(), zero).passed
    verdict = close("x", zero + 1e-30, zero)
    assert not verdict.passed and "must be exact" in verdict.sentence()
    assert close("x", torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.float64)).passed


# Kills: the whole output's error or magnitude for every row, no allowance for the last rounding.
def test_bfloat16_may_err_by_twice_its_reference_in_the_row_and_one_ulp() -> None:
    exact = want()
    reference = exact.clone()
    reference[0, 0] += 0.1  # row 0: magnitude 1, ulp 2**-7
    budget = close("o", exact, exact, "bfloat16", reference)
    assert budget.passed and budget.derivation == BFLOAT16_DERIVATION
    for row in range(3):
        ulp = 2.0 ** (math.floor(math.log2(float(exact[row].abs().max()))) - 7)
        allowed = 2 * max(0.1 if row == 0 else 0.0, ulp / 2) + ulp
        for factor, passes in ((0.99, True), (1.01, False)):
            got = exact.clone()
            got[row, 1] += allowed * factor
            assert close("o", got, exact, "bfloat16", reference).passed is passes
    with pytest.raises(HarnessError, match="reference"):
        close("o", exact, exact, "bfloat16")


# Kills: broadcasting of a wrong shape; the place of an element of a tensor with heads.
def test_shapes_must_agree_and_places_name_every_axis() -> None:
    exact = torch.ones(2, 3, 4, dtype=torch.float64)
    with pytest.raises(HarnessError, match="cannot be compared"):
        close("o", exact[:1], exact)
    got = exact.clone()
    got[1, 2, 3] = 2
    assert "row 1, element [2, 3]" in close("o", got, exact).sentence()
