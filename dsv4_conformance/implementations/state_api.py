"""Surfaces with state: what an adapter opens, with which declarations, and the data that passes (spec §5-§7, §13-§17).

Sequences are numbered by the caller from 0; the position of a new token is the number of tokens its sequence holds.
Tensors are on the adapter's device. No torch at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dsv4_conformance.spec.weights import Precision

if TYPE_CHECKING:
    from torch import Tensor


Mode = Literal["prefill", "decode", "verify"]
Path = Literal["auto", "paged", "sparse"]
Change = Literal["copied", "referenced", "kept"]

STATE_METHODS: Mapping[str, tuple[str, ...]] = {
    "Compressor": ("open_compressor",),
    "Indexer": ("open_indexer", "select_topk"),
    "SparsePrefillWorkspace": ("open_workspace",),
    "SparsePrefillChunkCache": ("open_chunk_cache",),
    "GraphMetadata": ("build_metadata",),
    "AttentionLayer": ("open_layer",),
    "EngineConfig": ("resolve_config",),
}
"""Stateful surface -> methods of the adapter that open it."""


@dataclass(frozen=True)
class StateConvention:
    """Declarations for Compressor and Indexer: the ``precision`` entries and scores are computed in.

    ``lookback``: tokens that ``truncate`` can take back (multi-token verify), 0 = none. Compressor alone: ``stored``:
    whether entries come back exact, or as an fp8 cache row holds them (bf16 first, then 584 bytes, or for dim 128 e4m3
    under one power of two); ``ue8m0_floor``: of those rows, as in FormatConvention.

    Indexer alone: ``quantised``: what ``open_indexer`` accepts; ``hadamard``: whether ``keys`` shows keys after the
    Hadamard rotation, which changes no score (spec §7), and whether fp8 rounds after it; ``index_scale``: of its fp8
    vectors, "float32" (spec §9.3), or "power of two": keys, and the rope dims of queries, become bf16 first, and the
    scale is rounded up to a power of two; ``topk``: values of index_topk, None = any; ``paged``: whether selections
    also come as slots of pages.
    """

    precision: Precision = "float32"
    lookback: int = 8
    quantised: tuple[bool, ...] = (True, False)
    hadamard: bool = True
    paged: bool = True
    stored: Literal["exact", "fp8"] = "exact"
    ue8m0_floor: Literal["amax_1e-4", "scale_1e-4", "amax_1e-8"] = "amax_1e-4"
    index_scale: Literal["float32", "power of two"] = "float32"
    topk: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ChunkCacheConvention:
    """Declarations for SparsePrefillChunkCache: how many compressed rows are gathered per request.

    "ragged": its own S // r; "rectangular": max(max S // r, 1) for every request (spec §13.2). ``gather_c128``: the
    same for ratio 128, where it differs from ratio 4. ``index_multiple``: row widths are a multiple of this.
    """

    gather: Literal["ragged", "rectangular"] = "ragged"
    gather_c128: Literal["ragged", "rectangular", "same"] = "same"
    index_multiple: int = 128


@dataclass(frozen=True)
class LayerConvention:
    """Declarations for AttentionLayer. ``precisions`` and ``quantised``: what ``open_layer`` accepts; ``paths``: the
    attention paths a prefill can be sent on, () = there is one, which nobody chooses; ``graphs``: the modes that
    ``capture`` takes; ``tp``: attention-TP sizes, None = any; ``lookback``: tokens that ``truncate`` can take back.

    ``forks``: which prefixes ``fork`` shares: any whole pages, all tokens of the source, or none. ``lockstep``:
    sequences start in one batch, and later batches take as many tokens of each of them. ``padded_rows``: whether a step
    can have rows that belong to nobody. ``window_history``: positions that ``window_rows`` answers for: all of a
    living sequence, or the last 128, read after each step. ``infinite_sinks``: whether a sink of +inf means an output
    of 0 (spec §8). ``budgets``: whether prefills make do with LayerSpec.workspace_rows, chunk by chunk.
    """

    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    quantised: tuple[bool, ...] = (True, False)
    ratios: tuple[int, ...] = (0, 4, 128)
    paths: tuple[Path, ...] = ("paged", "sparse")
    graphs: tuple[Mode, ...] = ("decode", "prefill")
    tp: tuple[int, ...] | None = None
    lookback: int = 8
    forks: Literal["anywhere", "at the end", "none"] = "anywhere"
    lockstep: bool = False
    window_history: Literal["all", "window"] = "all"
    padded_rows: bool = True
    infinite_sinks: bool = True
    budgets: bool = False


@dataclass(frozen=True)
class Segment:
    """Consecutive new tokens of one sequence: ``x (n, hidden)``, what the layer's norm delivered."""

    sequence: int
    x: Tensor


@dataclass(frozen=True)
class IndexSegment:
    """New tokens as the indexer sees them: ``x (n, hidden)`` and ``qr (n, q_lora)``, the normed query source."""

    sequence: int
    x: Tensor
    qr: Tensor


class Selection(NamedTuple):
    """raw int32 ``(n, topk)``: entries of the sequence, valid ones first, then -1; paged: their slots (spec §9.4), or
    None; scores float32 ``(n, m)``, m >= the largest number of visible entries, or None."""

    raw: Tensor
    paged: Tensor | None
    scores: Tensor | None


@dataclass(frozen=True)
class ExtendBatch:
    """An extend batch as sparse prefill sees it (spec §13): R requests, T query rows in request order.

    ``seq_lens``, ``extend_lens``: tokens each request holds after the batch, and new ones among them.
    ``window_slots``: int32 ``(R, max S)``: slot of position p in the window pool. ``query_rows``: T plus rows at
    the end that belong to nobody.
    """

    seq_lens: tuple[int, ...]
    extend_lens: tuple[int, ...]
    window_slots: Tensor
    query_rows: int


@dataclass(frozen=True)
class StepBatch:
    """What metadata is built from: one query row per entry. ``seq_lens`` counts the row's own token; 0 = padding row.

    ``page_table``: int32 ``(rows, pages)`` of 256-token pages; window and compressed slots follow from it (spec §9.4).
    """

    seq_lens: tuple[int, ...]
    page_table: Tensor
    index_topk: int
    ratios: tuple[int, ...] = (0, 4, 128)


class LayerResult(NamedTuple):
    """Rows in segment order, padding rows left out.

    o ``(T, n_local, 512)``: attention of this rank's heads after the inverse rope. out ``(T, hidden)``: this rank's
    share of the output projection (shares are summed). q ``(T, n_local, 512)``: queries as given to the kernel, and
    selected int32 ``(T, index_topk)``: chosen entries of a C4 layer, -1 = none; both None where they cannot be shown.
    ``path``: the attention path that ran.
    """

    o: Tensor
    out: Tensor
    q: Tensor | None
    selected: Tensor | None
    path: str


@dataclass(frozen=True)
class ServerOptions:
    """Server options that decide about attention. ``tp``: ranks in all, shared out over ``dp`` attention replicas and
    ``cp`` ranks of prefill context parallelism (attention-TP = tp / dp / cp); ``context``: tokens per request, 0 = the
    model's."""

    tp: int = 1
    dp: int = 1
    cp: int = 1
    device: str = "sm90"
    page_size: int = 256
    context: int = 0
    max_requests: int = 1
    speculative_tokens: int = 0


@dataclass(frozen=True)
class Settings:
    """Effective settings by name (``docs/cli.md`` lists them) and the warnings that were logged."""

    values: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
