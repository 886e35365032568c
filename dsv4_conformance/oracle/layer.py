"""One attention layer on one TP rank in float64: chosen query rows of one sequence, from its token stream (spec §2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.oracle import indexer, layer_stages
from dsv4_conformance.oracle.compressor import visible
from dsv4_conformance.oracle.layer_attention import attention_rows
from dsv4_conformance.oracle.rounding import EXACT, Rounding
from dsv4_conformance.spec.geometry import HEAD_DIM
from dsv4_conformance.spec.weights import LayerSpec

_CHUNK = 256
"""Index queries that are made at once; all of a long prompt would be the largest tensor here."""


@dataclass(frozen=True)
class LayerAnswer:
    """For T query rows, float64: ``q (T, n_local, 512)``; ``o (T, n_local, 512)`` after the inverse rope; ``out
    (T, hidden)``, this rank's share; ``selected`` int64 ``(T, index_topk)``, -1 = none, or None unless C4."""

    q: Tensor
    o: Tensor
    out: Tensor
    selected: Tensor | None


def selection(spec: LayerSpec, x: Tensor, positions: Tensor, rounding: Rounding = EXACT) -> Tensor:
    """Entries that each query of a C4 layer selects by exact scores, int64 ``(T, index_topk)``, then -1 (spec §7)."""
    topk = spec.geometry.index_topk
    seen = visible(positions, indexer.RATIO)
    chosen = indexer.all_entries(seen, topk)
    crowded = torch.nonzero(seen > topk)[:, 0]
    if crowded.numel():
        keys = indexer.keys(layer_stages.layer_indexer(spec), x, rounding)
        for rows in torch.split(crowded, _CHUNK):
            at = positions[rows]
            chosen[rows] = indexer.top_entries(*_index_queries(spec, x[at], at, rounding), keys, at, topk)
    return chosen


def selection_scores(spec: LayerSpec, x: Tensor, positions: Tensor, rounding: Rounding = EXACT) -> Tensor:
    """Index scores float64 ``(T, n)`` of the queries at ``positions`` for every entry of x (spec §7)."""
    keys = indexer.keys(layer_stages.layer_indexer(spec), x, rounding)
    parts = torch.split(positions, _CHUNK)
    return torch.cat([indexer.scores(*_index_queries(spec, x[at], at, rounding), keys) for at in parts])


def layer_output(
    spec: LayerSpec,
    x: Tensor,
    rows: slice | Tensor = slice(None),
    *,
    window_rows: Tensor | None = None,
    compressed_rows: Tensor | None = None,
    selected: Tensor | None = None,
    q: Tensor | None = None,
    rounding: Rounding = EXACT,
) -> LayerAnswer:
    """The layer at the query positions ``rows`` (a slice, or int64 ``(T,)``) of the sequence ``x (S, hidden)``.

    What is passed is used in place of what the definition gives, so that a judge can read an implementation's own
    cache: ``window_rows`` by position, up to the last query's at least, and ``compressed_rows`` by entry, both
    ``(n, 512)`` dequantised (rows that no query sees may hold anything); ``selected (T, k)`` of a C4 layer, -1 = none;
    ``q (T, n_local, 512)`` after rope. Else, keys of a quantised layer are what its cache rows would hold. Tokens after
    the last query are not looked at. Raises BadInput for positions outside x and for rows that are missing.
    """
    positions = _positions(rows, x)
    if selected is not None and spec.ratio != 4:
        raise BadInput(f"a layer of ratio {spec.ratio} selects no entries; pass selected only at ratio 4.")
    if positions.numel():
        x = x[: int(positions.max()) + 1]
    if q is None:
        q = layer_stages.queries(spec, layer_stages.qr_of(spec, x[positions], rounding), positions, rounding)
    if window_rows is None:
        window_rows = _window_rows(spec, x, positions, rounding)
    if spec.ratio and compressed_rows is None:
        compressed_rows = layer_stages.compressed_entries(spec, x, rounding)
    if spec.ratio == 4 and selected is None:
        selected = selection(spec, x, positions, rounding)
    o = attention_rows(
        q,
        positions,
        window_rows,
        compressed_rows,
        selected,
        layer_stages.local_sink(spec),
        ratio=spec.ratio,
        scale=spec.geometry.softmax_scale,
        window=spec.geometry.sliding_window,
        rounding=rounding,
    )
    o = layer_stages.unrotated(spec, o, positions, rounding)
    return LayerAnswer(q.to(torch.float64), o, layer_stages.output(spec, o, rounding), selected)


def _positions(rows: slice | Tensor, x: Tensor) -> Tensor:
    if isinstance(rows, slice):
        return torch.arange(*rows.indices(x.shape[0]), device=x.device)
    positions = rows.to(device=x.device, dtype=torch.int64)
    if positions.numel() and not 0 <= int(positions.min()) <= int(positions.max()) < x.shape[0]:
        raise BadInput(
            f"query positions {int(positions.min())} to {int(positions.max())} lie outside a sequence of "
            f"{x.shape[0]} tokens; pass positions below that."
        )
    return positions


def _window_rows(spec: LayerSpec, x: Tensor, positions: Tensor, rounding: Rounding) -> Tensor:
    """Window keys by position, computed from the first that a query sees; earlier ones are NaN."""
    keys = x.new_full((x.shape[0], HEAD_DIM), torch.nan, dtype=torch.float64)
    if positions.numel():
        first = max(0, int(positions.min()) - spec.geometry.sliding_window + 1)
        needed = torch.arange(first, x.shape[0], device=x.device)
        keys[first:] = layer_stages.window_keys(spec, x[first:], needed, rounding)
    return keys


def _index_queries(spec: LayerSpec, x: Tensor, positions: Tensor, rounding: Rounding) -> tuple[Tensor, Tensor]:
    view = layer_stages.layer_indexer(spec)
    iq = indexer.queries(view, layer_stages.qr_of(spec, x, rounding), positions, rounding)
    return iq, indexer.head_weights(view, x, rounding)
