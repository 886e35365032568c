"""Leads an Indexer session through a schedule and judges its scores and selections (spec §7)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.cases.compressor_case import IndexerCase, TopkCase
from dsv4_conformance.cases.compressor_inputs import Streams, index_capacity, index_streams, indexer_spec
from dsv4_conformance.cases.index_topk import geometry_of, rows_with_topk, with_topk
from dsv4_conformance.cases.schedule import Step, sequences
from dsv4_conformance.errors import ContractViolation, NotApplicable
from dsv4_conformance.implementations.state_api import IndexSegment, Selection
from dsv4_conformance.numerics.selection import Exact, exact_scores, trailing_fill
from dsv4_conformance.numerics.state import FLOAT32
from dsv4_conformance.numerics.state_reference import ROUNDED
from dsv4_conformance.oracle import indexer
from dsv4_conformance.oracle.compressor import visible
from dsv4_conformance.oracle.indexer import selection_faults
from dsv4_conformance.runner.driving import Led, Stretch, declared
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.weights import IndexerSpec


class LedIndexer(Led):
    """An Indexer session; each stretch holds its selections, its query sources and its keys."""

    surface = "Indexer"

    def __init__(
        self, subject: Subject, spec: IndexerSpec, streams: tuple[Streams, Streams], schedule: str, room: int
    ) -> None:
        opened = subject.open("open_indexer", spec, max(sequences(schedule), 1), room)
        super().__init__(subject, opened, streams[0])
        self.spec, self.sources = spec, streams[1]
        self.lead(schedule)

    def _push(self, step: Step) -> None:
        stretches = [self._stretch(sequence) for sequence, _ in step.parts]
        given = [
            IndexSegment(sequence, self.streams.take(sequence, count), self.sources.take(sequence, count))
            for sequence, count in step.parts
        ]
        returned = self._answers(self.session.push(given), len(given))
        for stretch, segment, selection in zip(stretches, given, returned, strict=True):
            stretch.returned.append(self._promised(selection, segment))

    def _promised(self, given: Any, segment: IndexSegment) -> Selection:
        """The selection, once its shapes are what the surface promises."""
        if not isinstance(given, tuple) or len(given) != 3:
            raise ContractViolation("push returned no (raw, paged, scores) for a segment.")
        raw, paged, scores = given
        shape = (len(segment.x), self.spec.geometry.index_topk)
        self.subject.promised("push", raw, shape, torch.int32)
        if paged is not None:
            self.subject.promised("push", paged, shape, torch.int32)
        if scores is not None:
            width = scores.shape[-1] if isinstance(scores, Tensor) and scores.dim() == 2 else 0
            self.subject.promised("push", scores, (len(segment.x), width), torch.float32)
        return Selection(raw, paged, scores)

    def _close(self, sequence: int) -> None:
        if sequence in self._running:
            stretch = self._running[sequence]
            stretch.qr = self.sources.held(sequence)
            held = len(self.streams.held(sequence)) // 4
            keys = self.subject.promised("keys", self.session.keys(sequence), (held, 128), torch.float32)
            stretch.shown = keys
            stretch.keys = keys if declared(self.subject, self.surface).hadamard else indexer.hadamard(keys)
            stretch.table = self.session.page_table(sequence)
        super()._close(sequence)

    def _drop(self, sequence: int, length: int) -> None:
        super()._drop(sequence, length)
        self.sources.keep(sequence, length)


def led(subject: Subject, case: IndexerCase, spec: IndexerSpec | None = None) -> LedIndexer:
    """The case's session after its schedule. Raises NotApplicable outside what the adapter declares."""
    quantised = declared(subject, "Indexer").quantised
    if case.quantised not in quantised:
        raise NotApplicable(f"quantised {case.quantised} is not among the declared {quantised}.")
    spec = spec or indexer_spec(case, subject.device)
    return LedIndexer(subject, spec, index_streams(case, subject.device), case.schedule, index_capacity(case))


def fitted(subject: Subject, case: IndexerCase) -> IndexerCase:
    """``case`` with keys and queries stored as the adapter declares, and as many entries selected, where it does not
    offer the case's own way."""
    convention = declared(subject, "Indexer")
    if case.quantised not in convention.quantised:
        case = case.with_(quantised=convention.quantised[0])
    if convention.topk is not None and geometry_of(case).index_topk not in convention.topk:
        case = with_topk(case, convention.topk[0])
    return case


def fitted_rows(subject: Subject, case: TopkCase) -> TopkCase:
    """``case`` with as many entries selected as the adapter declares, where it does not offer the case's own number."""
    offered = declared(subject, "Indexer").topk
    return case if offered is None or case.topk in offered else rows_with_topk(case, offered[0])


def form_of(subject: Subject) -> indexer.Form:
    """How the adapter declares that it rounds to fp8."""
    convention = declared(subject, "Indexer")
    return indexer.Form(convention.hadamard, convention.index_scale == "power of two")


def queries(subject: Subject, spec: IndexerSpec, qr: Tensor, positions: Tensor) -> Tensor:
    """The oracle's index queries in the adapter's form, rotated."""
    return indexer.queries(spec, qr, positions, form=form_of(subject))


def need_pages(subject: Subject) -> None:
    """Raise NotApplicable unless selections also come as slots of pages."""
    if not declared(subject, "Indexer").paged:
        raise NotApplicable("the adapter declares that its selections name no pages.")


def crowded(session: LedIndexer, stretch: Stretch) -> Tensor:
    """Which tokens of a stretch see more entries than are selected, bool ``(T,)``: whose scores count."""
    return visible(stretch.positions, 4) > session.spec.geometry.index_topk


def exact(subject: Subject, spec: IndexerSpec, stretch: Stretch, rows: Tensor) -> Exact:
    """The oracle's scores of some tokens of a stretch over the keys that the session stored."""
    assert stretch.qr is not None and stretch.keys is not None
    positions = stretch.positions[rows]
    x, qr = stretch.x[positions], stretch.qr[positions]
    return exact_scores(spec, x, qr, positions, stretch.keys, declared(subject, "Indexer").precision, form_of(subject))


def scores_of(stretch: Stretch, rows: Tensor) -> Tensor | None:
    """The session's own scores of some tokens, float32 ``(T, entries at the end)``, NaN where it gave none; None if it
    gives none at all."""
    if any(selection.scores is None for selection in stretch.returned):
        return None
    width = len(stretch.x) // 4
    parts = [
        torch.nn.functional.pad(s.scores, (0, max(width - s.scores.shape[1], 0)), value=torch.nan)[:, :width]
        for s in stretch.returned
    ]
    return torch.cat(parts)[rows]


def judge_selections(
    subject: Subject, session: LedIndexer, factor: float = 1.0, right: IndexerSpec | None = None
) -> None:
    """Hold every selection to the oracle's scores under ``right`` times ``factor``, within their noise."""
    topk, crowds = session.spec.geometry.index_topk, 0
    for stretch in session.finish():
        raw, seen = torch.cat([s.raw for s in stretch.returned]), visible(stretch.positions, 4)
        rows = crowded(session, stretch)
        scores, band = stretch.x.new_zeros(len(raw), 0, dtype=torch.float64), torch.zeros(len(raw), device=raw.device)
        if rows.any():
            found = exact(subject, right or session.spec, stretch, rows)
            scores = scores.new_zeros(len(raw), found.scores.shape[1])
            scores[rows], band = found.scores * factor, band.to(torch.float64)
            band[rows] = found.band * abs(factor)
            crowds += int(rows.sum())
        faults = selection_faults(scores, raw, seen, topk, band)
        subject.expect(
            not faults,
            f"sequence {stretch.sequence} from token {stretch.start}: {faults[0]} ({len(faults)} of {len(raw)} are "
            "wrong)."
            if faults
            else "",
        )
        subject.expect(trailing_fill(raw, seen, topk).all(), "-1 stands before or between selected entries.")
    subject.note(tokens_that_choose=crowds)


def judge_scores(subject: Subject, stretch: Stretch, rows: Tensor, want: Tensor, noise: Tensor) -> None:
    """Compare the session's scores of ``rows`` with ``want`` where they are visible, if it shows them."""
    got = scores_of(stretch, rows)
    if got is None:
        return
    seen = visible(stretch.positions[rows], 4)
    shown = torch.arange(want.shape[1], device=want.device) < seen[:, None]
    error = torch.where(shown, (got.to(torch.float64) - want).abs(), 0.0).nan_to_num(nan=torch.inf)
    ratio = error / noise[:, None]
    worst = int(ratio.argmax())
    row, entry = divmod(worst, want.shape[1])
    subject.note(scores_ratio=float(ratio.max()))
    subject.expect(
        ratio.max() <= 1,
        f"score of token {int(stretch.positions[rows][row])}, entry {entry}: {float(got[row, entry]):.9g} where "
        f"{float(want[row, entry]):.9g} is right, {float(ratio.max()):.3g} times the noise that is allowed.",
    )


def judge_keys(subject: Subject, session: LedIndexer, stretch: Stretch) -> None:
    """Hold stored keys to the index compressor's entries, rotated: to half an fp8 step if they are quantised, or to
    what the rounding contract leaves where the adapter declares one."""
    want = indexer.keys(replace(session.spec, quantised=False), stretch.x)
    low, form = declared(subject, "Indexer").precision == "bfloat16", form_of(subject)
    assert stretch.keys is not None
    where = f" of sequence {stretch.sequence}"
    if session.spec.quantised and form.power_of_two:
        assert stretch.shown is not None
        subject.stored("index keys", stretch.shown, want if form.rotated else indexer.hadamard(want), where=where)
        return
    if not session.spec.quantised:
        reference = indexer.keys(session.spec, stretch.x, ROUNDED) if low else None
        subject.close("index keys", stretch.keys, want, "bfloat16" if low else "float32", reference, where)
        return
    largest = want.abs().amax(1, keepdim=True)
    # Half a step of e4m3, subnormals included, and what the arithmetic before it may move.
    coarse = torch.maximum(want.abs() / 16, largest.clamp(min=1e-4) / 448 * 2.0**-10) * (1 + 2.0**-6)
    apart = (stretch.keys.to(torch.float64) - want).abs() / (coarse + largest * (2.0**-7 if low else FLOAT32))
    wrong = ~(apart <= 1).all(1)
    subject.expect(
        not wrong.any(),
        f"index keys{where}: {int(wrong.sum())} of {len(want)} are off by more than fp8 loses, the first is entry "
        f"{int(wrong.to(torch.uint8).argmax())}."
        if len(want)
        else "",
    )
