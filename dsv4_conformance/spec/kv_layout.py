"""Byte layouts of the caches as data (spec §9). No torch, no bytes touched: only where things stand.

A main-cache page holds P tokens: first all data rows (448 fp8 values, then 64 bf16 values), then all scale rows
(7 power-of-two scale bytes and one pad byte), then padding up to a multiple of 576 bytes. A token's scales are
therefore not beside its data, although the 584-byte view that kernels take suggests it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from dsv4_conformance.errors import BadInput

FP8_MAX = 448
"""Largest finite float8_e4m3fn value; the divisor of every scale rule."""


@dataclass(frozen=True)
class Fp8Dialect:
    """How an e4m3 byte is read: exponent ``bias``, ``largest`` finite value, and the codes that are NaN.

    OCP's e4m3fn has two NaNs and -0; e4m3fnuz has one NaN, at the place of -0: a negative number that underflows is
    0x00 there. https://github.com/sgl-project/sglang/pull/28455
    """

    name: str
    bias: int
    largest: int
    nans: tuple[int, ...]


E4M3FN = Fp8Dialect("e4m3fn", 7, 448, (0x7F, 0xFF))
E4M3FNUZ = Fp8Dialect("e4m3fnuz", 8, 240, (0x80,))
DIALECTS = {dialect.name: dialect for dialect in (E4M3FN, E4M3FNUZ)}

UE8M0_BIAS = 127
"""A scale byte e means 2 ** (e - 127)."""

UE8M0_NAN = 255
"""The scale byte that means NaN; writers never produce it."""

WINDOW_PAGE = 256
"""Page size of the sliding-window (C0) pool, and of the full-token pages that slot mapping starts from (spec §9.4)."""

C4_PAGE = 64
C128_PAGE = 2


class Ue8m0Floor(StrEnum):
    """Floor rules of the scale exponent in use (spec §9.2); they differ in bytes for small tiles only.

    The floor keeps an all-zero tile finite: the model's writers clamp the tile maximum at 1e-4, FlashMLA's test
    quantiser clamps the scale at 1e-4, SGLang's Triton reference packer clamps the tile maximum at 1e-8.
    """

    AMAX_1E_4 = "amax_1e-4"
    SCALE_1E_4 = "scale_1e-4"
    AMAX_1E_8 = "amax_1e-8"

    @property
    def min_scale(self) -> float:
        """Smallest scale before rounding up to a power of two."""
        return {"amax_1e-4": 1e-4 / FP8_MAX, "scale_1e-4": 1e-4, "amax_1e-8": 1e-8 / FP8_MAX}[self.value]

    @property
    def min_byte(self) -> int:
        """Smallest scale byte a writer under this rule produces."""
        return {"amax_1e-4": 105, "scale_1e-4": 114, "amax_1e-8": 92}[self.value]

    def smallest_byte(self, top: int = FP8_MAX) -> int:
        """The same where scales are divided by ``top``."""
        low = {"amax_1e-4": 1e-4 / top, "scale_1e-4": 1e-4, "amax_1e-8": 1e-8 / top}[self.value]
        return UE8M0_BIAS + math.ceil(math.log2(low))


@dataclass(frozen=True)
class PageLayout:
    """Offsets within one main-cache page of ``page_size`` tokens, all in bytes from the page's start (spec §9.1).

    Raises BadInput if ``page_size`` is not positive.
    """

    page_size: int

    NOPE: ClassVar[int] = 448
    ROPE: ClassVar[int] = 64
    HEAD_DIM: ClassVar[int] = 512
    TILE: ClassVar[int] = 64
    TILES: ClassVar[int] = 7
    DATA_BYTES: ClassVar[int] = 576
    SCALE_BYTES: ClassVar[int] = 8
    TOKEN_BYTES: ClassVar[int] = 584
    PAGE_ALIGNMENT: ClassVar[int] = 576

    def __post_init__(self) -> None:
        if self.page_size < 1:
            raise BadInput(f"page_size is {self.page_size}; use a positive number of tokens per page.")

    @property
    def raw_bytes(self) -> int:
        """Bytes that mean something: TOKEN_BYTES per token."""
        return self.TOKEN_BYTES * self.page_size

    @property
    def page_bytes(self) -> int:
        """Distance between pages: raw_bytes rounded up to a multiple of 576."""
        return -(-self.raw_bytes // self.PAGE_ALIGNMENT) * self.PAGE_ALIGNMENT

    def data_offset(self, i: int) -> int:
        """Start of token ``i``'s 448 fp8 values. Raises IndexError outside the page."""
        return self.DATA_BYTES * self._token(i)

    def rope_offset(self, i: int) -> int:
        """Start of token ``i``'s 64 little-endian bf16 values. Raises IndexError outside the page."""
        return self.data_offset(i) + self.NOPE

    def scale_offset(self, i: int, k: int = 0) -> int:
        """Scale byte of token ``i``'s tile ``k`` (dims 64k to 64k+63); k = 7 is the pad byte. Raises IndexError."""
        if not 0 <= k < self.SCALE_BYTES:
            raise IndexError(f"scale byte {k} of a token; a token has scale bytes 0 to {self.SCALE_BYTES - 1}")
        return self.DATA_BYTES * self.page_size + self.SCALE_BYTES * self._token(i) + k

    def _token(self, i: int) -> int:
        if not 0 <= i < self.page_size:
            raise IndexError(f"token {i} of a page of {self.page_size}")
        return i


@dataclass(frozen=True)
class IndexKeyLayout:
    """Offsets within one page of 64 index keys, in bytes: all values first, then all scales (spec §9.3).

    ``value_bytes`` and ``scale_bytes`` are per key; ``block`` is the number of dims that share one scale.
    """

    value_bytes: int
    scale_bytes: int
    block: int
    page_size: int = C4_PAGE

    DIM: ClassVar[int] = 128

    @property
    def key_bytes(self) -> int:
        """Bytes per key, scales included."""
        return self.value_bytes + self.scale_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes per page; index-key pages carry no padding."""
        return self.key_bytes * self.page_size

    def value_offset(self, i: int) -> int:
        """Start of key ``i``'s values. Raises IndexError outside the page."""
        return self.value_bytes * self._key(i)

    def scale_offset(self, i: int) -> int:
        """Start of key ``i``'s scales. Raises IndexError outside the page."""
        return self.value_bytes * self.page_size + self.scale_bytes * self._key(i)

    def _key(self, i: int) -> int:
        if not 0 <= i < self.page_size:
            raise IndexError(f"key {i} of a page of {self.page_size}")
        return i


INDEX_KEY_FP8 = IndexKeyLayout(value_bytes=128, scale_bytes=4, block=128)
"""128 e4m3 values and one fp32 scale per key: 132 bytes, the default."""

INDEX_KEY_FP4 = IndexKeyLayout(value_bytes=64, scale_bytes=4, block=32)
"""128 packed e2m1 values (even dim in the low nibble) and four UE8M0 bytes per key: 68 bytes, optional."""

INDEX_KEY_AMAX_FLOOR = 1e-4
"""Floor of a key's maximum before its fp32 scale, max(amax, 1e-4) / 448 (spec §9.3)."""


def compressed_page_size(ratio: int) -> int:
    """Entries per page of the compressed pool of this ratio, so that 256 tokens fill one page: 64 or 2 (spec §9.4).

    Raises BadInput for any ratio but 4 and 128.
    """
    if ratio not in (4, 128):
        raise BadInput(f"ratio {ratio} has no compressed cache; use 4 or 128.")
    return WINDOW_PAGE // ratio
