"""Runs a layer case through its schedule and judges every row against the float64 oracle (spec §2, §20).

Rows are judged late, once per sequence and before anything that changes its past (a rejected draft, a release): one
float64 evaluation then serves all steps, and what a later step destroyed is seen as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.layer_inputs import spec_of, tokens, weights_root
from dsv4_conformance.cases.schedule import BATCHES, Step, steps
from dsv4_conformance.errors import ConformanceFailure, ContractViolation
from dsv4_conformance.implementations.state_api import LayerResult, Segment
from dsv4_conformance.numerics.layer import judge_rows
from dsv4_conformance.runner.declared import fitted, layer_convention, within_sinks
from dsv4_conformance.runner.opened import Opened
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.weights import LayerSpec

Token = tuple[int, int]
"""Where a token comes from: (sequence, attempt) of the stream that its position reads; a sequence's attempts count its
rejected drafts and its releases."""


@dataclass
class Rows:
    """What the implementation returned for consecutive rows of one sequence."""

    positions: Tensor
    o: Tensor
    out: Tensor
    q: Tensor | None
    selected: Tensor | None


@dataclass
class Stream:
    """A sequence: where each of its tokens comes from, rows not judged yet, and, of an adapter that gives old window
    rows back, those read while they were there (NaN elsewhere)."""

    tokens: list[Token] = field(default_factory=list)
    pending: list[Rows] = field(default_factory=list)
    window: Tensor | None = None


class LayerRun:
    """One session of the AttentionLayer surface under ``case``.

    ``spec``: what it is opened with, by default the case's. ``changed``: token rows ``{(sequence, position): row}``
    that differ from the case's. Raises NotApplicable outside what the adapter declares. An adapter that declares one
    path, no rows of nobody or no sink of +inf is led without choice of path, without such rows and with finite sinks.
    """

    def __init__(
        self,
        subject: Subject,
        case: LayerCase,
        spec: LayerSpec | None = None,
        changed: dict[tuple[int, int], Tensor] | None = None,
    ) -> None:
        case = fitted(subject, case)
        self.subject, self.case, self.device = subject, case, subject.device
        self.convention = layer_convention(subject)
        self.spec = within_sinks(self.convention, spec or spec_of(case, subject.device))
        self.session: Opened = subject.open("open_layer", self.spec)
        self.streams: dict[int, Stream] = {}
        self.outputs: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.paths: list[str] = []
        self._root, self._changed = weights_root(case), changed or {}
        self._sources: dict[Token, Tensor] = {}
        self._attempts: dict[int, int] = {}
        self.graphs: dict[int, Opened] = {}
        self.ordered = True
        """Whether every selection so far was shown, and listed its entries from the first to the last."""
        self.exact = case.precision == "float32" and not case.quantised
        self._reads_early = not self.exact and self.convention.window_history == "window"

    def run(self, judge: bool = True, graph_rows: int = 0) -> LayerRun:
        """All steps. With ``graph_rows`` decode steps are replays of a step captured for as many rows."""
        for step in steps(self.case.schedule):
            self.do(step, judge, graph_rows)
        if judge:
            self.judge()
        return self

    def do(self, step: Step, judge: bool = True, graph_rows: int = 0) -> None:
        """One step."""
        if step.kind in BATCHES or step.kind == "idle":
            self._batch(step, graph_rows)
        elif step.kind == "poison":
            self.session.poison()
        elif step.kind == "fork":
            (source, length), target = step.parts[0], step.target
            if judge:
                self.judge(source)
            self.session.fork(source, target, length)
            window = self.streams[source].window
            self.streams[target] = Stream(self.streams[source].tokens[:length])
            if window is not None:
                self.streams[target].window = window.clone()
                self._read_window(target)
        else:
            for sequence, length in step.parts:
                if judge:
                    self.judge(sequence)
                self.streams[sequence].pending.clear()
                # What is written next, also by the next sequence of this number, is not what stands there.
                self._attempts[sequence] = self._attempts.get(sequence, 0) + 1
                if step.kind == "keep":
                    self.session.truncate(sequence, length)
                    del self.streams[sequence].tokens[length:]
                    window = self.streams[sequence].window
                    if window is not None:
                        window[length:] = torch.nan
                else:
                    self.session.release(sequence)
                    del self.streams[sequence]

    def x(self, sequence: int) -> Tensor:
        """The tokens that a sequence holds, float32 ``(S, hidden)``."""
        return self._rows(sequence, self.streams[sequence].tokens, 0)

    def judge(self, sequence: int | None = None) -> None:
        """Judge the rows of one sequence, or of all, that were not judged yet."""
        for number in list(self.streams) if sequence is None else [sequence]:
            stream = self.streams[number]
            if not stream.pending:
                continue
            rows = _joined(stream.pending)
            stream.pending.clear()
            window = None if stream.window is None else stream.window[: len(stream.tokens)]
            judge_rows(self.subject, self.spec, self.session, number, self.x(number), rows, window)

    def same_rows(self, other: LayerRun) -> None:
        """Fail unless the sequences that both runs hold have the same rows: within 1e-5 in float32 on exact rows, else
        within the budgets of both against the definition."""
        if not self.exact:
            self.judge()
            other.judge()
            return
        for sequence in self.streams.keys() & other.streams.keys():
            for name, mine, theirs in zip(("o", "out"), self.output(sequence), other.output(sequence), strict=True):
                self.subject.close(name, theirs, mine.to(torch.float64), where=f", sequence {sequence}")

    def sink(self) -> Tensor:
        """The sink that the kernel is given. Raises ContractViolation unless it is float32 with a value per head."""
        sink = self.session.sink()
        heads = self.spec.geometry.num_attention_heads // self.spec.tp
        if not isinstance(sink, Tensor) or sink.dtype != torch.float32 or sink.dim() != 1 or len(sink) < heads:
            given = f"{tuple(sink.shape)} {sink.dtype}" if isinstance(sink, Tensor) else type(sink).__name__
            raise ContractViolation(f"sink returned {given}; the surface promises float32 of {heads} heads or more.")
        return sink

    def output(self, sequence: int, positions: range | None = None) -> tuple[Tensor, Tensor]:
        """o ``(n, n_local, 512)`` and out ``(n, hidden)`` of positions of a sequence, as last returned."""
        where = positions or range(len(self.streams[sequence].tokens))
        found = [self.outputs[sequence, position] for position in where]
        return torch.stack([o for o, _ in found]), torch.stack([out for _, out in found])

    def segments(self, step: Step) -> list[Segment]:
        """The new tokens of a step; each sequence's stream grows by them."""
        made = []
        for sequence, count in step.parts:
            stream = self.streams.setdefault(sequence, Stream())
            first = len(stream.tokens)
            stream.tokens += [(sequence, self._attempts.get(sequence, 0))] * count
            made.append(Segment(sequence, self._rows(sequence, stream.tokens[first:], first)))
        return made

    def keep(self, step: Step, result: LayerResult) -> None:
        """Copy what a step returned, and file it under its sequences. Raises ContractViolation for a wrong shape."""
        total = sum(count for _, count in step.parts)
        self._check(result, total)
        given = (result.o, result.out, result.q, result.selected)
        o, out, q, selected = (None if part is None else part.detach().clone() for part in given)
        assert o is not None and out is not None
        self.paths.append(result.path)
        self.ordered &= selected is not None and _ascending(selected)
        row = 0
        for sequence, count in step.parts:
            stream, part = self.streams[sequence], slice(row, row + count)
            first = len(stream.tokens) - count
            positions = torch.arange(first, first + count, device=self.device)
            cut = [None if whole is None else whole[part] for whole in (q, selected)]
            stream.pending.append(Rows(positions, o[part], out[part], *cut))
            for k in range(count):
                self.outputs[sequence, first + k] = (o[row + k], out[row + k])
            if self._reads_early:
                self._read_window(sequence)
            row += count

    def _read_window(self, sequence: int) -> None:
        """Read the last 128 window rows of a sequence, while they are there."""
        stream = self.streams[sequence]
        if stream.window is None:
            stream.window = torch.full((self.spec.max_tokens, 512), torch.nan, device=self.device)
        held = len(stream.tokens)
        positions = torch.arange(max(0, held - 128), held, device=self.device)
        rows = self.session.window_rows(sequence, positions)
        if not isinstance(rows, Tensor) or rows.shape != (len(positions), 512):
            shown = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise ContractViolation(f"window_rows returned {shown} for {len(positions)} positions.")
        nan = rows.isnan().any(1)
        if bool(nan.any()):  # what is not a number here means further on that it was gone
            position = int(positions[nan][0])
            raise ConformanceFailure(
                f"stored window row {position} of sequence {sequence} is NaN, and the next token sees it."
            )
        stream.window[positions] = rows.float()

    def _batch(self, step: Step, graph_rows: int) -> None:
        segments = self.segments(step)
        if graph_rows and step.kind == "decode":
            if graph_rows not in self.graphs:
                self.graphs[graph_rows] = self.session.capture(graph_rows)
            result = self.graphs[graph_rows].replay(segments)
        else:
            mode = "prefill" if step.kind == "idle" else step.kind
            path = self.case.path if step.kind == "prefill" and self.convention.paths else "auto"
            padding = step.padding if self.convention.padded_rows else 0
            result = self.session.step(segments, mode=mode, padded_rows=padding, path=path)
        self.keep(step, result)

    def _rows(self, sequence: int, origins: list[Token], first: int) -> Tensor:
        hidden = self.spec.geometry.hidden_size
        rows = torch.empty(len(origins), hidden, device=self.device)
        for origin in dict.fromkeys(origins):
            if origin not in self._sources:
                self._sources[origin] = tokens(self._root, *origin, self.spec.max_tokens, hidden, self.device)
            mine = torch.tensor([place for place, other in enumerate(origins) if other == origin], device=self.device)
            rows[mine] = self._sources[origin][first + mine]
        for (number, position), row in self._changed.items():
            if number == sequence and first <= position < first + len(origins):
                rows[position - first] = row
        return rows

    def _check(self, result: Any, total: int) -> None:
        heads, geometry = self.spec.geometry.num_attention_heads // self.spec.tp, self.spec.geometry
        rows = (total, heads, 512)
        promised = {
            "o": rows,
            "out": (total, geometry.hidden_size),
            "q": rows,
            "selected": (total, geometry.index_topk),
        }
        for name, shape in promised.items():
            given = getattr(result, name, None)
            if given is None and name in ("q", "selected"):
                if not hasattr(result, name):
                    raise ContractViolation(f"step returned {type(result).__name__} without {name}; None says unknown.")
                continue
            if not isinstance(given, Tensor) or tuple(given.shape) != shape:
                shown = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
                raise ContractViolation(f"step returned {name} as {shown}; the surface promises {shape}.")
            fits = not given.is_floating_point() if name == "selected" else given.is_floating_point()
            if not fits or given.is_complex() or given.layout != torch.strided or given.device.type != self.device.type:
                raise ContractViolation(
                    f"step returned {name} as {given.layout} {given.dtype} on {given.device}; the surface promises "
                    f"{'int32' if name == 'selected' else 'floating-point'} rows on {self.device.type}."
                )
        if not isinstance(getattr(result, "path", None), str):
            raise ContractViolation("step returned no path as text; the surface promises the name of the one that ran.")


def _ascending(selected: Tensor) -> bool:
    """Whether each row lists its entries in ascending order, the holes last."""
    later, before = selected[:, 1:], selected[:, :-1]
    return bool(((later > before) | (later < 0)).all())


def _joined(pending: list[Rows]) -> Rows:
    """All rows of one sequence, in order; q and selections only if every step returned them."""
    parts: dict[str, Any] = {}
    for name in ("positions", "o", "out", "q", "selected"):
        given = [getattr(rows, name) for rows in pending]
        parts[name] = None if any(part is None for part in given) else torch.cat(given)
    return Rows(**parts)


@contextmanager
def unset_memory_is_nan() -> Iterator[None]:
    """Memory that torch hands out unset holds NaN meanwhile, as it may on any busy machine."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    switches: Any = import_module("torch.utils.deterministic")
    fill = switches.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    switches.fill_uninitialized_memory = True
    try:
        yield
    finally:
        switches.fill_uninitialized_memory = fill
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
