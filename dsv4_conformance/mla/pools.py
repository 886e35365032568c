"""Paged pools of key rows and index keys, with stores that CUDA graphs can capture (spec §9).

A slot is ``page * P + i``; page 0 is the dummy page. ``store`` and ``load`` have static shapes and never wait for the
device. A row that is not kept writes back, at slot 0, the bytes that stand there: all such rows write the same bytes,
so their order is of no consequence, and no byte of the pool changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.kernels import kv_format
from dsv4_conformance.spec.geometry import HEAD_DIM, INDEX_HEAD_DIM
from dsv4_conformance.spec.kv_layout import C4_PAGE, INDEX_KEY_FP8, PageLayout

POISON_BYTE = 0xFF  # NaN as e4m3, as bf16, as float32 and as a scale byte


class KVPool:
    """Rows of 512: 584-byte fp8 pages if ``quantised``, else rows of ``dtype`` as they are.

    ``page_size`` is 256 for window rows, 64 and 2 for C4 and C128 entries. Rows are rounded to ``dtype`` before they
    are quantised, and returned in it.
    """

    def __init__(
        self, num_pages: int, page_size: int, quantised: bool, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.num_pages, self.page_size, self.quantised, self.dtype = num_pages, page_size, quantised, dtype
        if quantised:
            stride = PageLayout(page_size).page_bytes
            self.buffer = torch.zeros(num_pages, stride, dtype=torch.uint8, device=device)
            token = PageLayout.TOKEN_BYTES
            self._pages = self.buffer.as_strided((num_pages, page_size, 1, token), (stride, token, token, 1))
        else:
            self.buffer = torch.zeros(num_pages * page_size, HEAD_DIM, dtype=dtype, device=device)

    @property
    def pages(self) -> Tensor:
        """uint8 ``(num_pages, P, 1, 584)``, strides ``(B, 584, 584, 1)``. Raises BadInput unless quantised."""
        if not self.quantised:
            raise BadInput("this pool holds exact rows and has no fp8 pages; read its buffer, or open it quantised.")
        return self._pages

    def store(self, rows: Tensor, slots: Tensor, keep: Tensor | None = None) -> None:
        """Write rows ``(n, 512)`` at slots int64 ``(n,)``, those only where keep bool ``(n,)`` and slot >= 0.

        Slots that are kept must be distinct, below the capacity and not on page 0; the others may hold anything.
        """
        kept, slots = _addresses(slots, keep)
        rows = rows.to(self.dtype)
        if not self.quantised:
            _put(self.buffer, (slots,), rows, kept)
            return
        data, scales = kv_format.page_views(self._pages)
        payload, exponents = kv_format.quantise(rows)
        place = kv_format.place(slots, data)
        _put(data, place, payload, kept)
        _put(scales[..., : PageLayout.TILES], place, exponents, kept)

    def load(self, slots: Tensor, out: Tensor | None = None) -> Tensor:
        """Rows ``(..., 512)`` at slots int ``(...)`` below the capacity, dequantised; a negative slot gives zeros.

        They go into ``out``, if given, which may be a view of a larger buffer.
        """
        if not self.quantised:
            rows = _take(self.buffer, slots)
            return rows if out is None else out.copy_(rows)
        if out is None:
            out = torch.empty(*slots.shape, HEAD_DIM, dtype=self.dtype, device=slots.device)
        kv_format.load_rows(self._pages, slots, out)
        return out

    def poison(self, pages: Iterable[int]) -> None:
        """Fill with NaN all pages but the live ``pages``, and in these the bytes that the format never reads."""
        dead = _others(pages, self.num_pages)
        if not self.quantised:
            self.buffer.view(self.num_pages, self.page_size, HEAD_DIM)[dead] = math.nan
            return
        self.buffer[dead] = POISON_BYTE
        self.buffer[:, PageLayout(self.page_size).raw_bytes :] = POISON_BYTE
        kv_format.page_views(self._pages)[1][..., PageLayout.TILES :] = POISON_BYTE


class IndexKeyPool:
    """Index keys of 128, 64 per page: fp8 with one fp32 scale each if ``quantised`` (spec §9.3), else float32 rows."""

    def __init__(self, num_pages: int, quantised: bool, device: torch.device | str) -> None:
        self.num_pages, self.page_size, self.quantised = num_pages, C4_PAGE, quantised
        if quantised:
            self.buffer = torch.zeros(num_pages, INDEX_KEY_FP8.page_bytes, dtype=torch.uint8, device=device)
        else:
            self.buffer = torch.zeros(num_pages * C4_PAGE, INDEX_HEAD_DIM, device=device)

    @property
    def pages(self) -> Tensor:
        """uint8 ``(num_pages, 64 * 132)``. Raises BadInput unless quantised."""
        if not self.quantised:
            raise BadInput("this pool holds exact keys and has no fp8 pages; read its buffer, or open it quantised.")
        return self.buffer

    def store(self, keys: Tensor, slots: Tensor, keep: Tensor | None = None) -> None:
        """Write keys float32 ``(n, 128)`` at slots int64 ``(n,)``; the rules are those of ``KVPool.store``."""
        kept, slots = _addresses(slots, keep)
        keys = keys.float()
        if not self.quantised:
            _put(self.buffer, (slots,), keys, kept)
        elif len(keys):  # an empty float32 tensor has no byte view
            values, scales = kv_format.index_key_views(self.buffer)
            codes, scale = kv_format.quantise_index_keys(keys)
            place = kv_format.place(slots, values)
            _put(values, place, codes, kept)
            _put(scales, place, scale.view(torch.uint8), kept)

    def load(self, slots: Tensor) -> Tensor:
        """Keys float32 ``(..., 128)`` at slots int ``(...)`` below the capacity; a negative slot gives zeros."""
        return kv_format.load_index_keys(self.buffer, slots) if self.quantised else _take(self.buffer, slots)

    def poison(self, pages: Iterable[int]) -> None:
        """Fill with NaN all pages but the live ``pages``; the format has no unread bytes."""
        view = self.buffer if self.quantised else self.buffer.view(self.num_pages, -1)
        view[_others(pages, self.num_pages)] = POISON_BYTE if self.quantised else math.nan


def _addresses(slots: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """Which rows are written, ``(n, 1)``, and slots int64 ``(n,)``, 0 for the others."""
    slots = slots.long()
    kept = slots >= 0 if keep is None else keep & (slots >= 0)
    return kept[:, None], torch.where(kept, slots, 0)


def _put(view: Tensor, place: tuple[Tensor, ...], rows: Tensor, kept: Tensor) -> None:
    first = view[(0,) * len(place)]
    view[place] = torch.where(kept, rows, first)


def _take(buffer: Tensor, slots: Tensor) -> Tensor:
    return buffer[slots.long().clamp(min=0)].masked_fill_((slots < 0)[..., None], 0.0)


def _others(pages: Iterable[int], num_pages: int) -> list[int]:
    live = set(pages)
    return [page for page in range(num_pages) if page not in live]
