"""Names of the offset and sizing formulas that the Formula surface evaluates (spec §6, §9, §13). Torch-free.

An engine computes these inside kernels and memory planners, where an int32 or a float32 in between is invisible until a
pool is large. All arguments and results are whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Formula:
    """``parameters``: names of the arguments, in order. ``unit``: what the result counts. ``kind``: offset or size."""

    parameters: tuple[str, ...]
    unit: Literal["bytes", "slots", "rows"]
    kind: Literal["offset", "size"]
    meaning: str


def _offset(parameters: str, unit: Literal["bytes", "slots", "rows"], meaning: str) -> Formula:
    return Formula(tuple(parameters.split()), unit, "offset", meaning)


def _size(parameters: str, unit: Literal["bytes", "slots", "rows"], meaning: str) -> Formula:
    return Formula(tuple(parameters.split()), unit, "size", meaning)


FORMULAS: Mapping[str, Formula] = {
    "kv_data_byte": _offset(
        "page_size slot", "bytes", "first data byte of a slot of a pool of main-cache pages (§9.1)"
    ),
    "kv_scale_byte": _offset("page_size slot", "bytes", "first scale byte of a slot of such a pool (§9.1)"),
    "index_value_byte": _offset("slot", "bytes", "first value byte of a slot of the index pool (§9.3)"),
    "index_scale_byte": _offset("slot", "bytes", "first scale byte of a slot of the index pool (§9.3)"),
    "window_slot": _offset("page position", "slots", "window slot of a position whose 256-token page is given (§9.4)"),
    "compressed_slot": _offset("ratio page entry", "slots", "slot of an entry whose 256-token page is given (§9.4)"),
    "selected_slot": _offset("page entry", "slots", "slot of an entry that the indexer selected (§9.4)"),
    "workspace_byte": _offset("rows row", "bytes", "first byte of a row of the sparse-prefill workspace (§13.1)"),
    "score_byte": _offset("rows entries row entry", "bytes", "index score, float32 (rows, entries), of one pair (§7)"),
    "query_byte": _offset("rows heads row head", "bytes", "padded query, bf16 (rows, heads, 512), of one head (§15)"),
    "window_bytes": _size("tokens", "bytes", "window pages of one layer that a decoding request needs (§9.1)"),
    "c4_bytes": _size("tokens", "bytes", "C4 pages of one layer of a request (§9.1)"),
    "c128_bytes": _size("tokens", "bytes", "C128 pages of one layer of a request (§9.1)"),
    "index_bytes": _size("tokens", "bytes", "index-key pages of one layer of a request (§9.3)"),
    "state_rows": _size("ratio tokens", "rows", "compressor state of a request: raw tokens that are kept (§6)"),
    "query_bytes": _size("rows n_heads tp", "bytes", "padded queries, bf16, of so many rows on one of tp ranks (§15)"),
    "workspace_rows": _size("ratio capacity tokens new", "rows", "rows a prefill gathers of one request (§13.2)"),
}
"""Formula -> what it takes and gives. ``capacity``: tokens that the page table could name."""

OFFSETS = tuple(name for name, formula in FORMULAS.items() if formula.kind == "offset")
SIZES = tuple(name for name, formula in FORMULAS.items() if formula.kind == "size")
