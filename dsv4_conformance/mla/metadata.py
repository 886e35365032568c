"""Attention metadata of one batch, one row per query, and what a graph replay does to each field (spec §14)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.combine import WINDOW
from dsv4_conformance.mla.host_lists import on_device
from dsv4_conformance.spec.kv_layout import WINDOW_PAGE

Change = Literal["copied", "referenced", "kept"]
Event = Literal["copy", "refresh"]

RESET = "sparse_prefill_cache"
"""The one field that either event empties: it describes the requests and lengths of the step before."""

_COPIED = frozenset(
    {"raw_out_loc", "positions", "seq_lens", "state_rows"}
    | {"c4_out_loc", "c128_out_loc", "c4_boundary", "c128_boundary"}
    | {"c4_topk_lengths_raw", "c4_topk_lengths_clamp1", "c4_sparse_topk_lengths"}
)
_LISTS = frozenset(
    {"page_table", "swa_page_indices", "swa_topk_lengths", "c128_page_indices", "c128_topk_lengths_clamp1"}
)
_SELECTION = frozenset({"c4_sparse_page_indices", "c4_sparse_raw_indices"})
_SCHEDULERS = frozenset({"c0_flashmla_metadata", "c4_flashmla_metadata", "c128_flashmla_metadata"})
_CONSTANTS = frozenset({"index_topk", "page_size"})

CLASSES: Mapping[Event, Mapping[Change, frozenset[str]]] = {
    # Captured kernels read every tensor, attention's included.
    "copy": {"copied": _COPIED | _LISTS | _SELECTION, "referenced": _SCHEDULERS, "kept": _CONSTANTS},
    # Attention runs eagerly between captured pieces and may read new tensors; the indexer, captured, has written its
    # selection by then.
    "refresh": {"copied": _COPIED, "referenced": _LISTS | _SCHEDULERS, "kept": _SELECTION | _CONSTANTS},
}
"""Per event, what becomes of each field: content copied in place, taken by reference, left alone (spec §14.3-14.4)."""


@dataclass
class DSV4Metadata:
    """Tensors of one step; shapes follow from the number of rows and the page table's width alone (spec §14.2).

    With N rows, P pages and K = ``index_topk``; rows that belong to nobody have ``seq_lens`` 0, lengths 0 and lists of
    -1. int32 ``(N, P)`` page_table; ``(N, 128)`` swa_page_indices, newest position first; ``(N, K)``
    c4_sparse_page_indices and c4_sparse_raw_indices, which the indexer writes; ``(N, ceil_64(2 P))`` c128_page_indices;
    ``(N,)`` seq_lens and all lengths. int64 ``(N,)`` positions and state_rows (compressor state), both 0 for rows of
    nobody; raw_out_loc (window slot of the row's own token), c4_out_loc and c128_out_loc (slot of the entry that the
    token completes), -1 where nothing is written. bool ``(N,)`` c4_boundary, c128_boundary: it completes an entry.
    """

    index_topk: int
    page_size: int
    page_table: Tensor
    raw_out_loc: Tensor
    positions: Tensor
    seq_lens: Tensor
    state_rows: Tensor
    swa_page_indices: Tensor
    swa_topk_lengths: Tensor
    c4_out_loc: Tensor
    c4_boundary: Tensor
    c4_topk_lengths_raw: Tensor
    c4_topk_lengths_clamp1: Tensor
    c4_sparse_topk_lengths: Tensor
    c4_sparse_page_indices: Tensor
    c4_sparse_raw_indices: Tensor
    c128_out_loc: Tensor
    c128_boundary: Tensor
    c128_page_indices: Tensor
    c128_topk_lengths_clamp1: Tensor
    c0_flashmla_metadata: Any = None
    c4_flashmla_metadata: Any = None
    c128_flashmla_metadata: Any = None
    sparse_prefill_cache: Any = None

    def copy_(self, other: DSV4Metadata) -> None:
        """Take ``other`` for a full-graph replay: tensors keep their addresses. Raises BadInput if shapes differ."""
        self._take(other, "copy")

    def refresh_for_breakable_cuda_graph_replay_(self, static: DSV4Metadata) -> None:
        """Take ``static`` for a replay that is broken at attention (spec §14.4). Raises BadInput if shapes differ."""
        self._take(static, "refresh")

    refresh_ = refresh_for_breakable_cuda_graph_replay_

    def fields(self) -> dict[str, Any]:
        """Every field by name but the chunk cache; tensors are the live ones."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != RESET}

    def classes(self, event: Event) -> dict[str, Change]:
        """What ``copy_`` or ``refresh_`` does to each field."""
        return {name: change for change, names in CLASSES[event].items() for name in names}

    def chunk_cache(self) -> Any | None:
        """The sparse-prefill chunk cache of this forward, None until a layer attaches one."""
        return self.sparse_prefill_cache

    def attach_chunk_cache(self, cache: Any) -> None:
        """Keep ``cache`` for the other layers of this forward."""
        self.sparse_prefill_cache = cache

    def lists(self, ratio: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Window slots and lengths, then compressed slots (at ratio 4 None: the indexer's selection) and lengths."""
        window = (self.swa_page_indices, self.swa_topk_lengths)
        if ratio == 0:
            return *window, None, None
        if ratio == 4:
            return *window, None, self.c4_sparse_topk_lengths
        if ratio == 128:
            return *window, self.c128_page_indices, self.c128_topk_lengths_clamp1
        raise BadInput(f"ratio {ratio} is no DeepSeek-V4 compress ratio; use 0, 4 or 128.")

    def _take(self, other: DSV4Metadata, event: Event) -> None:
        self._check_fits(other)
        for name in CLASSES[event]["copied"]:
            getattr(self, name).copy_(getattr(other, name))
        for name in CLASSES[event]["referenced"]:
            setattr(self, name, getattr(other, name))
        self.sparse_prefill_cache = None

    def _check_fits(self, other: DSV4Metadata) -> None:
        """Before anything is written: a replay can take no other shape than the captured one."""
        for name, mine in self.fields().items():
            theirs = getattr(other, name)
            if name in _CONSTANTS and mine != theirs:
                raise BadInput(f"{name} is {theirs} and was captured as {mine}; capture again.")
            if isinstance(mine, Tensor) and mine.shape != theirs.shape:
                raise BadInput(
                    f"{name} is {tuple(theirs.shape)} and was captured as {tuple(mine.shape)}; pad the batch to the "
                    "captured rows and page-table width."
                )


def check_classes(cls: type[DSV4Metadata], classes: Mapping[Event, Mapping[Change, frozenset[str]]]) -> None:
    """Raise TypeError unless, for each event, every field but the chunk cache is in exactly one class."""
    names = {f.name for f in dataclasses.fields(cls)} - {RESET}
    for event, groups in classes.items():
        listed = [name for group in groups.values() for name in group]
        wrong = sorted(names.symmetric_difference(listed) | {name for name in listed if listed.count(name) > 1})
        if wrong:
            raise TypeError(f"{', '.join(wrong)}: not in exactly one class of event {event!r} of {cls.__name__}")


check_classes(DSV4Metadata, CLASSES)  # a field added without a class would go stale in every replay, silently


def build_metadata(
    state_rows: Sequence[int],
    positions: Sequence[int],
    page_table: Tensor,
    index_topk: int,
    device: torch.device | str | None = None,
) -> DSV4Metadata:
    """Metadata of one query row per entry of ``positions``; -1 marks a row of nobody.

    ``state_rows``: compressor state row of each query row. page_table: int32 ``(rows, pages)`` of 256-token pages; the
    window's slots follow from it, too. Nothing waits for the device. Raises BadInput if rows disagree or a position
    lies beyond the page table.
    """
    where = page_table.device if device is None else torch.device(device)
    pages = page_table.shape[1]
    if not len(state_rows) == len(positions) == page_table.shape[0]:
        raise BadInput(
            f"{len(positions)} positions, {len(state_rows)} state rows and a page table of {page_table.shape[0]} rows "
            "were given; give one of each per query row."
        )
    if max(positions, default=-1) >= pages * WINDOW_PAGE:
        raise BadInput(
            f"position {max(positions)} lies beyond a page table of {pages} pages of {WINDOW_PAGE} tokens; pass a "
            "wider table."
        )
    table = page_table.to(device=where, dtype=torch.int64, non_blocking=True)
    position = on_device(positions, where)
    lengths = position + 1
    owned = lengths > 0
    c4, c128 = lengths // 4, lengths // 128
    newest_first = position[:, None] - torch.arange(WINDOW, device=where)
    entries = torch.arange(-(-2 * pages // 64) * 64, device=where).expand(len(positions), -1)
    nothing = torch.full((len(positions), index_topk), -1, dtype=torch.int32, device=where)
    closes = {ratio: owned & (lengths % ratio == 0) for ratio in (4, 128)}
    return DSV4Metadata(
        index_topk=index_topk,
        page_size=WINDOW_PAGE,
        page_table=table.to(torch.int32),
        raw_out_loc=_slots(table, position[:, None], owned[:, None], 1).flatten(),
        positions=position.clamp(min=0),
        seq_lens=lengths.to(torch.int32),
        state_rows=torch.where(owned, on_device(state_rows, where), 0),
        swa_page_indices=_slots(table, newest_first, newest_first >= 0, 1).to(torch.int32),
        swa_topk_lengths=lengths.clamp(max=WINDOW).to(torch.int32),
        c4_out_loc=_slots(table, (c4 - 1)[:, None], closes[4][:, None], 4).flatten(),
        c4_boundary=closes[4],
        c4_topk_lengths_raw=c4.to(torch.int32),
        c4_topk_lengths_clamp1=_at_least_1(c4, owned),
        c4_sparse_topk_lengths=_at_least_1(c4, owned).clamp(max=index_topk),
        c4_sparse_page_indices=nothing,
        c4_sparse_raw_indices=nothing.clone(),
        c128_out_loc=_slots(table, (c128 - 1)[:, None], closes[128][:, None], 128).flatten(),
        c128_boundary=closes[128],
        c128_page_indices=_slots(table, entries, entries < c128[:, None], 128).to(torch.int32),
        c128_topk_lengths_clamp1=_at_least_1(c128, owned),
    )


def _slots(table: Tensor, rows: Tensor, named: Tensor, ratio: int) -> Tensor:
    """Slot of stored row ``rows[n, j]`` where ``named``, else -1; a page holds 256 / ratio rows (spec §9.4)."""
    per_page = WINDOW_PAGE // ratio
    safe = torch.where(named, rows, 0)
    return torch.where(named, table.gather(1, safe // per_page) * per_page + safe % per_page, -1)


def _at_least_1(lengths: Tensor, owned: Tensor) -> Tensor:
    """int32 lengths of at least 1 in owned rows, where the first list entry is then -1 (spec §8.1), and 0 elsewhere."""
    return torch.where(owned, lengths.clamp(min=1), 0).to(torch.int32)
