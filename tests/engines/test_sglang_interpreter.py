"""Triton's interpreter, corrected, against plain torch; run by `tox run -e sglang-0.5.23`.

Each test fails on the interpreter as it is delivered: the mutant it kills is its own correction left out.
"""

# mypy: disable-error-code="untyped-decorator"
from typing import Any

import pytest
import torch
from torch import Tensor

from dsv4_conformance.implementations import triton_interpreter

triton_interpreter.start()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

FLOATS = torch.cat(
    (
        torch.tensor(
            [0.0, -0.0, 1.0, 31.66, 15.99, 1.9999, 2.0**-9, 2.0**-10, 3 * 2.0**-11, 448.0, 464.0, 465.0, 1e30]
        ),
        torch.tensor([1 + 2.0**-9, 1 + 2.0**-8, 1 + 3 * 2.0**-9, -(1 + 2.0**-8), 2.0**-127, 3.0e38, 7e-6]),
        torch.randn(492, generator=torch.Generator().manual_seed(5)) * 20,
    )
)
"""512 values: halfway between two bf16, carries of a mantissa, fp8 subnormals, what does not fit."""
FP8 = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@triton.jit
def cast_kernel(source, target, N: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, N)
    tl.store(target + place, tl.load(source + place).to(target.dtype.element_ty))


@triton.jit
def arithmetic_kernel(a, b, sums, products, quotients, larger, N: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, N)
    left, right = tl.load(a + place), tl.load(b + place)
    tl.store(sums + place, left + right)
    tl.store(products + place, left * right)
    tl.store(quotients + place, (left - right).to(tl.bfloat16))
    tl.store(larger + place, (left > right).to(tl.int32))


@triton.jit
def dot_kernel(a, b, out, N: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    done = tl.dot(tl.load(a + row * N + column), tl.load(b + row * N + column))
    tl.store(out + row * N + column, done)


@triton.jit
def loop_kernel(start, stop, out):  # type: ignore[no-untyped-def]
    for number in range(tl.load(start), tl.load(stop), 3):
        tl.store(out + number.to(tl.int64), number * 2)  # type: ignore[attr-defined]


@triton.autotune(configs=[triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def tuned_kernel(out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, BLOCK + place, mask=place < n)


def cast(values: Tensor, to: torch.dtype) -> Tensor:
    out = torch.empty(len(values), dtype=to)
    cast_kernel[(1,)](values, out, N=len(values))
    return out


def same(got: Tensor, right: Tensor) -> bool:
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[got.element_size()]
    return torch.equal(got.view(kind), right.view(kind))


# Kills: float32 cut to bf16, and float64 and integers whose numbers become bits.
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16], ids=str)
def test_casts_to_bf16_round_to_the_nearest_even(kind: torch.dtype) -> None:
    values = FLOATS.clamp(-6e4, 6e4).to(kind)
    assert same(cast(values, torch.bfloat16), values.to(torch.bfloat16))
    assert same(cast(torch.arange(512, dtype=torch.int32), torch.bfloat16), torch.arange(512).to(torch.bfloat16))


# Kills: 31.66 -> 16; overflow that does not saturate.
@pytest.mark.parametrize("name", FP8)
def test_casts_to_fp8_keep_carries_and_saturate(name: str) -> None:
    top = torch.finfo(FP8[name]).max
    got = cast(FLOATS, FP8[name])
    assert same(got, FLOATS.clamp(-top, top).to(FP8[name]))
    assert float(got[3].float()) == 32.0


# Kills: NaN codes that are numbers, scaled subnormals.
@pytest.mark.parametrize("name", FP8)
def test_every_fp8_code_is_read_as_what_it_is(name: str) -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(FP8[name])
    for to in (torch.float32, torch.bfloat16):
        got, right = cast(codes, to), codes.to(torch.float32).to(to)
        assert torch.equal(got.isnan(), right.isnan())
        assert torch.equal(got[~got.isnan()], right[~right.isnan()])


# Kills: sums, products, differences and comparisons of the bits in uint16.
def test_arithmetic_of_bf16_is_that_of_its_numbers() -> None:
    a, b = FLOATS.clamp(-1e4, 1e4).to(torch.bfloat16), FLOATS.roll(7).clamp(-1e4, 1e4).to(torch.bfloat16)
    done = [torch.empty(512, dtype=torch.bfloat16) for _ in range(3)]
    larger = torch.empty(512, dtype=torch.int32)
    arithmetic_kernel[(1,)](a, b, *done, larger, N=512)
    for got, right in zip(done, (a + b, a * b, a - b), strict=True):
        assert same(got, right)
    assert torch.equal(larger, (a > b).to(torch.int32))


# Kills: a product of bits; products rounded before they are summed.
def test_dots_of_bf16_are_summed_in_float32() -> None:
    a, b = (FLOATS.roll(place)[:256].clamp(-100, 100).view(16, 16).to(torch.bfloat16) for place in (0, 100))
    out = torch.empty(16, 16)
    dot_kernel[(1,)](a, b, out, N=16)
    assert torch.allclose(out, a.float() @ b.float(), rtol=1e-5, atol=1e-3)


# Kills: loop variables without a type.
def test_a_loop_over_loaded_bounds_counts_in_tensors() -> None:
    out = torch.zeros(12, dtype=torch.int32)
    loop_kernel[(1,)](torch.tensor([2], dtype=torch.int32), torch.tensor([11], dtype=torch.int32), out)
    assert out.tolist() == [0, 0, 4, 0, 0, 10, 0, 0, 16, 0, 0, 0]


# Kills: an autotuner that looks for a GPU; a grid that does not follow the configuration that is taken.
def test_a_tuned_kernel_runs_with_its_largest_blocks() -> None:
    out = torch.zeros(40, dtype=torch.int32)

    def grid(meta: Any) -> tuple[int]:
        return (triton.cdiv(40, meta["BLOCK"]),)

    tuned_kernel[grid](out, 40)
    assert torch.equal(out, 32 + torch.arange(40, dtype=torch.int32))
