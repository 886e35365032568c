"""Counter-based random words in 32-bit integer arithmetic: element i of a stream depends on (key, i) alone.

The arithmetic wraps modulo 2**32 in torch's int32 on every device, so a case has the same bits on CPU and GPU, in any
process and in any order of generation. Conversions to floating point come last and are exact (bit patterns).
"""

import hashlib
import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

_WEYL, _FIRST, _SECOND = 0x9E3779B1, 0x7FEB352D, 0x846CA68B
"""Odd multipliers: a golden-ratio sequence, then two avalanche rounds."""


def _i32(value: int) -> int:
    """The int32 with the same bits as ``value`` modulo 2**32."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def stream_key(root: int, name: str) -> tuple[int, int]:
    """Two 32-bit keys of stream ``name`` of a case whose digest is ``root``."""
    raw = hashlib.sha256(f"{root}/{name}".encode()).digest()
    return int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:8], "little")


def _shifted_xor(x: Tensor, bits: int) -> None:
    """``x ^= x >> bits`` with a logical shift, in place."""
    x.bitwise_xor_((x >> bits).bitwise_and_((1 << (32 - bits)) - 1))


def words(root: int, name: str, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    """Random int32 ``shape``, uniform over all 32-bit patterns.

    A Weyl sequence through two keyed multiply-xorshift rounds; tests/cases check bit balance, serial and cross-stream
    correlation. Not cryptographic, and need not be.
    """
    low, high = stream_key(root, name)
    count = math.prod(shape)
    if torch.device(device).type == "cuda" and (fused := _fused()) is not None:
        x = torch.empty(shape, dtype=torch.int32, device=device)
        if count:
            fused(x, low, high)
        return x
    x = torch.arange(count, dtype=torch.int32, device=device)
    x.mul_(_i32(_WEYL)).add_(_i32(low))
    _shifted_xor(x, 16)
    x.mul_(_i32(_FIRST)).bitwise_xor_(_i32(high))
    _shifted_xor(x, 15)
    x.mul_(_i32(_SECOND))
    _shifted_xor(x, 16)
    return x.view(shape)


def host_words(root: int, name: str, count: int) -> "npt.NDArray[np.uint32]":
    """The same stream as uint32 ``(count,)`` on the host: for per-row draws, where a device launch costs more."""
    low, high = stream_key(root, name)
    x = np.arange(count, dtype=np.uint32) * np.uint32(_WEYL) + np.uint32(low)
    x ^= x >> np.uint32(16)
    x = x * np.uint32(_FIRST) ^ np.uint32(high)
    x ^= x >> np.uint32(15)
    x *= np.uint32(_SECOND)
    return x ^ (x >> np.uint32(16))


@cache
def _fused() -> Callable[[Tensor, int, int], None] | None:
    """The one-launch form on CUDA, or None where Triton is absent. runner/session.py proves it equal before use."""
    try:
        from dsv4_conformance.cases.generator_cuda import mix
    except ImportError:
        return None
    return mix


def below(root: int, name: str, shape: tuple[int, ...], bound: int, device: torch.device | str) -> Tensor:
    """Random int64 ``shape`` in ``[0, bound)`` (bias below 2**-31 * bound)."""
    return words(root, name, shape, device).to(torch.int64).bitwise_and_(0x7FFFFFFF) % bound


def bf16_values(random: Tensor, base: int) -> Tensor:
    """Reinterpret int32 words as pairs of bf16: random sign and mantissa, 2 random low exponent bits above ``base``.

    ``base`` is a biased exponent divisible by 4: magnitudes are log-uniform in ``[2**(base-127), 2**(base-123))``.
    Consumes ``random`` (in place); last dim doubles.
    """
    pattern = base << 7
    random.bitwise_and_(_i32(0x81FF81FF)).bitwise_or_(_i32(pattern << 16 | pattern))
    return random.view(torch.bfloat16)
