"""The 584-byte KV page and the index-key page in float64, by definition (spec §9).

Everything here follows the byte tables and the quantisation rule; fp8 codes are made and read by arithmetic, not by a
library's cast (`dequantise` uses the cast for speed; tests prove it equal to the arithmetic on all 256 codes).
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from dsv4_conformance.spec.kv_layout import E4M3FN, WINDOW_PAGE, Fp8Dialect, PageLayout

Floor = Literal["amax_1e-4", "scale_1e-4", "amax_1e-8"]

E4M3_MAX = 448.0


@dataclass(frozen=True)
class Form:
    """What a writer's bytes mean: floor rule of the scale exponent, fp8 dialect, and the divisor ``top`` of scales."""

    floor: Floor = "amax_1e-4"
    dialect: Fp8Dialect = E4M3FN
    top: int = E4M3FN.largest


FORM = Form()
_NOPE, _TILE, _TILES = PageLayout.NOPE, PageLayout.TILE, PageLayout.TILES


def e4m3_value(codes: Tensor, dialect: Fp8Dialect = E4M3FN) -> Tensor:
    """float64 value of e4m3 codes (uint8, any shape): sign, 4 exponent bits of the dialect's bias, 3 mantissa bits."""
    code = codes.to(torch.int64)
    sign = 1.0 - 2.0 * ((code >> 7) & 1).to(torch.float64)
    exponent, mantissa = (code >> 3) & 15, (code & 7).to(torch.float64)
    normal = (1 + mantissa / 8) * torch.exp2((exponent - dialect.bias).to(torch.float64))
    value = sign * torch.where(exponent == 0, mantissa / 8 * 2.0 ** (1 - dialect.bias), normal)
    nan = torch.isin(code, torch.tensor(dialect.nans, device=code.device))
    return torch.where(nan, torch.nan, value)


def e4m3_code(x: Tensor, dialect: Fp8Dialect = E4M3FN) -> Tensor:
    """e4m3 code (uint8) of float64 values within the dialect's range, rounded to nearest even; NaN -> its first NaN.

    Where -0 would be the code of a NaN, a negative value that rounds to 0 is 0.
    """
    magnitude = x.abs()
    exponent = torch.frexp(magnitude.clamp(min=2.0 ** (1 - dialect.bias))).exponent - 1
    step = torch.exp2((exponent - 3).to(torch.float64))
    steps = torch.round(magnitude / step)  # 8..16 for normals, 0..8 below the smallest of them; half to even
    code = (exponent.to(torch.int64) + dialect.bias - 1) * 8 + steps.nan_to_num().to(torch.int64)
    negative = torch.signbit(x) if 0x80 not in dialect.nans else torch.signbit(x) & (code > 0)
    code = torch.where(torch.isnan(x), dialect.nans[0], code + 128 * negative.to(torch.int64))
    return code.to(torch.uint8)


def scale_exponent(amax: Tensor, floor: Floor = "amax_1e-4", top: int = E4M3FN.largest) -> Tensor:
    """``e = ceil(log2(s))``, int64, exact, with ``s`` the tile's scale, its maximum over ``top``, under the named floor
    rule (spec §9.2)."""
    amax = amax.to(torch.float64)
    if floor == "amax_1e-4":
        scale = amax.clamp(min=1e-4) / top
    elif floor == "scale_1e-4":
        scale = (amax / top).clamp(min=1e-4)
    else:
        scale = amax.clamp(min=1e-8) / top
    mantissa, exponent = torch.frexp(scale)
    return exponent.to(torch.int64) - (mantissa == 0.5).to(torch.int64)


def quantise(nope: Tensor, floor: Floor | Form = FORM) -> tuple[Tensor, Tensor]:
    """Codes uint8 ``(n, 448)`` and scale bytes uint8 ``(n, 7)`` of nope rows ``(n, 448)`` (spec §9.2)."""
    form = floor if isinstance(floor, Form) else Form(floor)
    tiles = torch.unflatten(nope.to(torch.float64), -1, (_TILES, _TILE))
    exponent = scale_exponent(tiles.abs().amax(-1), form.floor, form.top)
    scaled = tiles * torch.exp2(-exponent.to(torch.float64))[..., None]
    codes = e4m3_code(scaled.clamp(-form.top, form.top), form.dialect).flatten(-2)
    return codes, (exponent + 127).to(torch.uint8)


@cache
def _ue8m0(device: torch.device) -> Tensor:
    """bf16 value of each UE8M0 byte, exact: 2**(byte - 127), byte 255 = NaN."""
    table = torch.exp2(torch.arange(256, dtype=torch.float64) - 127)
    table[255] = torch.nan
    return table.to(torch.bfloat16).to(device)


def dequantise(data: Tensor, scales: Tensor, out: Tensor | None = None) -> Tensor:
    """Rows bf16 ``(..., 512)`` of data uint8 ``(..., 576)`` and scales uint8 ``(..., >= 7)``, in ``out`` if given.

    bf16 holds ``e4m3 * 2**e`` exactly wherever it neither overflows nor underflows (spec §9.2).
    """
    data = data.contiguous()
    rows = data.new_empty((*data.shape[:-1], PageLayout.HEAD_DIM), dtype=torch.bfloat16) if out is None else out
    codes = data.view(torch.float8_e4m3fn)[..., :_NOPE].to(torch.bfloat16)
    factor = _ue8m0(data.device)[scales[..., :_TILES].to(torch.int64)]
    tiles = (_TILES, _TILE)
    nope = rows[..., :_NOPE].view(*rows.shape[:-1], *tiles)
    torch.mul(codes.view(*rows.shape[:-1], *tiles), factor[..., None], out=nope)
    rows[..., _NOPE:] = data.view(torch.bfloat16)[..., _NOPE // 2 :]
    return rows


def page_views(pages: Tensor) -> tuple[Tensor, Tensor]:
    """Data ``(num_pages, P, 576)`` and scales ``(num_pages, P, 8)`` of a kernel view ``(num_pages, P, 1, 584)``."""
    num_pages, page_size = pages.shape[0], pages.shape[1]
    stride, start = pages.stride(0), pages.storage_offset()
    data = pages.as_strided((num_pages, page_size, PageLayout.DATA_BYTES), (stride, PageLayout.DATA_BYTES, 1), start)
    scale_start = start + PageLayout.DATA_BYTES * page_size
    scales = pages.as_strided(
        (num_pages, page_size, PageLayout.SCALE_BYTES), (stride, PageLayout.SCALE_BYTES, 1), scale_start
    )
    return data, scales


def unpack(pages: Tensor, slots: Tensor, out: Tensor | None = None) -> Tensor:
    """Rows bf16 ``(*slots.shape, 512)`` stored at ``slots`` of a kernel view (exact values, spec §9.1-9.2).

    ``out``: where to write them, any strides with the last dim contiguous.
    """
    num_pages, page_size = pages.shape[:2]
    stride, start = pages.stride(0), pages.storage_offset()
    page, row = slots // page_size, slots % page_size
    width = PageLayout.DATA_BYTES
    if stride % width or start % 8:
        data, scales = page_views(pages)
        return dequantise(data[page, row], scales[page, row], out)
    # Pages are whole multiples of a data row, so data rows can be picked from one table of rows, scales from words.
    count = (num_pages - 1) * (stride // width) + page_size
    table = pages.as_strided((count, width), (width, 1)).view(torch.int64)
    count = (num_pages - 1) * (stride // 8) + page_size
    words = pages.as_strided((count, 8), (8, 1), start + width * page_size).view(torch.int64)
    data = table.index_select(0, (page * (stride // width) + row).flatten())
    scales = words.index_select(0, (page * (stride // 8) + row).flatten())
    shape = slots.shape
    return dequantise(data.view(torch.uint8).view(*shape, width), scales.view(torch.uint8).view(*shape, 8), out)


def pack(tokens: Tensor, slots: Tensor, pages: Tensor, floor: Floor | Form = FORM) -> None:
    """Store tokens bf16 ``(n, 512)`` at slots int64 ``(n,)`` of a kernel view, in place; slot -1 skips (spec §9)."""
    kept = slots >= 0
    tokens, slots = tokens[kept], slots[kept]
    data, scales = page_views(pages)
    page, row = slots // pages.shape[1], slots % pages.shape[1]
    codes, bytes_ = quantise(tokens[:, :_NOPE], floor)
    rope = tokens[:, _NOPE:].contiguous().view(torch.uint8)
    data[page, row] = torch.cat((codes, rope), dim=-1)
    scales[page, row, :_TILES] = bytes_


def quantise_index_keys(keys: Tensor, form: Form = FORM) -> tuple[Tensor, Tensor]:
    """Codes uint8 ``(n, 128)`` and float32 scales ``(n,)``: ``max(amax, 1e-4) / top`` (spec §9.3, FP8 form).

    The scale is a float32, so the division by it is made with the rounded value, as a writer must.
    """
    amax = keys.to(torch.float64).abs().amax(-1).clamp(min=1e-4)
    scale = (amax / form.top).to(torch.float32)
    scaled = keys.to(torch.float64) / scale.to(torch.float64)[:, None]
    return e4m3_code(scaled.clamp(-form.top, form.top), form.dialect), scale


def compressed_slot(page_table: Tensor, entries: Tensor, ratio: int) -> Tensor:
    """Slot of compressed entry ``entries[r, j]`` of request r: ``page_table[r, i // n] * n + i % n``, n = 256 / ratio
    entries per page; -1 stays -1 (spec §9.4)."""
    per_page = WINDOW_PAGE // ratio
    safe = entries.clamp(min=0).to(torch.int64)
    page = torch.gather(page_table.to(torch.int64), 1, safe // per_page)
    return torch.where(entries < 0, -1, page * per_page + safe % per_page)
