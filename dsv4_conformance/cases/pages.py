"""Paged caches filled with bytes: codes, scales, rope, and poison wherever nothing is referenced (spec §9.1)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.cases.case import AttentionCase, Poison, ScopeShape
from dsv4_conformance.cases.generator import bf16_values, words
from dsv4_conformance.oracle.kv_format import page_views
from dsv4_conformance.spec.kv_layout import PageLayout

GUARD_BYTES = 4 * PageLayout.PAGE_ALIGNMENT
"""Red zone before the first and after the last page; a multiple of 576 and 16, so that page alignment holds."""

_FILL = {"nan": -1, "inf": 0x7F807F80, "none": 0}


@dataclass(frozen=True)
class PagePlan:
    """Where the tokens of a scope live: ``slot_of`` int64 ``(tokens,)`` and the number of physical pages.

    Page 0 is a dummy page with finite bytes (allocators keep one; a -1 read as slot 0 lands there); pages are permuted;
    one page is never used.
    """

    slot_of: Tensor
    num_pages: int


def plan_pages(case: AttentionCase, shape: ScopeShape, name: str, rows: int, device: torch.device) -> PagePlan:
    """Physical places of ``rows * shape.slots`` tokens, page by page in a permuted order."""
    tokens, size = rows * shape.slots, shape.page_size
    needed = -(-tokens // size)
    order = torch.argsort(words(case.digest(), f"{name}/pages", (needed + 1,), device), stable=True)
    token = torch.arange(tokens, device=device)
    return PagePlan((order[token // size] + 1) * size + token % size, needed + 2)


def page_buffer(num_pages: int, page_size: int, fill: Poison, device: torch.device) -> Tensor:
    """A kernel view uint8 ``(num_pages, P, 1, 584)`` with stride ``ceil_576(584 P)`` between red zones, all poison."""
    page_bytes = PageLayout(page_size).page_bytes
    size = num_pages * page_bytes + 2 * GUARD_BYTES
    buffer = torch.full((size // 4,), _FILL[fill], dtype=torch.int32, device=device).view(torch.uint8)
    token = PageLayout.TOKEN_BYTES
    return buffer.as_strided((num_pages, page_size, 1, token), (page_bytes, token, token, 1), GUARD_BYTES)


def fill_pages(case: AttentionCase, name: str, pages: Tensor, live: Tensor) -> None:
    """Write random finite rows into slots where ``live`` (bool ``(num_pages * P,)``); other slots keep their poison.

    Nope codes are log-uniform over 4 binades (over all finite codes for data "edge"), tile scales over 4 powers of two,
    rope over 4 binades; "marker" adds one loud channel per slot, whose number encodes the slot.
    """
    root, device = case.digest(), pages.device
    num_pages, page_size = pages.shape[:2]
    data, scales = page_views(pages)
    keep = live.view(num_pages, page_size, 1)
    data32 = data.view(torch.int32)
    split = PageLayout.NOPE // 4
    shape = (num_pages, page_size, PageLayout.DATA_BYTES // 4)
    random = words(root, f"{name}/data", shape, device)
    nope, rope = random[..., :split], random[..., split:]
    if case.data == "edge":
        nope.bitwise_and_(~0x01010101)  # no 0x7f: every other code, subnormals, zeros and 448 included
    else:
        nope.bitwise_and_(~0x60606060).bitwise_or_(0x40404040)
    bf16_values(rope, 124)
    data32.copy_(random.masked_fill_(~keep, _FILL[case.poison]))
    byte = words(root, f"{name}/scale", (num_pages, page_size, 2), device)
    byte.bitwise_and_(0x03030303).bitwise_or_(0x74747474 if case.data == "edge" else 0x78787878)
    new_scales = byte.view(torch.uint8)
    new_scales[..., 7] = scales[..., 7]  # the pad byte stays poison
    slot = torch.arange(num_pages * page_size, device=device).view(num_pages, page_size)
    if case.data == "edge":
        new_scales[..., :7] = torch.where((slot % 16 == 5)[..., None], 105, new_scales[..., :7])
    scales.copy_(torch.where(keep, new_scales, scales))
    if case.data == "marker":
        channel = (slot * 37 % PageLayout.NOPE)[..., None]
        loud = torch.where(slot % 2 == 0, 0x76, 0xF6).to(torch.uint8)[..., None]
        old = torch.gather(data[..., : PageLayout.NOPE], 2, channel)
        data[..., : PageLayout.NOPE].scatter_(2, channel, torch.where(keep, loud, old))
