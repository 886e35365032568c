"""Judges the rows of a layer stage by stage, each stage from what the implementation itself made of the one before.

A float32 layer with exact rows is judged end to end. Otherwise the oracle reads the layer's own cache rows, once they
are shown to be right up to quantisation, and its own selection, once that is shown to be a top-k; a bfloat16 layer's
own queries as well. So no flipped fp8 bin and no near tie hides or fakes an error of attention (spec §20).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from dsv4_conformance.errors import ConformanceFailure
from dsv4_conformance.oracle import layer, layer_stages
from dsv4_conformance.oracle.compressor import visible
from dsv4_conformance.oracle.indexer import selection_faults
from dsv4_conformance.oracle.kv_format import scale_exponent
from dsv4_conformance.oracle.rounding import Rounding, cache_row
from dsv4_conformance.spec.kv_layout import PageLayout
from dsv4_conformance.spec.weights import LayerSpec

FLOAT32_NOISE = 1e-5
BF16 = Rounding(queries=True, weights=True, outputs=True, activations=True)
"""What an independent bfloat16 layer rounds: the reference that budgets come from."""


class Returned(Protocol):
    """What an implementation returned for rows of one sequence."""

    positions: Tensor
    o: Tensor
    out: Tensor
    q: Tensor | None
    selected: Tensor | None


def judge_rows(
    subject: Any,
    spec: LayerSpec,
    session: Any,
    sequence: int,
    x: Tensor,
    rows: Returned,
    window: Tensor | None = None,
) -> None:
    """Judge q, stored rows, selection, o and out of rows of ``sequence``, whose tokens are ``x (S, hidden)``.

    ``subject`` records the verdicts (``close``); ``session`` shows its stored rows. ``window (S, 512)``: window rows
    read while they were there, NaN where they were gone; o is then judged in the rows whose whole window was read.
    Raises ConformanceFailure.
    """
    low = spec.precision == "bfloat16"
    positions = rows.positions
    heads = spec.geometry.local_heads(spec.tp)

    def place(row: int, at: Tensor) -> str:
        """Where a row of q or o stands, whose rows are positions times heads."""
        return f"sequence {sequence}, position {int(at[row // heads])}, head {spec.rank * heads + row % heads}"

    layer_is = f" (C{spec.ratio} layer{f', rank {spec.rank} of {spec.tp}' if spec.tp > 1 else ''})"
    qr = layer_stages.qr_of(spec, x[positions])
    if rows.q is not None:
        right = layer_stages.queries(spec, qr, positions)
        near = (
            layer_stages.queries(spec, layer_stages.qr_of(spec, x[positions], BF16), positions, BF16) if low else None
        )
        subject.close(
            "q", *_by_head(rows.q, right), spec.precision, _flat(near), layer_is, lambda row: place(row, rows.positions)
        )
    given: dict[str, Any] = {}
    if spec.quantised or low:
        given = stored_rows(spec, session, sequence, x, window)
    if rows.selected is not None and spec.ratio == 4:
        judge_selection(spec, x, positions, rows.selected)
        given["selected"] = rows.selected
    if low and rows.q is not None:
        given["q"] = rows.q.to(torch.float64)
    o = rows.o
    if window is not None:
        whole = _windows_read(window, positions, spec.geometry.sliding_window)
        positions, o = positions[whole], o[whole]
        given |= {name: given[name][whole] for name in ("selected", "q") if name in given}
        if not len(positions):
            return
    answer = layer.layer_output(spec, x, positions, **given)
    reference = layer.layer_output(spec, x, positions, **given, rounding=BF16) if low else None
    subject.close(
        "o",
        *_by_head(o, answer.o),
        spec.precision,
        None if reference is None else _flat(reference.o),
        layer_is,
        lambda row: place(row, positions),
    )
    told: tuple[str, Callable[[int], str]] = (
        layer_is,
        lambda row: f"sequence {sequence}, position {int(rows.positions[row])}",
    )
    if reference is None and window is None:
        subject.close("out", rows.out, answer.out, spec.precision, None, *told)
    else:
        own = rows.o.to(torch.float64)
        right = layer_stages.output(spec, own)
        subject.close("out", rows.out, right, spec.precision, layer_stages.output(spec, own, BF16), *told)


def _windows_read(window: Tensor, positions: Tensor, width: int) -> Tensor:
    """bool ``(T,)``: whether every row of the query's window is known."""
    unknown = torch.nn.functional.pad(window.isnan().any(1).long().cumsum(0), (1, 0))
    return unknown[positions + 1] == unknown[(positions - width + 1).clamp(min=0)]


def stored_rows(
    spec: LayerSpec, session: Any, sequence: int, x: Tensor, window: Tensor | None = None
) -> dict[str, Tensor]:
    """The layer's own window and compressed rows, float64, each shown to lie within quantisation of the exact ones."""
    everything = torch.arange(len(x), device=x.device)
    exact = _unquantised(spec)
    right = layer_stages.window_keys(exact, x, everything)
    if window is None:
        window = session.window_rows(sequence, everything)
        _judge_stored("window row", spec, window, right)
    else:
        known = torch.nonzero(~window.isnan().any(1))[:, 0]
        _judge_stored("window row", spec, window[known], right[known])
    found = {"window_rows": window.to(torch.float64)}
    if spec.ratio:
        entries = session.compressed_rows(sequence)
        _judge_stored("compressed entry", spec, entries, layer_stages.compressed_entries(exact, x))
        found["compressed_rows"] = entries.to(torch.float64)
    return found


def judge_selection(spec: LayerSpec, x: Tensor, positions: Tensor, selected: Tensor) -> None:
    """Raise ConformanceFailure unless every row's selection is a top-k up to score noise (spec §7, INV-31, INV-32).

    Noise: 1e-5 of a row's largest score in float32; with fp8 keys or bf16 activations, twice the largest difference
    that an independent computation with these roundings makes in that row.
    """
    seen, topk = visible(positions, 4), spec.geometry.index_topk
    if not (seen > topk).any():
        scores, band = x.new_zeros(len(positions), 0, dtype=torch.float64), torch.zeros(len(positions), device=x.device)
    else:
        exact = layer.selection_scores(_unquantised(spec), x, positions)
        band = FLOAT32_NOISE * exact.abs().amax(1)
        if spec.quantised or spec.precision == "bfloat16":
            rough = layer.selection_scores(
                spec, x, positions, Rounding(index=spec.quantised, activations=spec.precision == "bfloat16")
            )
            band = 2 * (rough - exact).abs().amax(1)
        scores = exact
    faults = selection_faults(scores, selected, seen, topk, band)
    if faults:
        raise ConformanceFailure(f"selection: {faults[0]} ({len(faults)} of {len(positions)} rows are wrong).")


def _judge_stored(what: str, spec: LayerSpec, rows: Any, exact: Tensor) -> None:
    """Every element within one rounding of the exact row: of e4m3 in the nope dims of a quantised layer, else bf16."""
    if not isinstance(rows, Tensor) or rows.shape != exact.shape:
        shown = f"shape {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
        raise ConformanceFailure(f"stored {what}: {shown} where {tuple(exact.shape)} is right.")
    nope = PageLayout.NOPE
    # One rounding to bf16 (2**-9), and as much again for the arithmetic before it.
    room = exact.abs() * 2.0**-8 + FLOAT32_NOISE * exact.abs().amax(-1, keepdim=True)
    if spec.quantised and len(exact):
        tiles = torch.unflatten(exact[:, :nope], -1, (PageLayout.TILES, PageLayout.TILE)).abs()
        # Half a step of e4m3 at the element, or of its subnormals; a tile maximum near a power of two may round up.
        scale = torch.exp2(scale_exponent(tiles.amax(-1) * (1 + 2.0**-8)).to(torch.float64))
        coarse = torch.maximum(tiles * 2.0**-4, scale[..., None] * 2.0**-10).flatten(-2) * (1 + 2.0**-5)
        room = torch.cat((room[:, :nope] + coarse, room[:, nope:]), 1)
    wrong = ~((rows.to(torch.float64) - exact).abs() <= room)
    if bool(wrong.any()):
        row, element = torch.nonzero(wrong)[0].tolist()
        raise ConformanceFailure(
            f"stored {what} {row}, element {element}: {float(rows[row, element]):.6g} where "
            f"{float(exact[row, element]):.6g} is right; {int(wrong.any(1).sum())} of {len(rows)} are wrong."
        )
    # What a page holds is a code times a power of two; storing it again changes nothing (spec §9.2).
    if spec.quantised and len(exact) and not torch.equal(cache_row(rows.to(torch.float64)), rows.to(torch.float64)):
        raise ConformanceFailure(f"stored {what}s hold values that an fp8 page cannot hold; the layer is quantised.")


def _unquantised(spec: LayerSpec) -> LayerSpec:
    return replace(spec, quantised=False)


def _by_head(got: Tensor, want: Tensor) -> tuple[Tensor, Tensor]:
    """``(T, heads, 512)`` as ``(T * heads, 512)``: a bf16 budget is one per row and head."""
    return (got.flatten(0, 1), want.flatten(0, 1)) if got.shape == want.shape else (got, want)


def _flat(reference: Tensor | None) -> Tensor | None:
    return None if reference is None else reference.flatten(0, 1)
