"""Rows as a cache holds them: what the rounding contract leaves open, and what it does not."""

import pytest
import torch

from dsv4_conformance.errors import HarnessError
from dsv4_conformance.numerics.stored import stored
from dsv4_conformance.oracle.kv_format import Floor, scale_exponent
from dsv4_conformance.oracle.rounding import bf16, cache_row, e4m3, power_scaled_fp8


def rows(width: int, gain: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(width)
    spread = torch.exp2(-8 * torch.rand(40, width, generator=generator, dtype=torch.float64))
    return torch.randn(40, width, generator=generator, dtype=torch.float64) * spread * gain


def written(x: torch.Tensor, floor: Floor = "amax_1e-4", first: bool = True, up: int = 0) -> torch.Tensor:
    """What a writer makes of ``x (n, 512)``: ``first``: bf16 before fp8; ``up``: added to the scale's exponent."""
    low = bf16(x)
    tiles = (low if first else x)[:, :448].reshape(-1, 7, 64)
    scale = torch.exp2((scale_exponent(tiles.abs().amax(-1, keepdim=True), floor) + up).to(torch.float64))
    return torch.cat((e4m3((tiles / scale).clamp(-448, 448)).mul(scale).flatten(1), low[:, 448:]), 1)


def test_what_the_contract_makes_passes_and_records_no_error() -> None:
    for x, made in ((rows(512), cache_row(rows(512))), (rows(128), power_scaled_fp8(bf16(rows(128))))):
        verdict = stored("entries", made.float(), x)
        assert verdict.passed and verdict.ratio == 0 and verdict.budget == 0


# Kills: a slack that is not there: float32 writers fall on either side of a boundary.
def test_a_value_on_a_boundary_may_fall_to_either_side() -> None:
    x = rows(512)
    x[0, 1] = 1 + 17 / 256  # halfway from 1.0625, which fp8 rounds down, to the next bf16, which it rounds up
    for value, right in ((1.0, True), (1.125, True), (1.25, False), (1.0625, False)):
        got = cache_row(x)
        got[0, 1] = value
        assert stored("entries", got, x).passed == right


# Kills: half a step allowed everywhere; another floor, a missing bf16, a larger scale, truncation, flushed subnormals.
@pytest.mark.parametrize("mistake", ["no bf16", "scale", "floor", "truncated", "flushed", "rope in fp8"])
def test_another_rounding_fails(mistake: str) -> None:
    x = rows(512, 2.0**-9 if mistake == "floor" else 1.0)
    right = written(x)
    assert stored("entries", right, x).passed
    tiles = right[:, :448].reshape(-1, 7, 64)
    flushed = tiles.masked_fill(tiles.abs() < tiles.abs().amax(-1, keepdim=True) * 2.0**-13, 0).flatten(1)
    wrong = {
        "no bf16": lambda: written(x, first=False),
        "scale": lambda: written(x, up=3),
        "floor": lambda: written(x, floor="scale_1e-4"),
        "truncated": lambda: written(x * (1 - 2.0**-6)),
        "flushed": lambda: torch.cat((flushed, right[:, 448:]), 1),
        "rope in fp8": lambda: torch.cat((right[:, :448], e4m3(right[:, 448:].clamp(-448, 448))), 1),
    }[mistake]()
    verdict = stored("entries", wrong, x)
    assert not verdict.passed and "where the value must be exact" in verdict.sentence()
    if mistake == "floor":
        assert stored("entries", wrong, x, "scale_1e-4").passed


def test_a_value_that_is_no_number_is_named() -> None:
    x = rows(128)
    got = power_scaled_fp8(bf16(x))
    got[3, 5] = torch.nan
    verdict = stored("index keys", got, x)
    assert not verdict.passed and verdict.place == (3, 5) and "nan where" in verdict.sentence()


def test_no_rows_are_right_and_other_widths_are_none_of_a_cache() -> None:
    assert stored("entries", torch.zeros(0, 512), torch.zeros(0, 512)).passed
    with pytest.raises(HarnessError, match="no rows of a cache"):
        stored("entries", torch.zeros(2, 64), torch.zeros(2, 64))
