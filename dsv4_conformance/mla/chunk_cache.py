"""What one extend batch gathers and how its queries address the gathered rows, shared by its layers (spec §13.2-13.4).

Gathers are ragged and sized by what the requests hold now, never by how many pages a table could name: a table captured
for a million tokens has 4096 columns whatever the batch is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.combine import WINDOW, window_part, with_entries
from dsv4_conformance.mla.host_lists import offsets, on_device, owners

C4_PAGE = 64
"""Entries of ratio 4 in a 256-token page."""


@dataclass
class CompressedGather:
    """Compressed rows of one ratio. ``token_ids``: int64 ``(sum of S_r // ratio,)`` slots, request by request, once
    ``ensure_*`` has run; ``base``: int64 ``(R,)`` first row of each request; ``counts``: rows per request."""

    counts: list[int]
    base: Tensor
    token_ids: Tensor | None = None

    @property
    def rows(self) -> int:
        """Rows in all."""
        return sum(self.counts)


@dataclass
class SparsePrefillChunkCache:
    """Gather lists and index rows of one forward. ``build`` makes one; nothing in it waits for the device.

    ``max_seq_len``: most tokens that a request of this batch holds. ``seq_lens``, ``extend_lens``: host numbers.
    ``query_start_loc``: first query row of each request, then the number of owned rows. ``positions``: int32
    ``(query_rows,)``, -1 for rows of nobody. ``swa_token_ids``: int64 window slots of all requests; request r has
    ``swa_gather_lens[r]`` of them, from position ``swa_first_pos[r]`` on, at ``swa_offsets[r]``.
    """

    max_seq_len: int
    seq_lens: tuple[int, ...]
    extend_lens: tuple[int, ...]
    query_start_loc: list[int]
    positions: Tensor
    request_of_row: Tensor
    swa_token_ids: Tensor
    swa_first_pos: list[int]
    swa_gather_lens: list[int]
    swa_offsets: list[int]
    compressed: dict[int, CompressedGather]
    _windows: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    _c128_rows: Tensor | None = None

    @classmethod
    def build(
        cls, seq_lens: Sequence[int], extend_lens: Sequence[int], window_slots: Tensor, query_rows: int
    ) -> SparsePrefillChunkCache:
        """For requests of ``seq_lens`` tokens, the last ``extend_lens`` of them new, one query row each.

        window_slots: int32 ``(R, >= max S)``, slot of each position in the window pool; only the positions that a query
        sees are read. Rows of ``query_rows`` beyond the new tokens belong to nobody. Raises BadInput for lengths that
        contradict each other or too few rows or columns.
        """
        lens, new, device = tuple(seq_lens), tuple(extend_lens), window_slots.device
        _check_lengths(lens, new, window_slots, query_rows)
        gathers = [min(s, e + WINDOW - 1) for s, e in zip(lens, new, strict=True)]
        firsts = [s - g for s, g in zip(lens, gathers, strict=True)]
        owner, place = owners(gathers, device)
        request, row = owners(new, device)
        prefix = on_device([s - e for s, e in zip(lens, new, strict=True)], device)
        positions = torch.full((query_rows,), -1, dtype=torch.int32, device=device)
        positions[: len(request)] = (prefix[request] + row).to(torch.int32)
        request_of_row = torch.zeros(query_rows, dtype=torch.int64, device=device)
        request_of_row[: len(request)] = request
        compressed = {}
        for ratio in (4, 128):
            counts = [s // ratio for s in lens]
            compressed[ratio] = CompressedGather(counts, on_device(offsets(counts)[:-1], device))
        return cls(
            max_seq_len=max(lens),
            seq_lens=lens,
            extend_lens=new,
            query_start_loc=offsets(new),
            positions=positions,
            request_of_row=request_of_row,
            swa_token_ids=window_slots[owner, on_device(firsts, device)[owner] + place].long(),
            swa_first_pos=firsts,
            swa_gather_lens=gathers,
            swa_offsets=offsets(gathers),
            compressed=compressed,
        )

    @property
    def query_rows(self) -> int:
        """Query rows, those of nobody included."""
        return len(self.positions)

    def compressed_rows(self, ratio: int) -> int:
        """Compressed rows of the workspace in a layer of this ratio."""
        return 0 if ratio == 0 else self._gather(ratio).rows

    def workspace_rows(self, ratio: int) -> int:
        """Workspace rows that a layer of this ratio fills: compressed ones, then the window."""
        return self.compressed_rows(ratio) + self.swa_offsets[-1]

    def ensure_c4(self, page_table: Tensor, page_size: int = C4_PAGE) -> None:
        """List every C4 entry, from page_table int32 ``(query_rows, pages)``; a second call does nothing.

        The first query row of a request names its pages. Raises BadInput if the table has other rows, or pages for
        fewer entries than a request holds.
        """
        gather = self.compressed[4]
        if gather.token_ids is not None:
            return
        self._check_table("page_table", page_table, page_table.shape[-1] * page_size, 4)
        owner, entry = owners(gather.counts, page_table.device)
        rows = on_device(self.query_start_loc[:-1], page_table.device)[owner]
        pages = page_table[rows, entry // page_size].long()
        gather.token_ids = pages * page_size + entry % page_size

    def ensure_c128(self, page_indices: Tensor) -> None:
        """List every C128 entry, from slots int32 ``(query_rows, width)``; a second call does nothing.

        The last query row of a request sees all its entries (the first row of a fresh prefill sees none, INV-77).
        Raises BadInput if the slots have other rows, or fewer columns than a request holds entries.
        """
        gather = self.compressed[128]
        if gather.token_ids is not None:
            return
        self._check_table("page_indices", page_indices, page_indices.shape[-1], 128)
        owner, entry = owners(gather.counts, page_indices.device)
        last = on_device([end - 1 for end in self.query_start_loc[1:]], page_indices.device)[owner]
        gather.token_ids = page_indices[last, entry].long()

    def token_ids(self, ratio: int) -> Tensor:
        """int64 slots of the compressed rows of a layer of ratio 4 or 128. Raises BadInput before ``ensure_*``."""
        ids = self._gather(ratio).token_ids
        if ids is None:
            raise BadInput(f"the gather of ratio {ratio} is not built; call ensure_c{ratio} first.")
        return ids

    def window_token_ids(self) -> Tensor:
        """int64 window slots of all requests, oldest position first."""
        return self.swa_token_ids

    def compressed_base(self, ratio: int) -> Tensor:
        """int64 ``(R,)``: workspace row where each request's compressed rows start."""
        return self._gather(ratio).base

    def window_base(self, ratio: int) -> Tensor:
        """int64 ``(R,)``: workspace row where each request's window rows start in a layer of this ratio."""
        starts = [self.compressed_rows(ratio) + start for start in self.swa_offsets[:-1]]
        return on_device(starts, self.positions.device)

    def combined(self, ratio: int, raw: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Index rows int32 ``(query_rows, width)`` and lengths int32 ``(query_rows,)`` for a layer of this ratio.

        raw: at ratio 4, the layer's own selection int32 ``(query_rows, topk)``; a hole in it stays a hole. Rows of
        ratio 0 and 128 are built once. Raises BadInput for a selection that is missing or of other rows.
        """
        if ratio == 0:
            return self._window(0, 0)
        if ratio == 128:
            window, lengths = self._window(128, max(self.compressed[128].counts))
            if self._c128_rows is None:
                self._c128_rows = self._with_entries(window, self._every_entry(), 128)
            return self._c128_rows, lengths
        if raw is None or raw.ndim != 2 or raw.shape[0] != self.query_rows:
            given = "none" if raw is None else tuple(raw.shape)
            raise BadInput(f"the selection is {given}; pass the indexer's int32 ({self.query_rows}, topk) at ratio 4.")
        window, lengths = self._window(ratio, raw.shape[1])
        return self._with_entries(window, raw, ratio), lengths

    def _gather(self, ratio: int) -> CompressedGather:
        if ratio not in self.compressed:
            raise BadInput(f"ratio {ratio} gathers no compressed rows; use 4 or 128.")
        return self.compressed[ratio]

    def _window(self, ratio: int, topk: int) -> tuple[Tensor, Tensor]:
        """Window part of the index rows and the lengths; the same in every layer of one ratio and topk."""
        if (ratio, topk) not in self._windows:
            bases = [self.compressed_rows(ratio) + start for start in self.swa_offsets[:-1]]
            origin = [base - first for base, first in zip(bases, self.swa_first_pos, strict=True)]
            origins = on_device(origin, self.positions.device, torch.int32)[self.request_of_row]
            self._windows[ratio, topk] = window_part(self.positions, origins, ratio, topk)
        return self._windows[ratio, topk]

    def _every_entry(self) -> Tensor:
        """0, 1, 2, ... for every query row: what a C128 layer selects."""
        count = max(self.compressed[128].counts)
        return torch.arange(count, dtype=torch.int32, device=self.positions.device).expand(self.query_rows, count)

    def _with_entries(self, window: Tensor, entries: Tensor, ratio: int) -> Tensor:
        base = self.compressed[ratio].base.to(torch.int32)[self.request_of_row]
        return with_entries(window, self.positions, base, entries, ratio)

    def _check_table(self, name: str, table: Tensor, capacity: int, ratio: int) -> None:
        if table.ndim != 2 or table.shape[0] != self.query_rows:
            raise BadInput(f"{name} is {tuple(table.shape)}; pass one row for each of {self.query_rows} query rows.")
        extent = self.max_seq_len // ratio
        if extent > capacity:
            raise BadInput(
                f"{name} holds {capacity} entries of ratio {ratio} and a request has {extent}; pass a wider table."
            )


def _check_lengths(seq_lens: tuple[int, ...], extend_lens: tuple[int, ...], slots: Tensor, query_rows: int) -> None:
    if not seq_lens or len(seq_lens) != len(extend_lens) or slots.ndim != 2 or slots.shape[0] != len(seq_lens):
        raise BadInput(
            f"the batch has {len(seq_lens)} seq_lens, {len(extend_lens)} extend_lens and window_slots of shape "
            f"{tuple(slots.shape)}; give one of each per request, and at least one request."
        )
    for request, (seq_len, extend_len) in enumerate(zip(seq_lens, extend_lens, strict=True)):
        if not 1 <= extend_len <= seq_len:
            raise BadInput(
                f"request {request} has {extend_len} new tokens of {seq_len}; extend by at least one, and count it."
            )
    if query_rows < sum(extend_lens):
        raise BadInput(f"{query_rows} query rows cannot hold {sum(extend_lens)} new tokens; pass all of them.")
    if slots.shape[1] < max(seq_lens):
        raise BadInput(f"window_slots cover {slots.shape[1]} positions of {max(seq_lens)}; pass a column for each.")
