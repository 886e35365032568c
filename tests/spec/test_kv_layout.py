"""Byte offsets against the published tables, and the floor rules against the formula."""

import math

import pytest

from dsv4_conformance.errors import BadInput
from dsv4_conformance.spec.kv_layout import (
    C4_PAGE,
    C128_PAGE,
    FP8_MAX,
    INDEX_KEY_FP4,
    INDEX_KEY_FP8,
    UE8M0_BIAS,
    UE8M0_NAN,
    WINDOW_PAGE,
    PageLayout,
    Ue8m0Floor,
    compressed_page_size,
)


@pytest.mark.parametrize(
    ("page_size", "scales_at", "raw", "page"),
    [(256, 147456, 149504, 149760), (64, 36864, 37376, 37440), (2, 1152, 1168, 1728), (576, 331776, 336384, 336384)],
)
def test_published_page_sizes(page_size: int, scales_at: int, raw: int, page: int) -> None:
    layout = PageLayout(page_size)
    assert layout.scale_offset(0) == scales_at
    assert (layout.raw_bytes, layout.page_bytes) == (raw, page)


def test_parts_of_a_token_add_up() -> None:
    assert (PageLayout.NOPE + PageLayout.ROPE, PageLayout.TILE * PageLayout.TILES) == (512, 448)
    assert (PageLayout.HEAD_DIM, PageLayout.TILE) == (512, 64)
    assert PageLayout.DATA_BYTES == PageLayout.NOPE + 2 * PageLayout.ROPE
    assert PageLayout.SCALE_BYTES == PageLayout.TILES + 1
    assert PageLayout.TOKEN_BYTES == PageLayout.DATA_BYTES + PageLayout.SCALE_BYTES == 584


def test_fp8_constants() -> None:
    # largest e4m3fn value: exponent 8, mantissa 1.75 (1.875 is NaN)
    assert FP8_MAX == 1.75 * 2**8
    assert (UE8M0_BIAS, UE8M0_NAN) == (127, 255)


def test_offsets_of_one_token() -> None:
    layout = PageLayout(64)
    assert layout.data_offset(3) == 1728
    assert layout.rope_offset(3) == 2176
    assert [layout.scale_offset(3, k) for k in (0, 6, 7)] == [36888, 36894, 36895]


@pytest.mark.parametrize("page_size", [1, 2, 53, 64])
def test_meaningful_bytes_tile_the_page(page_size: int) -> None:
    layout = PageLayout(page_size)
    owned: list[int] = []
    for i in range(page_size):
        owned += range(layout.data_offset(i), layout.rope_offset(i) + 2 * PageLayout.ROPE)
        owned += range(layout.scale_offset(i, 0), layout.scale_offset(i, 7) + 1)
    assert sorted(owned) == list(range(layout.raw_bytes))
    assert layout.raw_bytes <= layout.page_bytes < layout.raw_bytes + 576
    assert layout.page_bytes % 576 == 0


def test_out_of_page_is_an_error() -> None:
    layout = PageLayout(2)
    with pytest.raises(IndexError, match="token 2 of a page of 2"):
        layout.data_offset(2)
    with pytest.raises(IndexError, match="token -1 of a page of 2"):
        layout.scale_offset(-1)
    with pytest.raises(IndexError, match="scale byte 8 of a token; a token has scale bytes 0 to 7"):
        layout.scale_offset(0, 8)
    with pytest.raises(BadInput, match="page_size is 0; use a positive number of tokens per page"):
        PageLayout(0)


def test_index_key_pages() -> None:
    assert (INDEX_KEY_FP8.key_bytes, INDEX_KEY_FP8.page_bytes) == (132, 8448)
    assert (INDEX_KEY_FP4.key_bytes, INDEX_KEY_FP4.page_bytes) == (68, 4352)
    assert [INDEX_KEY_FP8.value_offset(1), INDEX_KEY_FP8.scale_offset(0), INDEX_KEY_FP8.scale_offset(63)] == [
        128,
        8192,
        8444,
    ]
    assert [INDEX_KEY_FP4.value_offset(1), INDEX_KEY_FP4.scale_offset(1)] == [64, 4100]
    assert INDEX_KEY_FP8.DIM == 128
    # a key's scales cover its 128 dims
    assert INDEX_KEY_FP8.block * INDEX_KEY_FP8.scale_bytes // 4 == 128
    assert INDEX_KEY_FP4.block * INDEX_KEY_FP4.scale_bytes == 128
    with pytest.raises(IndexError):
        INDEX_KEY_FP8.value_offset(64)


@pytest.mark.parametrize(
    ("floor", "byte"), [("amax_1e-4", 105), ("scale_1e-4", 114), ("amax_1e-8", 92)], ids=lambda v: str(v)
)
def test_floor_bytes_follow_from_the_floor(floor: str, byte: int) -> None:
    rule = Ue8m0Floor(floor)
    assert rule.min_byte == byte
    # the least power of two that is not below the least scale
    assert 2.0 ** (byte - 127) / 2 < rule.min_scale <= 2.0 ** (byte - 127)
    assert math.ceil(math.log2(rule.min_scale)) + 127 == byte


def test_one_page_of_a_compressed_pool_covers_one_full_page() -> None:
    assert WINDOW_PAGE == 256
    assert [compressed_page_size(ratio) for ratio in (4, 128)] == [C4_PAGE, C128_PAGE] == [64, 2]
    with pytest.raises(BadInput, match="ratio 0 has no compressed cache; use 4 or 128"):
        compressed_page_size(0)
