"""Tensors of chunk-cache and metadata cases: page tables, slots, selections (spec §9.4, §13, §14)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dsv4_conformance.cases.generator import below, words
from dsv4_conformance.cases.state_case import ChunkCase, ExtentCase, MetadataCase
from dsv4_conformance.implementations.state_api import ExtendBatch, StepBatch
from dsv4_conformance.oracle.sparse_prefill import Query, gathered_window, queries

PAGE = 256


@dataclass(frozen=True)
class ChunkInputs:
    """An extend batch and what a layer hands to its chunk cache.

    ``pages``, ``window_pages``: pages of each request in the compressed and in the window pool. ``page_table`` int32
    ``(rows, pages)``, ``c128_slots`` int32 ``(rows, width)`` and ``selection`` int32 ``(rows, topk)`` have one row per
    query row; rows of nobody hold what the first query's do.
    """

    batch: ExtendBatch
    queries: list[Query]
    pages: list[list[int]]
    window_pages: list[list[int]]
    page_table: Tensor
    c128_slots: Tensor
    selection: Tensor


def _tables(root: int, name: str, rows: int, columns: int, device: torch.device) -> Tensor:
    """Disjoint page tables int64 ``(rows, columns)``: shuffled pages from 1 on."""
    order = torch.argsort(words(root, name, (rows * columns,), device), stable=True)
    return (order + 1).view(rows, columns)


def chunk_inputs(case: ChunkCase, device: torch.device) -> ChunkInputs:
    """The inputs that ``case`` describes. Window slots of positions that no query sees are -1: they may be evicted."""
    root, requests, longest = case.digest(), len(case.seq_lens), max(case.seq_lens)
    asked = queries(case.seq_lens, case.extend_lens)
    columns = -(-longest // PAGE) + case.spare_pages
    tables = _tables(root, "pages", requests, columns, device)
    windows = _tables(root, "window pages", requests, columns, device)
    position = torch.arange(longest, device=device)
    slots = windows[:, position // PAGE] * PAGE + position % PAGE
    for request, (seq_len, new) in enumerate(zip(case.seq_lens, case.extend_lens, strict=True)):
        seen = gathered_window(seq_len, new)
        slots[request, : seen.start] = slots[request, seen.stop :] = -1
    rows = asked + [asked[0]] * case.padded_rows
    owner = torch.tensor([query.request for query in rows], device=device)
    tokens = torch.tensor([query.position for query in rows], device=device) + 1
    entry = torch.arange(2 * columns, device=device)
    named = tables[owner][:, entry // 2] * 2 + entry % 2
    return ChunkInputs(
        batch=ExtendBatch(case.seq_lens, case.extend_lens, slots.to(torch.int32), len(rows)),
        queries=asked,
        pages=tables.tolist(),
        window_pages=windows.tolist(),
        page_table=tables[owner].to(torch.int32),
        c128_slots=torch.where(entry < tokens[:, None] // 128, named, -1).to(torch.int32),
        selection=_selection(case, tokens // 4, device),
    )


def _selection(case: ChunkCase, visible: Tensor, device: torch.device) -> Tensor:
    """Distinct entries below ``visible`` in a random order, at most topk of them, then -1; every third a hole."""
    most = max(int(visible.max()), 1)
    key = below(case.digest(), "selection", (len(visible), most), 2**30, device)
    key = torch.where(torch.arange(most, device=device) < visible[:, None], key, 2**31)
    chosen = torch.argsort(key, dim=1, stable=True)[:, : case.topk]
    chosen = torch.where(torch.arange(chosen.shape[1], device=device) < visible[:, None], chosen, -1)
    if case.holes:
        chosen[:, 1::3] = -1
    return torch.nn.functional.pad(chosen, (0, case.topk - chosen.shape[1]), value=-1).to(torch.int32)


def extent_chunk(case: ExtentCase) -> ChunkCase:
    """The batch of an extent case: one new token per request."""
    lens, new = (case.seq_len,) * case.requests, (1,) * case.requests
    spare = max(case.pages - -(-case.seq_len // PAGE), 0)
    return ChunkCase(case.surface, lens, new, spare_pages=spare, seed=case.seed)


def step_batch(case: MetadataCase, step: Literal["before", "after"], device: torch.device) -> StepBatch:
    """One of the two steps of a case, each on pages of its own; rows of nobody name the pages of the first row."""
    lens: tuple[int, ...] = getattr(case, step)
    table = _tables(case.digest(), step, len(lens), case.pages, device)
    owned = torch.tensor([n > 0 for n in lens], device=device)
    table = torch.where(owned[:, None], table, table[:1])
    return StepBatch(lens, table.to(torch.int32), case.index_topk)
