"""What is wrong with bytes of a page, in words: where, which codes, and which known mistake makes them (spec §9.2)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from dsv4_conformance.oracle import kv_format
from dsv4_conformance.oracle.kv_format import Form
from dsv4_conformance.spec.kv_layout import DIALECTS, PageLayout, Ue8m0Floor

TILE = PageLayout.TILE


def misread(got: Tensor, codes: Tensor, scales: Tensor, slots: Tensor, form: Form) -> str:
    """Sentence on rows ``got`` ``(n, 448)`` read from ``codes`` uint8 ``(n, 448)`` and ``scales`` uint8 ``(n, 7)`` at
    ``slots``; "" if all are right. A NaN code must be read as NaN."""
    factor = torch.exp2(scales.to(torch.float64) - 127).repeat_interleave(TILE, dim=1)
    got, want = got.to(torch.float64), kv_format.e4m3_value(codes, form.dialect) * factor
    wrong = ~((got == want) | (got.isnan() & want.isnan()))
    if not bool(wrong.any()):
        return ""
    row, dim = (int(place) for place in torch.nonzero(wrong)[0])
    bad = codes[wrong]
    known = _reading(got[wrong] / factor[wrong], bad, form)
    return (
        f"unpack: slot {int(slots[row])}, dim {dim}: code 0x{int(codes[row, dim]):02x} under scale byte "
        f"{int(scales[row, dim // TILE])} is read as {float(got[row, dim]):.6g}, and is {float(want[row, dim]):.6g}. "
        f"{int(wrong.sum())} of {wrong.numel()} values are wrong, of codes {_ranges(bad)}{known}."
    )


def _reading(values: Tensor, codes: Tensor, form: Form) -> str:
    """Which known mistake reads ``codes`` as ``values``, those of scale 1."""
    mantissa, sign = (codes & 7).to(torch.float64), 1 - 2 * (codes >> 7).to(torch.float64)
    flat = ((codes >> 3) & 15 == 0).all()
    if bool(flat) and torch.equal(values, sign * (1 + mantissa / 8) * 2.0**-form.dialect.bias):
        return ": zeros and subnormals are read as normal numbers"
    if bool(flat) and bool((values == 0).all()):
        return ": subnormals are read as zeros"
    for other in DIALECTS.values():
        told = kv_format.e4m3_value(codes, other)
        if other != form.dialect and bool(((values == told) | (values.isnan() & told.isnan())).all()):
            return f": they are read as {other.name}"
    for power in (-1, 1):
        if torch.equal(values, kv_format.e4m3_value(codes, form.dialect) * 2.0**power):
            return f": the scale's exponent is off by {power:+d}"
    return ""


def miswritten(data: Tensor, scales: Tensor, given: Tensor, slots: Tensor, form: Form) -> str:
    """Sentence on codes ``data`` uint8 ``(n, 448)`` under ``scales`` uint8 ``(n, 7)`` written for float64 ``given``
    ``(n, 448)``; "" if every code is within half a step of its value."""
    factor = torch.exp2(scales.to(torch.float64) - 127).repeat_interleave(TILE, dim=1)
    value = kv_format.e4m3_value(data, form.dialect) * factor
    # Half a step: 2**-4 of a normal number; of those below, half of the smallest subnormal.
    least = 2.0 ** (-3 - form.dialect.bias)
    wrong = ~((value - given).abs() <= torch.maximum(given.abs() / 16, least * factor))
    if not bool(wrong.any()):
        return ""
    row, dim = (int(place) for place in torch.nonzero(wrong)[0])
    scaled = given[wrong] / factor[wrong]
    known = ""
    if bool((value[wrong] == 0).all()) and bool((scaled.abs() < 2.0 ** (1 - form.dialect.bias)).all()):
        known = "; all stand below the smallest normal number: subnormals are written as zeros"
    nearest = kv_format.e4m3_code((given / factor).clamp(-form.top, form.top), form.dialect)
    return (
        f"pack: slot {int(slots[row])}, dim {dim}: {float(given[row, dim]):.6g} under scale byte "
        f"{int(scales[row, dim // TILE])} is code 0x{int(data[row, dim]):02x}, and 0x{int(nearest[row, dim]):02x} is "
        f"nearest. {int(wrong.sum())} of {wrong.numel()} values are off by more than half an fp8 step{known}."
    )


def misscaled(got: Tensor, want: Tensor, maxima: Tensor, slots: Tensor, form: Form) -> str:
    """Sentence on scale bytes ``got`` ``(n, 7)`` where ``want`` are right, for tiles whose largest value is ``maxima``;
    "" if all are right."""
    got, want = got.to(torch.int64), want.to(torch.float64).round().to(torch.int64)
    wrong = got != want
    if not bool(wrong.any()):
        return ""
    row, tile = (int(place) for place in torch.nonzero(wrong)[0])
    fits = [
        other.value
        for other in Ue8m0Floor
        if torch.equal(kv_format.scale_exponent(maxima, other.value, form.top) + 127, got)
    ]
    known = f"; all bytes are those of ue8m0_floor={fits[0]!r}, and {form.floor!r} is declared" if fits else ""
    off = (got - want)[wrong]
    if not fits and bool((off == off[0]).all()):
        known = f"; all of them by {int(off[0]):+d}"
    return (
        f"pack: slot {int(slots[row])}, tile {tile}: its largest value is {float(maxima[row, tile]):.6g}, its scale "
        f"byte {int(got[row, tile])}, and {int(want[row, tile])} is right. {int(wrong.sum())} of {wrong.numel()} bytes "
        f"are wrong{known}."
    )


def mispacked(pages: Tensor, tokens: Tensor, slots: Tensor, form: Form) -> str:
    """Sentence on the scales, else the codes, that stand in a kernel view for rows ``tokens`` ``(n, 512)`` at ``slots``
    (-1: none); "" if both are right."""
    kept, size = slots >= 0, pages.shape[1]
    slots, values = slots[kept], tokens[kept, : PageLayout.NOPE].to(torch.float64)
    data, scales = (view[slots // size, slots % size] for view in kv_format.page_views(pages))
    data, scales = data[:, : PageLayout.NOPE], scales[:, : PageLayout.TILES]
    maxima = torch.unflatten(values, -1, (PageLayout.TILES, TILE)).abs().amax(-1)
    right = kv_format.scale_exponent(maxima, form.floor, form.top) + 127
    return misscaled(scales, right, maxima, slots, form) or miswritten(data, scales, values, slots, form)


def _ranges(codes: Tensor) -> str:
    """Different codes in order, neighbours joined: ``0x00-0x07, 0x80-0x87``; at most six ranges."""
    told: list[str] = []
    for first, last in _runs(sorted(set(codes.flatten().tolist()))):
        told.append(f"0x{first:02x}" + (f"-0x{last:02x}" if last > first else ""))
    return ", ".join(told[:6]) + (f" and {len(told) - 6} ranges more" if len(told) > 6 else "")


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
