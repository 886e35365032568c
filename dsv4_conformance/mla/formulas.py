"""Offsets and sizes of the built-in implementation, asked of the code that makes them.

An offset is read off the very view that kernels index: pools, workspace and buffers are opened on the meta device,
where 100 GB cost nothing, and slots go through the same address arithmetic as in a step. A size is what the objects of
a step, or the byte counts of a deployment, come to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla import config_memory, topk
from dsv4_conformance.mla.chunk_cache import SparsePrefillChunkCache
from dsv4_conformance.mla.compressor import RINGS
from dsv4_conformance.mla.heads import local_heads, pad_query, padded_heads
from dsv4_conformance.mla.indexer import score_buffer
from dsv4_conformance.mla.kernels import kv_format
from dsv4_conformance.mla.metadata import build_metadata
from dsv4_conformance.mla.pools import IndexKeyPool, KVPool
from dsv4_conformance.mla.sequences import PAGE
from dsv4_conformance.mla.workspace import SparsePrefillWorkspace
from dsv4_conformance.spec.kv_layout import C4_PAGE

META = "meta"
LARGEST_INDEX = 2**31 - 1
"""Index lists are int32 (spec §10)."""


def evaluate(name: str, points: Sequence[tuple[int, ...]]) -> list[int]:
    """The formula ``name`` of spec/formulas.py at each point. Raises BadInput for an unknown one, or for a slot that no
    index list can hold."""
    if name not in _FORMULAS:
        raise BadInput(f"there is no formula {name!r}; known are {', '.join(_FORMULAS)}.")
    return [_FORMULAS[name](*point) for point in points]


def _listed(slot: int) -> Tensor:
    """A slot as index lists hold it."""
    if not 0 <= slot <= LARGEST_INDEX:
        raise BadInput(f"slot {slot} does not fit into an int32 index list; open a pool with fewer slots.")
    return torch.tensor([slot], dtype=torch.int32)


def _kv_byte(scales: bool) -> Callable[[int, int], int]:
    def byte(page_size: int, slot: int) -> int:
        pool = KVPool(slot // page_size + 1, page_size, True, torch.bfloat16, META)
        view = kv_format.page_views(pool.pages)[scales]
        return _address(view, slot)

    return byte


def _index_byte(scales: bool) -> Callable[[int], int]:
    def byte(slot: int) -> int:
        pool = IndexKeyPool(slot // C4_PAGE + 1, True, META)
        return _address(kv_format.index_key_views(pool.pages)[scales], slot)

    return byte


def _address(view: Tensor, slot: int) -> int:
    """Byte of a slot's row in a view ``(pages, P, bytes)``."""
    page, place = kv_format.place(_listed(slot), view)
    return int(view[int(page), int(place)].storage_offset())


def _window_slot(page: int, position: int) -> int:
    table = torch.full((1, position // PAGE + 1), page, dtype=torch.int32)
    meta = build_metadata([0], [position], table, 1)
    _listed(int(meta.raw_out_loc))
    return int(meta.swa_page_indices[0, 0])


def _compressed_slot(ratio: int, page: int, entry: int) -> int:
    table = torch.full((1, entry * ratio // PAGE + 1), page, dtype=torch.int32)
    return int(_listed(int(kv_format.compressed_slots(table, torch.tensor([[entry]]), ratio))))


def _selected_slot(page: int, entry: int) -> int:
    table = torch.full((1, entry // C4_PAGE + 1), page, dtype=torch.int32)
    _listed(page * C4_PAGE + C4_PAGE - 1)  # the list that is made is int32
    return int(topk.paged(torch.tensor([[entry]], dtype=torch.int32), table))


def _workspace_byte(rows: int, row: int) -> int:
    view = SparsePrefillWorkspace(META).get(rows)[row]
    return int(view.storage_offset()) * view.element_size()


def _score_byte(rows: int, entries: int, row: int, entry: int) -> int:
    scores = score_buffer(torch.empty(0, device=META), rows, entries)
    return int(scores[row, entry].storage_offset()) * scores.element_size()


def _query_byte(rows: int, heads: int, row: int, head: int) -> int:
    q = pad_query(torch.empty(rows, max(heads - 1, 1), 512, dtype=torch.bfloat16, device=META), heads)
    return int(q[row, head].storage_offset()) * q.element_size()


def _pool_bytes(pool: str) -> Callable[[int], int]:
    def size(tokens: int) -> int:
        held = config_memory.window_pages(tokens, 1) if pool == "window" else config_memory.pages(tokens)
        return held * config_memory.PAGE_BYTES[pool]

    return size


def _state_rows(ratio: int, tokens: int) -> int:
    return RINGS[ratio]


def _query_bytes(rows: int, n_heads: int, tp: int) -> int:
    q = torch.empty(rows, local_heads(n_heads, tp), 512, dtype=torch.bfloat16, device=META)
    return pad_query(q, padded_heads(n_heads, tp)).nbytes


def _workspace_rows(ratio: int, capacity: int, tokens: int, new: int) -> int:
    slots = torch.zeros(1, tokens, dtype=torch.int32)
    cache = SparsePrefillChunkCache.build([tokens], [new], slots, new)
    if ratio == 4:
        cache.ensure_c4(torch.zeros(1, -(-capacity // PAGE), dtype=torch.int32).expand(new, -1))
    elif ratio == 128:
        cache.ensure_c128(torch.zeros(1, -(-capacity // PAGE) * 2, dtype=torch.int32).expand(new, -1))
    compressed = len(cache.token_ids(ratio)) if ratio else 0
    return compressed + len(cache.window_token_ids())


_FORMULAS: Mapping[str, Callable[..., int]] = {
    "kv_data_byte": _kv_byte(False),
    "kv_scale_byte": _kv_byte(True),
    "index_value_byte": _index_byte(False),
    "index_scale_byte": _index_byte(True),
    "window_slot": _window_slot,
    "compressed_slot": _compressed_slot,
    "selected_slot": _selected_slot,
    "workspace_byte": _workspace_byte,
    "score_byte": _score_byte,
    "query_byte": _query_byte,
    "window_bytes": _pool_bytes("window"),
    "c4_bytes": _pool_bytes("c4"),
    "c128_bytes": _pool_bytes("c128"),
    "index_bytes": _pool_bytes("index"),
    "state_rows": _state_rows,
    "query_bytes": _query_bytes,
    "workspace_rows": _workspace_rows,
}
