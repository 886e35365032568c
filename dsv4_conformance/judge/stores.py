"""Where the keys of one scope stand in a dump: pages of cache bytes, possibly only some of them, or rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.oracle.attention import D, Fetch
from dsv4_conformance.oracle.kv_format import unpack
from dsv4_conformance.spec.kv_layout import PageLayout


@dataclass(frozen=True)
class Store:
    """The keys of scope ``name``. ``fetch``: slots -> bf16 rows, NaN where the dump holds no such slot.

    ``ids``: int64 numbers of the pages held, ``size`` tokens each.
    ``paged``: False for rows, which count as pages of one token.
    """

    name: str
    fetch: Fetch
    ids: Tensor
    size: int
    paged: bool

    @property
    def slots(self) -> int:
        """Slots up to the last one held, absent ones included."""
        return (int(self.ids.max()) + 1) * self.size if len(self.ids) else 0

    def held(self, at_most: int) -> Tensor:
        """All slots held, int64, or none of them if they are more than ``at_most``."""
        if len(self.ids) * self.size > at_most:
            return self.ids.new_empty(0)
        return (self.ids[:, None] * self.size + torch.arange(self.size)).flatten()

    def holds(self, slots: Tensor) -> Tensor:
        """bool: which slots the dump holds."""
        return _place(self.ids, slots // self.size)[1]

    def where(self, slot: int) -> str:
        """A slot in words: ``slot 101 (page 1, token 37)``."""
        return f"slot {slot} (page {slot // self.size}, token {slot % self.size})" if self.paged else f"row {slot}"


def _place(ids: Tensor, pages: Tensor) -> tuple[Tensor, Tensor]:
    """Where in ``ids`` each of ``pages`` stands, and whether it does."""
    if not len(ids):
        return torch.zeros_like(pages), torch.zeros_like(pages, dtype=torch.bool)
    ordered, order = ids.sort()
    at = torch.searchsorted(ordered, pages.contiguous()).clamp(max=len(ids) - 1)
    return order[at], ordered[at] == pages


def row_store(name: str, kv: Tensor) -> Store:
    """Rows bf16 ``(n, 512)`` or ``(n, 1, 512)``, named by their number."""
    rows = kv.reshape(-1, D)

    def fetch(slots: Tensor) -> Tensor:
        held = (slots >= 0) & (slots < len(rows))
        if not len(rows):
            return torch.full((*slots.shape, D), torch.nan, dtype=torch.bfloat16)
        return rows[slots.masked_fill(~held, 0)].masked_fill_(~held[..., None], torch.nan)

    return Store(name, fetch, torch.arange(len(rows)), 1, paged=False)


def page_store(name: str, pages: Tensor, page_size: int | None, ids: Tensor | None) -> Store:
    """Pages of cache bytes (spec §9.1): raw ``(n, page bytes)``, or a contiguous copy of the kernel view
    ``(n, P, 1, 584)``, whose bytes are the first 584 P of each page in order.

    ``ids``: which pages they are, None = 0 to n - 1. Raises BadInput if page size and page bytes do not go together.
    """
    view = _kernel_view(name, pages.view(torch.uint8), page_size)
    numbers = torch.arange(len(pages)) if ids is None else ids.to(torch.int64)
    if len(set(numbers.tolist())) < len(numbers) or bool((numbers < 0).any()):
        raise BadInput(f"{name}_page_ids are not distinct page numbers from 0 on; give the number of each page once.")
    size = view.shape[1]

    def fetch(slots: Tensor) -> Tensor:
        at, held = _place(numbers, slots // size)
        if not len(numbers):
            return torch.full((*slots.shape, D), torch.nan, dtype=torch.bfloat16)
        rows = unpack(view, at.masked_fill(~held, 0) * size + slots % size)
        return rows.masked_fill_(~held[..., None], torch.nan)

    return Store(name, fetch, numbers, size, paged=True)


def _kernel_view(name: str, pages: Tensor, page_size: int | None) -> Tensor:
    """The view ``(n, P, 1, 584)`` with the stride of the stored pages."""
    token = PageLayout.TOKEN_BYTES
    if pages.dim() == 4:
        if page_size not in (None, pages.shape[1]):
            raise BadInput(f"{name}_page_size is {page_size}, but {name}_pages has {pages.shape[1]} tokens per page.")
        page_size, pages = pages.shape[1], pages.flatten(1)
    if page_size is None:
        raise BadInput(f"{name}_page_size is missing: raw page bytes do not tell how many tokens a page has; add it.")
    layout, width = PageLayout(page_size), pages.shape[1]
    if not layout.raw_bytes <= width <= layout.page_bytes:
        raise BadInput(
            f"{name}_pages has {width} bytes per page, but a page of {page_size} tokens has {layout.raw_bytes} to "
            f"{layout.page_bytes}; check {name}_page_size, or save that many bytes from the start of each page."
        )
    return pages.as_strided((len(pages), page_size, 1, token), (width, token, token, 1))
