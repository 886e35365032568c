"""Judges a property case: every drawn schedule on a session of its own, a failure told for the shortest one found."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import torch

from dsv4_conformance.cases.compressor_case import CompressorCase
from dsv4_conformance.cases.compressor_inputs import compressor_spec, token_streams
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.property_case import PropertyCase
from dsv4_conformance.cases.schedule_rules import LOOKBACK
from dsv4_conformance.errors import ConformanceFailure, NotApplicable
from dsv4_conformance.implementations.registry import BUILT_IN
from dsv4_conformance.numerics.layer import stored_rows
from dsv4_conformance.oracle import layer_stages
from dsv4_conformance.runner.declared import fitted, layer_convention
from dsv4_conformance.runner.driving import LedCompressor
from dsv4_conformance.runner.layer_run import LayerRun
from dsv4_conformance.runner.subject import Subject

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def judge_schedules(subject: Subject, case: PropertyCase) -> None:
    """Judge ``case.examples`` schedules. Raises ConformanceFailure for the shortest that fails, with the command that
    runs it alone; NotApplicable outside what the adapter declares."""
    from dsv4_conformance.cases.search import Search  # imports Hypothesis, which only properties need

    session = case.each
    if isinstance(session, LayerCase):
        session = fitted(subject, session)  # the flavour that runs, and that the command names
    failures: dict[str, ConformanceFailure] = {}
    outside: dict[str, NotApplicable] = {}

    def fails(schedule: str) -> bool:
        try:
            judge_schedule(subject, session.with_(schedule=schedule))
        except ConformanceFailure as failure:
            if _device_is_lost(failure):
                raise told(failure, schedule, "The schedule was") from failure
            failures[schedule] = failure
        except NotApplicable as beyond:  # a fork, say, among the steps that were drawn
            outside[schedule] = beyond
        return schedule in failures

    def told(failure: ConformanceFailure, schedule: str, what: str) -> ConformanceFailure:
        command = replay_command(subject, session.with_(schedule=schedule))
        return type(failure)(f"{failure} {what} {schedule!r}; run it alone with: {command}")

    made = Search(fails)
    try:
        shortest = made.run(_drawn(subject, case), case)
    finally:
        subject.note(schedules=len(made.tried), stream=made.stream(), **({"outside": len(outside)} if outside else {}))
    if len(outside) == len(made.tried) > 0:
        raise next(iter(outside.values()))
    if shortest is not None:
        raise told(failures[shortest], shortest, "The shortest schedule found that fails is") from failures[shortest]


def judge_schedule(subject: Subject, case: LayerCase | CompressorCase, graph_rows: int = 0) -> None:
    """Lead one session through its schedule; judge all it returned and what it stores in the end.

    With ``graph_rows`` a layer's decode steps are replays of a step captured for as many rows. Raises
    ConformanceFailure, and NotApplicable outside what the adapter declares.
    """
    if isinstance(case, CompressorCase):
        spec, streams = compressor_spec(case, subject.device), token_streams(case, subject.device)
        LedCompressor(subject, spec, streams, case.schedule).judge()
        return
    if graph_rows and "decode" not in getattr(subject.implementation.surfaces[case.surface], "graphs", ()):
        raise NotApplicable("the adapter declares that it captures no decode steps.")
    run = LayerRun(subject, case).run(graph_rows=graph_rows)
    for sequence in run.streams:
        _judge_stored(run, sequence)


def lookback(subject: Subject, surface: str) -> int:
    """Tokens that schedules may take back, by the adapter's declaration for AttentionLayer or Compressor."""
    return min(LOOKBACK, getattr(subject.implementation.surfaces.get(surface), "lookback", LOOKBACK))


def _drawn(subject: Subject, case: PropertyCase) -> SearchStrategy[str]:
    """Schedules within what the adapter declares: without prefixes or rows of nobody if it cannot have them, and of one
    sequence at a time if its sequences go in step."""
    from dsv4_conformance.cases.strategies import SEQUENCES, compressor_schedules, layer_schedules

    back = lookback(subject, case.surface)
    if not isinstance(case.each, LayerCase):
        return compressor_schedules(case.tokens, back)
    convention = layer_convention(subject)
    without = [] if convention.forks == "anywhere" else ["fork"]
    without += [] if convention.padded_rows else ["pad"]
    return layer_schedules(case.tokens, back, 1 if convention.lockstep else SEQUENCES, without)


def replay_command(subject: Subject, case: LayerCase | CompressorCase) -> str:
    """The command that runs a case alone on this adapter and device."""
    adapter = type(subject.implementation)
    target = f"{adapter.__module__}:{adapter.__qualname__}"
    name = next((name for name, known in BUILT_IN.items() if known == target), target)
    words = ["dsv4-conformance", "replay", "--impl", name, "--ratio", str(case.ratio), "--schedule", case.schedule]
    if isinstance(case, CompressorCase):
        words += ["--surface", "Compressor", "--dim", str(case.dim)]
    else:
        words += ["--precision", case.precision, *(["--quantised"] if case.quantised else []), "--path", case.path]
        words += ["--geometry", case.geometry] if case.geometry != "tiny" else []
        words += ["--tp", str(case.tp), "--rank", str(case.rank)] if case.tp > 1 else []
    return shlex.join([*words, "--seed", str(case.seed), "--device", subject.device.type])


def _judge_stored(run: LayerRun, sequence: int) -> None:
    """Judge the rows that later tokens would read, whether or not a step has read them."""
    x, spec = run.x(sequence), run.spec
    if not run.exact and run.convention.window_history == "all":
        stored_rows(spec, run.session, sequence, x)
        return
    seen = torch.arange(max(0, len(x) - 127), len(x), device=x.device)
    rows = run.session.window_rows(sequence, seen)
    if run.exact:
        run.subject.close("window rows", rows, layer_stages.window_keys(spec, x[seen], seen))
        if spec.ratio:
            entries = run.session.compressed_rows(sequence)
            run.subject.close("compressed entries", entries, layer_stages.compressed_entries(spec, x))
        return
    run.subject.promised("window_rows", rows, (len(seen), 512), torch.float32)
    run.subject.expect(rows.isfinite().all(), f"the window of sequence {sequence} holds no numbers.")
    window = x.new_full((len(x), 512), torch.nan)  # not read
    window[seen] = rows
    stored_rows(spec, run.session, sequence, x, window)


def _device_is_lost(failure: ConformanceFailure) -> bool:
    """Whether the adapter raised a CUDA error: then every later schedule fails as well."""
    return isinstance(failure.__cause__, RuntimeError) and "cuda error" in str(failure.__cause__).lower()
