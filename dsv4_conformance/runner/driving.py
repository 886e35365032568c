"""Leads a session through a schedule and keeps what it returned, stretch by stretch; judges a Compressor's entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.cases.compressor_inputs import Streams
from dsv4_conformance.cases.schedule import BATCHES, Step, sequences, steps
from dsv4_conformance.errors import ContractViolation, HarnessError, NotApplicable
from dsv4_conformance.implementations.state_api import Segment, StateConvention
from dsv4_conformance.numerics import state_reference
from dsv4_conformance.oracle import compressor
from dsv4_conformance.runner.opened import Opened
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.geometry import HEAD_DIM
from dsv4_conformance.spec.weights import CompressorSpec


def declared(subject: Subject, surface: str) -> StateConvention:
    """The adapter's declaration for Compressor or Indexer."""
    found = subject.implementation.surfaces[surface]
    assert isinstance(found, StateConvention)
    return found


@dataclass
class Stretch:
    """What one sequence returned between two cuts (a start, a rejection, a release): from token ``start`` on, while it
    held ``x`` at the end. ``returned``: what each call gave for it. Of an indexer also its query sources, stored keys
    (rotated, and as shown) and page table at the end."""

    sequence: int
    start: int
    x: Tensor
    returned: list[Any]
    qr: Tensor | None = None
    keys: Tensor | None = None
    shown: Tensor | None = None
    table: Tensor | None = None

    @property
    def positions(self) -> Tensor:
        """Positions of its tokens, int64 ``(T,)``."""
        return torch.arange(self.start, len(self.x), device=self.x.device)


class Led:
    """A session and the tokens that went into it."""

    surface: str

    def __init__(self, subject: Subject, session: Opened, streams: Streams) -> None:
        self.subject, self.session, self.streams = subject, session, streams
        self.stretches: list[Stretch] = []
        self._running: dict[int, Stretch] = {}

    def lead(self, schedule: str) -> None:
        """Run the steps of a schedule. Raises NotApplicable if it takes back more than the adapter declares."""
        for step in steps(schedule):
            if step.kind in BATCHES:
                self._push(step)
            elif step.kind == "keep":
                ((sequence, length),) = step.parts
                self._take_back(sequence, length)
            elif step.kind == "release":
                ((sequence, _),) = step.parts
                self._close(sequence)
                self.session.release(sequence)
                self._drop(sequence, 0)
            elif step.kind == "poison":
                self._poison()
            else:
                raise HarnessError(f"step {step.text()!r} means nothing to a {self.surface} session.")

    def finish(self) -> list[Stretch]:
        """Every stretch, the running ones included."""
        for sequence in list(self._running):
            self._close(sequence)
        return self.stretches

    def _take_back(self, sequence: int, length: int) -> None:
        dropped = len(self.streams.held(sequence)) - length
        allowed = declared(self.subject, self.surface).lookback
        if dropped > allowed:
            raise NotApplicable(f"takes back {dropped} tokens; the adapter declares a lookback of {allowed}.")
        self._close(sequence)
        self.session.truncate(sequence, length)
        self._drop(sequence, length)

    def _drop(self, sequence: int, length: int) -> None:
        self.streams.keep(sequence, length)

    def _poison(self) -> None:
        """NaN in all state storage; only while no sequence lives."""
        if self._running:
            raise HarnessError("a schedule poisons state that a live sequence owns.")
        for tensor in self.session.state():
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                tensor.fill_(torch.nan)

    def _stretch(self, sequence: int) -> Stretch:
        held = self.streams.held(sequence)
        return self._running.setdefault(sequence, Stretch(sequence, len(held), held, []))

    def _push(self, step: Step) -> None:
        raise NotImplementedError

    def _close(self, sequence: int) -> None:
        if sequence in self._running:
            stretch = self._running.pop(sequence)
            stretch.x = self.streams.held(sequence)
            self.stretches.append(stretch)

    def _answers(self, returned: Any, wanted: int) -> list[Any]:
        if not isinstance(returned, list | tuple) or len(returned) != wanted:
            what = f"{len(returned)} results" if isinstance(returned, list | tuple) else type(returned).__name__
            raise ContractViolation(f"push returned {what} for {wanted} segments; the surface promises one for each.")
        return list(returned)


class LedCompressor(Led):
    """A Compressor session; ``judge`` compares all it returned with the oracle."""

    surface = "Compressor"

    def __init__(self, subject: Subject, spec: CompressorSpec, streams: Streams, schedule: str) -> None:
        super().__init__(subject, subject.open("open_compressor", spec, max(sequences(schedule), 1)), streams)
        self.spec = spec
        self.lead(schedule)

    def _push(self, step: Step) -> None:
        stretches = [self._stretch(sequence) for sequence, _ in step.parts]
        before = [len(self.streams.held(sequence)) for sequence, _ in step.parts]
        given = [Segment(sequence, self.streams.take(sequence, count)) for sequence, count in step.parts]
        returned = self._answers(self.session.push(given), len(given))
        for stretch, first, segment, entries in zip(stretches, before, given, returned, strict=True):
            stop = first + len(segment.x)
            due = stop // self.spec.ratio - first // self.spec.ratio
            count = len(entries) if isinstance(entries, Tensor) and entries.dim() else 0
            self.subject.expect(
                count == due,
                f"push of tokens {first} to {stop - 1} at ratio {self.spec.ratio} returned {count} entries "
                f"instead of {due}.",
            )
            self.subject.promised("push", entries, (due, self.spec.dim), torch.float32)
            stretch.returned.append(entries)

    def entries(self) -> list[tuple[Stretch, int, Tensor]]:
        """Per stretch: the number of its first entry, and its entries float32 ``(m, dim)``."""
        return [(s, s.start // self.spec.ratio, torch.cat(s.returned)) for s in self.finish()]

    def judge(self, spec: CompressorSpec | None = None) -> None:
        """Compare every entry with what the oracle makes of the tokens its sequence held, under ``spec``."""
        right = spec or self.spec
        for stretch, first, got in self.entries():
            want = compressor.entries(right, stretch.x)[first:]
            where = f", counted from entry {first} of sequence {stretch.sequence}"
            judge_entries(self.subject, right, got, want, stretch.x, first, where)


def judge_entries(
    subject: Subject, spec: CompressorSpec, got: Tensor, want: Tensor, x: Tensor, first: int = 0, where: str = ""
) -> None:
    """Compare entries with the truth ``want`` in the form that the adapter declares: exact, or as fp8 rows hold them.

    ``x``: all tokens of the sequence, of which ``got`` are the entries from ``first`` on.
    """
    convention = declared(subject, "Compressor")
    if convention.stored == "fp8":
        floor = convention.ue8m0_floor if spec.dim == HEAD_DIM else "amax_1e-4"
        subject.stored("entries", got, want, floor, where)
        return
    low = convention.precision == "bfloat16"
    reference = state_reference.entries(spec, x)[first:] if low else None
    subject.close("entries", got, want, convention.precision, reference, where)
