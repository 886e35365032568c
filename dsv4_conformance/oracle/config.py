"""What a deployment must come to, by definition: head shares, layer tables, and bytes counted entry by entry.

Nothing here reads a config.json: the geometry is what the config was written from. Source: spec §1, §3, §9, §13, §15.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsv4_conformance.spec.geometry import Geometry

KERNEL_HEADS = (64, 128)
"""Head counts of FlashMLA's kernels, on the devices it is built for."""

FLASH_MLA_DEVICES = ("sm90", "sm100")

LAST_ROW_OF_A_SCHEDULE = 11673
"""Most query rows of one paged FlashMLA call: the schedule kernel needs 4 (5 b + 1) bytes of 228 KiB (spec §12)."""

PAGE_TOKENS = 256
"""Positions that one page of any pool covers (spec §9.4)."""


def attention_tp(tp: int, dp: int, cp: int) -> tuple[int, ...]:
    """Ranks that share out a request's heads: tp / dp / cp, or tp / dp where context-parallel ranks come on top."""
    return (tp // dp // cp, tp // dp) if cp > 1 else (tp // dp,)


def padded_heads(n_heads: int, local: int) -> int:
    """Heads of a FlashMLA call: all where nothing is shared out, else 64 if the rank's fit, else all (spec §15)."""
    if local == n_heads or local > 64:
        return n_heads
    return 64


def layer_ropes(geometry: Geometry) -> list[tuple[float, bool]]:
    """(base, YaRN) of every layer, drafts last: only layers with a compressor leave rope_theta, and only they scale."""
    plain, compressed = (geometry.rope_theta, False), (geometry.compress_rope_theta, True)
    return [compressed if ratio else plain for ratio in geometry.compress_ratios]


def page_bytes(pool: str) -> int:
    """Bytes of one page: 584 per key in whole 576s, 132 per index key without a tail (spec §9.1, §9.3)."""
    entries = entries_per_page(pool)
    if pool == "index":
        return entries * (128 + 4)
    used = entries * (448 + 2 * 64 + 8)
    return used if used % 576 == 0 else used + 576 - used % 576


def entries_per_page(pool: str) -> int:
    """Entries that 256 positions make: one each, one per 4, one per 128."""
    return {"window": PAGE_TOKENS, "c4": PAGE_TOKENS // 4, "c128": PAGE_TOKENS // 128, "index": PAGE_TOKENS // 4}[pool]


def layers_of(geometry: Geometry, pool: str) -> int:
    """Layers that keep a cache in a pool; window keys are kept by every layer, drafts included."""
    kept = {"window": (0, 4, 128), "c4": (4,), "c128": (128,), "index": (4,)}[pool]
    return sum(ratio in kept for ratio in geometry.compress_ratios)


def request_bytes(geometry: Geometry, pool: str, tokens: int) -> int:
    """Least bytes of a request of ``tokens`` tokens: the pages its live entries lie on, in every layer of the pool.

    Of the window, the 128 positions that its last token sees.
    """
    first = max(tokens - 128, 0) if pool == "window" else 0
    touched = (tokens - 1) // PAGE_TOKENS - first // PAGE_TOKENS + 1
    return layers_of(geometry, pool) * touched * page_bytes(pool)


def gathered_rows(geometry: Geometry, seq_lens: Sequence[int]) -> int:
    """Compressed rows of the layer that gathers most for requests of these lengths: S // r each (spec §13.2)."""
    compressed = [ratio for ratio in geometry.compress_ratios if ratio]
    return max((sum(tokens // ratio for tokens in seq_lens) for ratio in compressed), default=0)


def state_bytes(geometry: Geometry, bytes_per_value: int = 2) -> int:
    """Least compressor state of a request: an incomplete group of r - 1 tokens, at ratio 4 the group before it as well,
    (u, g) of each, in every compressed layer; index compressors (d = 128) included (spec §6)."""
    total = 0
    for ratio in geometry.compress_ratios:
        if ratio == 4:
            total += (3 * 2 * 2 + 4 * 2) * (512 + 128)  # open group: both halves; group before it: A halves
        elif ratio == 128:
            total += 127 * 2 * 512
    return total * bytes_per_value


def ring_bytes(geometry: Geometry, drafts: bool) -> int:
    """Compressor state of a request in rings of whole windows (8 tokens at ratio 4, 128 at 128), float32 values, every
    half of (u, g); with ``drafts`` twice, so that they can be taken back (spec §6)."""
    tokens = {4: 8 * 2 * 2 * (512 + 128), 128: 128 * 2 * 512}
    return 4 * (1 + drafts) * sum(tokens.get(ratio, 0) for ratio in geometry.compress_ratios)
