"""Index queries, keys, scores and the top-k rule of C4 layers in float64 (spec §7)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.oracle import compressor
from dsv4_conformance.oracle.linear import project, turned
from dsv4_conformance.oracle.rounding import EXACT, Rounding, bf16, power_scaled_fp8, scaled_fp8
from dsv4_conformance.spec.geometry import INDEX_HEAD_DIM, ROPE_DIM
from dsv4_conformance.spec.weights import CompressorSpec, IndexerSpec

RATIO = 4
"""Only C4 layers have an indexer."""

_SCRATCH = 1 << 20
"""Dot products that one pass of the scores holds."""


@dataclass(frozen=True)
class Form:
    """How a quantised indexer rounds to fp8, where engines differ and no score before rounding does.

    ``rotated``: after the Hadamard rotation, or instead of it. ``power_of_two``: keys, and the rope dims of queries,
    become bf16 first, and scales are powers of two.
    """

    rotated: bool = True
    power_of_two: bool = False


PUBLISHED = Form()
"""The model's own form (spec §7, §9.3)."""


def hadamard(x: Tensor) -> Tensor:
    """``x H / sqrt(128)`` with the Sylvester matrix ``H[a, b] = (-1)^(ones of a & b)``, x ``(..., 128)`` (spec §7)."""
    index = torch.arange(INDEX_HEAD_DIM, device=x.device)
    common = index[:, None] & index
    ones = torch.stack([(common >> bit) & 1 for bit in range(7)]).sum(0)
    matrix = (1 - 2 * (ones % 2)).to(torch.float64)
    return x.to(torch.float64) @ (matrix / math.sqrt(INDEX_HEAD_DIM))


def queries(
    spec: IndexerSpec, qr: Tensor, positions: Tensor, rounding: Rounding = EXACT, form: Form = PUBLISHED
) -> Tensor:
    """Index queries float64 ``(T, index_n_heads, 128)`` of ``qr (T, q_lora)``: no norm, rope, Hadamard (spec §7).

    As fp8 holds them if the indexer is quantised. Of a ``form`` that does not rotate they are rotated after rounding,
    so that keys and queries of all forms can be multiplied.
    """
    heads = (spec.geometry.index_n_heads, INDEX_HEAD_DIM)
    iq = turned(torch.unflatten(project(qr, spec.weights.wq_b), -1, heads), spec.table, positions)
    if rounding.activations:
        iq = bf16(iq)
    if form == PUBLISHED or not spec.quantised:
        return _kept(spec, hadamard(iq), rounding)
    if form.rotated:
        iq = hadamard(iq)
    if form.power_of_two:
        plain = INDEX_HEAD_DIM - ROPE_DIM
        iq = power_scaled_fp8(torch.cat((iq[..., :plain], bf16(iq[..., plain:])), -1))
    else:
        iq = scaled_fp8(iq)
    return iq if form.rotated else hadamard(iq)


def keys(spec: IndexerSpec, x: Tensor, rounding: Rounding = EXACT) -> Tensor:
    """Index keys float64 ``(S // 4, 128)`` of x ``(S, hidden)``: the index compressor's entries, Hadamard-rotated, and
    as fp8 holds them if the indexer is quantised (spec §7)."""
    entries = compressor.entries(key_compressor(spec), x)
    if rounding.activations:
        entries = bf16(entries)
    return _kept(spec, hadamard(entries), rounding)


def key_compressor(spec: IndexerSpec) -> CompressorSpec:
    """The index compressor on its own."""
    return CompressorSpec(RATIO, INDEX_HEAD_DIM, spec.weights.compressor, spec.table, spec.geometry.rms_norm_eps)


def head_weights(spec: IndexerSpec, x: Tensor, rounding: Rounding = EXACT) -> Tensor:
    """Signed weights of the index heads, scale included, float64 ``(T, index_n_heads)`` (spec §7)."""
    weights = project(x, spec.weights.weights_proj)
    return (bf16(weights) if rounding.activations else weights) * spec.geometry.index_weight_scale


def scores(iq: Tensor, w: Tensor, ik: Tensor) -> Tensor:
    """``sum_h w[t, h] relu(<iq[t, h], ik[i]>)``, float64 ``(T, n)`` for every entry, visible or not (spec §7)."""
    out = iq.new_empty(iq.shape[0], ik.shape[0])
    for part in _row_chunks(iq.shape[0], iq.shape[1] * ik.shape[0]):
        heard = torch.relu_(iq[part].flatten(0, 1) @ ik.T).view(-1, iq.shape[1], ik.shape[0])
        out[part] = torch.bmm(w[part, None, :], heard)[:, 0]
    return out


def top_entries(iq: Tensor, w: Tensor, ik: Tensor, positions: Tensor, topk: int) -> Tensor:
    """Entries each query selects, int64 ``(T, topk)``, then -1: all n(t) in order where they fit, without a look at
    the scores, else the topk with the largest (spec §7)."""
    seen = compressor.visible(positions, RATIO)
    chosen = all_entries(seen, topk)
    crowded = torch.nonzero(seen > topk)[:, 0]
    for part in _row_chunks(crowded.shape[0], iq.shape[1] * ik.shape[0]):
        rows = crowded[part]
        most = int(seen[rows].max())  # keys beyond it are nobody's: half the work of a causal prefill
        hidden = torch.arange(most, device=iq.device) >= seen[rows, None]
        chosen[rows] = scores(iq[rows], w[rows], ik[:most]).masked_fill_(hidden, -torch.inf).topk(topk).indices
    return chosen


def all_entries(seen: Tensor, width: int) -> Tensor:
    """The first ``seen`` entries in order, then -1: int64 ``(T, width)``."""
    place = torch.arange(width, device=seen.device)
    return torch.where(place < seen[:, None], place, -1)


def selection_faults(
    score_rows: Tensor, claimed: Tensor, seen: Tensor, topk: int, band: float | Tensor = 0.0
) -> list[str]:
    """One sentence per query row whose claimed selection is no top-k; empty if all are right (spec §7, INV-31, INV-32).

    ``score_rows``: ``(T, m)``, read only where a row sees more than ``topk`` entries; ``claimed``: integers ``(T, k)``,
    -1 = none, anywhere in the row; ``seen``: n(t) ``(T,)``; ``band``: score noise, one number or ``(T,)``. A row is
    right if it names min(n(t), topk) entries, each once and below n(t), and none of them scores lower by more than the
    band than one that it leaves out. Raises BadInput if a row sees more entries than it has scores and topk.
    """
    width = max(int(seen.max()) if seen.numel() else 0, 0)
    if width > max(topk, score_rows.shape[1]):
        raise BadInput(
            f"a query sees {width} entries but has {score_rows.shape[1]} scores; pass a score for every visible entry."
        )
    claimed, named = claimed.to(torch.int64), claimed != -1
    inside = named & (claimed >= 0) & (claimed < seen[:, None])
    times = torch.zeros(claimed.shape[0], width + 1, dtype=torch.int64, device=claimed.device)
    times.scatter_add_(1, claimed.clamp(0, width), inside.to(torch.int64))
    times = times[:, :width]
    best_left_out, worst_chosen = _edges(score_rows, times > 0, seen)
    behind = (seen > topk) & ~(worst_chosen >= best_left_out - band)  # NaN is behind
    want = seen.clamp(max=topk)
    counts, strays, repeats = named.sum(1), (named & ~inside).sum(1), (times > 1).sum(1)
    faults = []
    for t in torch.nonzero((counts != want) | (strays > 0) | (repeats > 0) | behind)[:, 0].tolist():
        if strays[t]:
            what = f"names {int(strays[t])} entries outside its {int(seen[t])} visible ones"
        elif repeats[t]:
            what = f"names {int(repeats[t])} entries more than once"
        elif counts[t] != want[t]:
            what = f"names {int(counts[t])} entries instead of {int(want[t])}"
        else:
            what = f"names an entry of score {worst_chosen[t]:.9g} and leaves out one of {best_left_out[t]:.9g}"
        faults.append(f"row {t} {what}")
    return faults


def _edges(score_rows: Tensor, chosen: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Largest score of a visible entry left out (-inf if none is), smallest of a chosen one (inf if none is), ``(T,)``;
    of no meaning in rows that see at most topk entries, whose scores may be anything."""
    width = min(chosen.shape[1], score_rows.shape[1])
    rows, chosen = score_rows[:, :width].to(torch.float64), chosen[:, :width]
    left_out = ~chosen & (torch.arange(width, device=rows.device) < seen[:, None])
    nothing = rows.new_full((rows.shape[0], 1), -torch.inf)
    best = torch.cat((rows.masked_fill(~left_out, -torch.inf), nothing), 1).amax(1)
    worst = torch.cat((rows.masked_fill(~chosen, torch.inf), -nothing), 1).amin(1)
    return best, worst


def _kept(spec: IndexerSpec, vectors: Tensor, rounding: Rounding) -> Tensor:
    vectors = bf16(vectors) if rounding.activations else vectors
    return scaled_fp8(vectors) if spec.quantised or rounding.index else vectors


def _row_chunks(rows: int, per_row: int) -> Iterator[slice]:
    step = max(1, _SCRATCH // max(1, per_row))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
