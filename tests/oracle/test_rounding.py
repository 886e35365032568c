"""Roundings by arithmetic, against the codes of oracle/kv_format.py and the bytes of a page."""

import math

import pytest
import torch
from torch import Tensor

from dsv4_conformance.oracle.kv_format import (
    e4m3_code,
    e4m3_value,
    pack,
    quantise_index_keys,
    unpack,
)
from dsv4_conformance.oracle.rounding import bf16, cache_row, e4m3, scaled_fp8
from tests.oracle.small_layer import draws


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Kills: truncation, ties away from zero, a rounding by way of float32 (the third), subnormals flushed.
def test_bf16_rounds_once_and_ties_to_even() -> None:
    ulp = 2.0**-7
    values = doubles(1 + ulp / 2, 1 + 3 * ulp / 2, 1 + ulp / 2 + 2.0**-40, -1 - ulp / 2 - 2.0**-40, 0.0, 2 - ulp / 4)
    want = doubles(1.0, 1 + 2 * ulp, 1 + ulp, -1 - ulp, 0.0, 2.0)
    assert torch.equal(bf16(values), want)
    assert torch.equal(bf16(doubles(2.0**-133, 2.0**-134, 2.0**-133 * 1.5)), doubles(2.0**-133, 0.0, 2.0**-132))


# Kills: a rounding to another width.
def test_bf16_is_torchs_for_float32() -> None:
    x = draws(3).normal(5000) * torch.exp2(draws(4).normal(5000, size=30.0))
    assert torch.equal(bf16(x), x.to(torch.bfloat16).to(torch.float64))


# Kills: a step of the wrong binade, a step that shrinks below 2 ** -6, ties away from zero.
def test_e4m3_is_the_nearest_code_everywhere() -> None:
    every = e4m3_value(torch.arange(127, dtype=torch.uint8))  # 0 to 448
    middle = (every[1:] + every[:-1]) / 2
    near = torch.cat([middle * (1 + shift) for shift in (-(2.0**-50), 0, 2.0**-50)])
    values = torch.cat((every, near, draws(5).normal(4000, size=80.0).clamp(-448, 448).to(torch.float64)))
    values = torch.cat((values, -values))
    assert torch.equal(e4m3(values), e4m3_value(e4m3_code(values)))
    assert math.isnan(e4m3(doubles(math.nan)).item())


# Kills: nope quantised before bf16, another floor, scales per row, rope dims quantised or kept exact.
def test_a_cache_row_is_what_a_page_gives_back() -> None:
    size = torch.exp2(draws(6).normal(20, 1, size=6.0))
    rows = (draws(7).normal(20, 512) * size).to(torch.float64)
    rows[3] = 0
    rows[4, :64] = 1e-6
    pages = torch.zeros(1, 64 * 585 + 36, dtype=torch.uint8).as_strided((1, 64, 1, 584), (37440, 584, 584, 1))
    slots = torch.randperm(64, generator=torch.Generator().manual_seed(1))[:20]
    pack(rows.to(torch.bfloat16), slots, pages)
    assert torch.equal(cache_row(rows), unpack(pages, slots).to(torch.float64))


# Kills: a scale that is a power of two or stays float64, another floor.
@pytest.mark.parametrize("size", [1.0, 1e-5, 3e4])
def test_scaled_fp8_is_what_an_index_row_gives_back(size: float) -> None:
    vectors = draws(8).normal(30, 128, size=size)
    codes, scale = quantise_index_keys(vectors)
    want = e4m3_value(codes) * scale.to(torch.float64)[:, None]
    assert torch.equal(scaled_fp8(vectors), want)
    assert torch.equal(scaled_fp8(vectors.view(5, 6, 128)), want.view(5, 6, 128))
