"""Bytes of caches, compressor state and sparse-prefill workspace, from a geometry and live lengths (spec §6, §9, §13).

All of it is replicated on every rank: tensor parallelism shares out heads, not keys (spec §15).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsv4_conformance.spec.geometry import HEAD_DIM, INDEX_HEAD_DIM, Geometry
from dsv4_conformance.spec.kv_layout import C4_PAGE, C128_PAGE, INDEX_KEY_FP8, WINDOW_PAGE, PageLayout

PREFILL_CHUNK = 8192
"""Tokens of one prefill step."""

ROW_BYTES = HEAD_DIM * 2
"""One bf16 row of the workspace, or of one query head."""

PAGE_SIZES: Mapping[str, int] = {"window": WINDOW_PAGE, "c4": C4_PAGE, "c128": C128_PAGE, "index": C4_PAGE}
"""Entries per page of each pool. A page of any pool covers the same 256 positions (spec §9.4)."""

PAGE_BYTES: Mapping[str, int] = {
    **{pool: PageLayout(PAGE_SIZES[pool]).page_bytes for pool in ("window", "c4", "c128")},
    "index": INDEX_KEY_FP8.page_bytes,
}
"""Bytes of one page of one layer, rounded as spec §9.1 rounds."""

STATE_RING = {4: 8, 128: 128}
"""Tokens whose raw (u, g) a compressor keeps: an incomplete group, at ratio 4 also the one before it (spec §6)."""

LOOKBACK = 8
"""Draft tokens that compressor state can take back. Speculation doubles the rings for it."""


def pool_layers(geometry: Geometry) -> dict[str, int]:
    """Layers with a cache in each pool. Draft layers are C0 and have window pages as every layer has.

    https://github.com/sgl-project/sglang/pull/34499: three draft stages were accounted for as one layer.
    """
    census = geometry.layer_census
    return {"window": len(geometry.compress_ratios), "c4": census[4], "c128": census[128], "index": census[4]}


def layer_bytes_per_token() -> dict[str, float]:
    """Bytes of one layer per token of context: a page's bytes over the 256 tokens it covers."""
    return {pool: size / WINDOW_PAGE for pool, size in PAGE_BYTES.items()}


def pages(tokens: int) -> int:
    """Pages that cover ``tokens`` positions from position 0 on."""
    return -(-tokens // WINDOW_PAGE)


def window_pages(tokens: int, new: int) -> int:
    """Window pages a request of ``tokens`` positions holds while its last ``new`` are computed, older ones given back.

    The oldest position needed is the 127th before the first new one; pages are aligned, so one more may be touched. Two
    pages do for a decode step, drafts included.
    """
    return min(pages(tokens), pages(new + 127) + 1)


def request_bytes(geometry: Geometry, tokens: int, new: int = 1) -> dict[str, int]:
    """Bytes of one request of ``tokens`` tokens in each pool, whole pages; ``new`` tokens are in flight."""
    held = {pool: pages(tokens) for pool in PAGE_BYTES} | {"window": window_pages(tokens, new)}
    return {pool: layers * held[pool] * PAGE_BYTES[pool] for pool, layers in pool_layers(geometry).items()}


def state_bytes(geometry: Geometry, speculative: bool) -> int:
    """Compressor state of one request: fp32 (u, g) rows, with two channel halves at ratio 4 (spec §6)."""
    census, rings = geometry.layer_census, 2 if speculative else 1
    c4 = STATE_RING[4] * 2 * 2 * (HEAD_DIM + INDEX_HEAD_DIM)
    c128 = STATE_RING[128] * 2 * HEAD_DIM
    return 4 * rings * (census[4] * c4 + census[128] * c128)


def workspace_rows(ratio: int, seq_lens: Sequence[int], extend_lens: Sequence[int]) -> int:
    """Rows sparse prefill gathers for a layer: each request's own entries and window positions (spec §13.2)."""
    window = sum(min(s, e + 127) for s, e in zip(seq_lens, extend_lens, strict=True))
    return window + (sum(s // ratio for s in seq_lens) if ratio else 0)


def capacity_rows(ratio: int, capacity: int, seq_lens: Sequence[int], extend_lens: Sequence[int]) -> int:
    """What the same gather takes if the page table's ``capacity`` in tokens sizes its compressed rows (spec §13.4)."""
    entries = pages(capacity) * (WINDOW_PAGE // ratio) if ratio else 0
    return workspace_rows(0, seq_lens, extend_lens) + len(seq_lens) * entries


def largest_step(context: int, requests: int) -> tuple[list[int], list[int]]:
    """Lengths and new tokens of the step that gathers most: every request at full context, the chunk shared out."""
    share, rest = divmod(min(PREFILL_CHUNK, context * requests), requests)
    return [context] * requests, [share + (number < rest) for number in range(requests)]


def workspace_bytes(geometry: Geometry, context: int, requests: int) -> int:
    """Bytes of the workspace after the largest step, over the layers' ratios."""
    step = largest_step(context, requests)
    return ROW_BYTES * max(workspace_rows(ratio, *step) for ratio in set(geometry.compress_ratios))
