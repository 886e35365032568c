"""Combined index rows read back: which stored rows each query attends to, by tags in the place of keys (spec §13)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.cases.state_inputs import ChunkInputs
from dsv4_conformance.errors import ConformanceFailure, ContractViolation
from dsv4_conformance.implementations.state_api import ChunkCacheConvention
from dsv4_conformance.oracle import sparse_prefill as definition
from dsv4_conformance.runner.opened import Opened
from dsv4_conformance.runner.subject import Subject

RATIOS = (0, 4, 128)


@dataclass(frozen=True)
class Gathered:
    """One layer's workspace and index rows. ``tags``: per workspace row twice its slot, plus 1 in the window pool."""

    tags: list[int]
    rows: Tensor
    lengths: Tensor


def open_cache(subject: Subject, given: ChunkInputs) -> Opened:
    """A chunk cache with the gathers of both ratios built."""
    cache = subject.open("open_chunk_cache", given.batch)
    cache.ensure_c4(given.page_table)
    cache.ensure_c128(given.c128_slots)
    return cache


def declared(subject: Subject) -> ChunkCacheConvention:
    """The adapter's declaration."""
    convention = subject.implementation.surfaces["SparsePrefillChunkCache"]
    assert isinstance(convention, ChunkCacheConvention)
    return convention


def numbers(who: str, tensor: object, count: int | None = None) -> list[int]:
    """A flat integer tensor as a list; ContractViolation if it is none, or not of ``count`` elements."""
    if not isinstance(tensor, Tensor) or tensor.is_floating_point() or tensor.ndim != 1:
        raise ContractViolation(f"{who} is no flat tensor of integers.")
    if count is not None and len(tensor) != count:
        raise ContractViolation(f"{who} has {len(tensor)} elements; the surface promises {count}.")
    listed: list[int] = tensor.tolist()
    return listed


def gathered(subject: Subject, cache: Opened, given: ChunkInputs, ratio: int) -> Gathered:
    """What a layer of this ratio gathers, and its index rows, of the promised types and shapes."""
    compressed = [] if ratio == 0 else numbers("token_ids", cache.token_ids(ratio))
    window = numbers("window_token_ids", cache.window_token_ids())
    rows, lengths = cache.combined(ratio, given.selection) if ratio == 4 else cache.combined(ratio)
    count, multiple = given.batch.query_rows, declared(subject).index_multiple
    for name, tensor, ndim in (("combined rows", rows, 2), ("combined lengths", lengths, 1)):
        if not isinstance(tensor, Tensor) or tensor.dtype != torch.int32 or tensor.ndim != ndim or len(tensor) != count:
            raise ContractViolation(f"{name} of ratio {ratio} are not int32 with one row for each of {count} queries.")
    if rows.shape[1] % multiple:
        raise ContractViolation(f"index rows of ratio {ratio} are {rows.shape[1]} wide, no multiple of {multiple}.")
    return Gathered([2 * slot for slot in compressed] + [2 * slot + 1 for slot in window], rows, lengths)


def named(layer: Gathered, ratio: int) -> list[list[int]]:
    """Sorted tags that each query row attends to. ConformanceFailure for a length or an index that names no row."""
    found = []
    width = layer.rows.shape[1]
    for number, (row, length) in enumerate(zip(layer.rows.tolist(), layer.lengths.tolist(), strict=True)):
        if not 0 <= length <= width:
            raise ConformanceFailure(f"query row {number} of ratio {ratio} has length {length} of {width}.")
        held = [index for index in row[:length] if index != -1]
        if held and not 0 <= min(held) <= max(held) < len(layer.tags):
            wrong = min(held) if min(held) < 0 else max(held)
            raise ConformanceFailure(
                f"query row {number} of ratio {ratio} names workspace row {wrong}; {len(layer.tags)} were gathered."
            )
        if any(index != -1 for index in row[length:]):
            raise ConformanceFailure(f"query row {number} of ratio {ratio} holds something else than -1 in its tail.")
        found.append(sorted(layer.tags[index] for index in held))
    return found


def wanted(given: ChunkInputs, ratio: int) -> list[list[int]]:
    """Sorted tags that each owned query must attend to, from the definition."""
    selected = given.selection.tolist() if ratio == 4 else []
    found = []
    for number, (request, position) in enumerate(given.queries):
        visible = definition.entries(position + 1, ratio)
        entries = [e for e in selected[number][:visible] if e != -1] if ratio == 4 else range(visible)
        tags = [2 * definition.slot(given.pages[request], entry, ratio) for entry in entries]
        tags += [2 * definition.slot(given.window_pages[request], p) + 1 for p in definition.window(position)]
        found.append(sorted(tags))
    return found
