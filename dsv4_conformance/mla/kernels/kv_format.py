"""Cache bytes of the built-in implementation: V4 KV pages, index-key pages, compressed slot numbers (spec §9).

A slot is ``page * P + i``. Pages may be a strided slice of a larger buffer; no byte that the format does not assign to
the addressed slots is written, or read into a result.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.spec.kv_layout import (
    FP8_MAX,
    INDEX_KEY_AMAX_FLOOR,
    INDEX_KEY_FP8,
    UE8M0_BIAS,
    UE8M0_NAN,
    PageLayout,
    Ue8m0Floor,
    compressed_page_size,
)


def page_views(pages: Tensor) -> tuple[Tensor, Tensor]:
    """Data bytes ``(num_pages, P, 576)`` and scale bytes ``(num_pages, P, 8)``, as views of the pages.

    pages: uint8 ``(num_pages, P, 1, 584)`` with strides ``(B, 584, 584, 1)``. All data rows of a page precede all its
    scale rows (spec §9.1). Raises BadInput if the tensor is no such view.
    """
    width = PageLayout.TOKEN_BYTES
    if pages.dim() != 4 or pages.shape[2:] != (1, width) or pages.dtype != torch.uint8:
        raise BadInput(f"pages are {pages.dtype} {tuple(pages.shape)}; pass uint8 (num_pages, P, 1, {width}).")
    num_pages, size = pages.shape[:2]
    if pages.stride(3) != 1 or (size > 1 and pages.stride(1) != width):
        raise BadInput(f"pages have strides {pages.stride()}; the bytes of one page must be contiguous.")
    flat = pages.view(num_pages, size * width)
    split = size * PageLayout.DATA_BYTES
    data = flat[:, :split].view(num_pages, size, PageLayout.DATA_BYTES)
    return data, flat[:, split:].view(num_pages, size, PageLayout.SCALE_BYTES)


def quantise(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise tokens ``(n, 512)`` -> data bytes uint8 ``(n, 576)``, scale bytes uint8 ``(n, 7)`` (spec §9.2).

    The scale of a 64-dim tile is the smallest power of two that is at least max(amax, 1e-4) / 448. A tile that holds a
    NaN or an infinity gets the scale byte that means NaN.
    """
    nope = _tiled(tokens[:, : PageLayout.NOPE].float())
    bound = (nope.abs().amax(-1) / FP8_MAX).clamp(min=Ue8m0Floor.AMAX_1E_4.min_scale)
    bits = bound.view(torch.int32)
    # Exact ceil(log2), biased by 127 as both formats are: the exponent field, plus one unless the mantissa is zero.
    exponent = ((bits >> 23) + (bits & 0x7FFFFF).ne(0)).clamp(max=UE8M0_NAN)
    inverse = ((2 * UE8M0_BIAS - exponent).clamp(min=0) << 23).view(torch.float32)
    codes = (nope * inverse[..., None]).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
    rope = tokens[:, PageLayout.NOPE :].to(torch.bfloat16).contiguous().view(torch.uint8)
    return torch.cat((codes.flatten(1), rope), 1), exponent.to(torch.uint8)


def pack_pages(tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
    """Quantise tokens bf16 ``(n, 512)`` and write them at slots int64 ``(n,)`` of pages in place (spec §9.1, §9.2).

    Touches the 576 data bytes and 7 scale bytes of each slot and nothing else; slot -1 skips its token. Slots other
    than -1 must be distinct. Raises BadInput for a slot outside ``[-1, num_pages * P)``.
    """
    data, scales = page_views(pages)
    tokens, page, offset = _addressed(tokens, slots, data)
    payload, exponents = quantise(tokens)
    data[page, offset] = payload
    scales[..., : PageLayout.TILES][page, offset] = exponents


def unpack_slots(pages: Tensor, slots: Tensor) -> Tensor:
    """Dequantised rows bf16 ``(n, 512)`` at slots int64 ``(n,)``; a slot of -1 gives a row of zeros (spec §9.2).

    Raises BadInput for a slot outside ``[-1, num_pages * P)``.
    """
    data, _ = page_views(pages)
    _check_slots(slots, data)
    rows = torch.empty(*slots.shape, PageLayout.HEAD_DIM, dtype=torch.bfloat16, device=pages.device)
    load_rows(pages, slots, rows)
    return rows


def load_rows(pages: Tensor, slots: Tensor, out: Tensor) -> None:
    """Dequantise slots int ``(...)`` into out, a float ``(..., 512)`` view; a negative slot gives zeros.

    Slots must lie below ``num_pages * P``: the caller has checked. NaN bytes of slots that are not listed cannot leak.
    """
    data, scales = page_views(pages)
    if data.numel() == 0:
        out.zero_()
        return
    hole = (slots < 0)[..., None]
    page, offset = place(slots.clamp(min=0), data)
    payload = _gather(data, page, offset, hole)
    exponents = _gather(scales, page, offset, hole)[..., : PageLayout.TILES]
    values = _tiled(_e4m3_to_float(payload[..., : PageLayout.NOPE]))
    factors = exponents.view(torch.float8_e8m0fnu).float()[..., None]
    torch.mul(values, factors, out=_tiled(out[..., : PageLayout.NOPE]))
    out[..., PageLayout.NOPE :] = payload[..., PageLayout.NOPE :].view(torch.bfloat16)


def pack_index_keys(keys: Tensor, slots: Tensor, pages: Tensor) -> None:
    """Write index keys fp32 ``(n, 128)`` at slots int64 ``(n,)`` of pages uint8 ``(num_pages, P * 132)`` (spec §9.3).

    A page holds P x 128 e4m3 codes, then P fp32 scales max(amax, 1e-4) / 448. Slot -1 skips its key. Raises BadInput
    for a slot outside ``[-1, num_pages * P)`` or a page whose size is no multiple of 132 bytes.
    """
    values, scales = index_key_views(pages)
    keys, page, offset = _addressed(keys.float(), slots, values)
    if not len(keys):  # an empty float32 tensor has no byte view
        return
    codes, scale = quantise_index_keys(keys)
    values[page, offset] = codes
    scales[page, offset] = scale.view(torch.uint8)


def unpack_index_keys(pages: Tensor, slots: Tensor) -> Tensor:
    """Dequantised index keys fp32 ``(n, 128)`` at slots int64 ``(n,)``; a slot of -1 gives zeros (spec §9.3).

    Raises BadInput as pack_index_keys does.
    """
    _check_slots(slots, index_key_views(pages)[0])
    return load_index_keys(pages, slots)


def quantise_index_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Keys fp32 ``(..., 128)`` -> codes uint8 ``(..., 128)``, scale fp32 ``(..., 1)`` (spec §9.3)."""
    scale = keys.abs().amax(-1, keepdim=True).clamp(min=INDEX_KEY_AMAX_FLOOR) / FP8_MAX
    return (keys / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).view(torch.uint8), scale


def dequantise_index_keys(codes: Tensor, scale: Tensor) -> Tensor:
    """Keys fp32 ``(..., 128)`` of what quantise_index_keys returned."""
    return _e4m3_to_float(codes) * scale


def load_index_keys(pages: Tensor, slots: Tensor) -> Tensor:
    """Dequantised index keys fp32 ``(..., 128)`` at slots int ``(...)``; a negative slot gives zeros (spec §9.3).

    Slots must lie below ``num_pages * P``: the caller has checked.
    """
    values, scales = index_key_views(pages)
    page, offset = place(slots.clamp(min=0), values)
    keys = dequantise_index_keys(values[page, offset], scales[page, offset].view(torch.float32))
    return keys.masked_fill_((slots < 0)[..., None], 0.0)


def index_key_views(pages: Tensor) -> tuple[Tensor, Tensor]:
    """Code bytes ``(num_pages, P, 128)`` and scale bytes ``(num_pages, P, 4)``, as views of the pages (spec §9.3).

    Raises BadInput for pages that are not uint8 or whose size is no multiple of 132 bytes.
    """
    layout = INDEX_KEY_FP8
    size, rest = divmod(pages.shape[1], layout.key_bytes)
    if rest or pages.dtype != torch.uint8:
        raise BadInput(
            f"index-key pages are {pages.dtype} of {pages.shape[1]} each; pass uint8 rows of P * {layout.key_bytes}."
        )
    split = size * layout.value_bytes
    shape = (pages.shape[0], size)
    return pages[:, :split].view(*shape, layout.value_bytes), pages[:, split:].view(*shape, layout.scale_bytes)


def compressed_slots(page_table: Tensor, entries: Tensor, ratio: int) -> Tensor:
    """Slots int64 ``(R, m)`` of compressed entries int ``(R, m)`` of each request; entry -1 stays -1 (spec §9.4).

    page_table: int ``(R, pages)`` of 256-token pages, which hold 64 entries at ratio 4 and 2 at ratio 128. Raises
    BadInput for another ratio or an entry beyond the page table.
    """
    per_page = compressed_page_size(ratio)
    entries = entries.long()
    if entries.numel() and int(entries.max()) >= page_table.shape[1] * per_page:
        raise BadInput(
            f"entry {int(entries.max())} lies beyond a page table of {page_table.shape[1]} pages of {per_page} "
            "entries; pass a table that covers the sequence."
        )
    safe = entries.clamp(min=0)
    slots = page_table.long().gather(1, safe // per_page) * per_page + safe % per_page
    return torch.where(entries < 0, -1, slots)


def _tiled(nope: Tensor) -> Tensor:
    """``(..., 448)`` viewed as ``(..., 7, 64)``."""
    return nope.view(*nope.shape[:-1], PageLayout.TILES, PageLayout.TILE)


def _check_slots(slots: Tensor, view: Tensor) -> None:
    capacity = view.shape[0] * view.shape[1]
    if slots.numel() and not (int(slots.min()) >= -1 and int(slots.max()) < capacity):
        raise BadInput(
            f"slots run from {int(slots.min())} to {int(slots.max())}; pass -1 or slots below {capacity}, "
            "the capacity of these pages."
        )


def _addressed(rows: Tensor, slots: Tensor, view: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that have a slot, with their page and their place in it."""
    _check_slots(slots, view)
    keep = slots >= 0
    return rows[keep], *place(slots[keep], view)


def place(slots: Tensor, view: Tensor) -> tuple[Tensor, Tensor]:
    """Page and place in the page of non-negative slots int ``(...)`` of a view ``(pages, P, ...)``: int64, since an
    address in a large pool is beyond int32."""
    slots, size = slots.long(), view.shape[1]
    return slots // size, slots % size


def _gather(view: Tensor, page: Tensor, offset: Tensor, hole: Tensor) -> Tensor:
    """Copy the bytes of the addressed rows, all zero where ``hole``."""
    # Eight bytes at a time where every address allows it: four times faster than bytes on a CPU.
    aligned = view.data_ptr() % 8 == 0 and view.storage_offset() % 8 == 0 and view.stride(0) % 8 == 0
    rows = (view.view(torch.int64) if aligned else view)[page, offset]
    return rows.masked_fill_(hole, 0).view(torch.uint8)


@cache
def _e4m3_table() -> Tensor:
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()


def _e4m3_to_float(codes: Tensor) -> Tensor:
    """uint8 codes -> fp32 values of the same shape."""
    if codes.device.type == "cpu":  # torch converts fp8 element by element there; a table is five times faster
        return _e4m3_table().index_select(0, codes.reshape(-1).int()).view(codes.shape)
    return codes.view(torch.float8_e4m3fn).float()
