"""Captured steps of a layer: replays at other lengths, stable addresses, an idle host (INV-92 to 94, 54)."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.layer_inputs import sinks, weights_root
from dsv4_conformance.cases.schedule import BATCHES, Step, steps
from dsv4_conformance.errors import ConformanceFailure, NotApplicable
from dsv4_conformance.implementations.state_api import LayerConvention, Mode
from dsv4_conformance.runner.layer_run import LayerRun, unset_memory_is_nan
from dsv4_conformance.runner.opened import Opened
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement
from dsv4_conformance.texts import summary_of

LAYER = ("AttentionLayer",)
BLOCK = 512
"""Bytes that the device's allocator rounds every tensor up to."""
ROWS = 4
"""Rows of the captured step: more than any schedule of these cases decodes at once, so every replay has padding."""


def _opened(subject: Subject, case: LayerCase, mode: Mode) -> LayerRun:
    """A run of a layer that can capture steps of ``mode``."""
    convention = subject.implementation.surfaces["AttentionLayer"]
    assert isinstance(convention, LayerConvention)
    if mode not in convention.graphs:
        raise NotApplicable(f"the adapter declares that it captures no step of mode {mode}.")
    return LayerRun(subject, case)


def _captured(subject: Subject, case: LayerCase) -> LayerRun:
    """A run whose decode step is captured before anything else happens."""
    run = _opened(subject, case, "decode")
    run.graphs[ROWS] = run.session.capture(ROWS)
    return run


def _prefill_captured(subject: Subject, case: LayerCase) -> tuple[LayerRun, Opened]:
    """A run whose prefill is captured, with three rows more than any batch has, before anything else happens."""
    run = _opened(subject, case, "prefill")
    batches = [sum(count for _, count in step.parts) for step in steps(case.schedule) if step.kind == "prefill"]
    graph: Opened = run.session.capture(max(batches) + 3, mode="prefill")
    return run, graph


def _replay(run: LayerRun, graph: Opened, step: Step) -> None:
    """A prefill as a replay, any other step eagerly."""
    if step.kind == "prefill":
        segments = run.segments(step)
        run.keep(step, graph.replay(segments))
    else:
        run.do(step)


def _update(run: LayerRun, number: int) -> None:
    """Write the sinks of update ``number``, from 1 on; 0 are those that the layer was opened with."""
    heads = run.spec.geometry.num_attention_heads
    sink = sinks(weights_root(run.case) + number, heads, "special", run.device)
    run.session.load_sink(sink)
    run.spec = replace(run.spec, weights=replace(run.spec.weights, attn_sink=sink))


def _addresses(subject: Subject, graph: Opened) -> dict[str, int]:
    held = graph.addresses()
    subject.expect(isinstance(held, Mapping) and bool(held), "the graph names no address that its kernels hold.")
    return dict(held)


def _same_addresses(subject: Subject, first: dict[str, int], now: dict[str, int]) -> None:
    moved = sorted(name for name in first.keys() | now.keys() if first.get(name) != now.get(name))
    subject.expect(not moved, f"{', '.join(moved)} moved while a captured graph holds the old address.")


@requirement("INV-92", on=LAYER, cases="layer_decodes")
def test_a_replay_equals_the_eager_step_at_other_lengths(subject: Subject, case: LayerCase) -> None:
    """INV-92: captured with rows of nobody, replayed longer, shorter, with fewer and other sequences."""
    run = _captured(subject, case).run(graph_rows=ROWS)
    eager = LayerRun(subject, case).run()
    for sequence in eager.streams:
        (o, _), (mine, _) = eager.output(sequence), run.output(sequence)
        if run.case.precision == "float32":
            subject.close("o of replay against eager", mine, o.to(torch.float64))


@requirement("INV-92", on=LAYER, cases="layer_decodes")
def test_a_replay_reads_no_row_that_is_not_in_the_batch(subject: Subject, case: LayerCase) -> None:
    """INV-92: every byte that no sequence owns becomes NaN before each replay; rows stay right."""
    with unset_memory_is_nan():
        run = _captured(subject, case)
        for step in steps(case.schedule):
            if step.kind == "decode":
                run.session.poison()
            run.do(step, graph_rows=ROWS)
        run.judge()


@requirement("INV-92", on=LAYER, cases="layer_prefill_replays")
def test_a_replayed_prefill_equals_the_eager_one(subject: Subject, case: LayerCase) -> None:
    """INV-92: captured broken at attention, replayed with other lengths and sequences, NaN in what none of them has."""
    with unset_memory_is_nan():
        run, graph = _prefill_captured(subject, case)
        for step in steps(case.schedule):
            run.session.poison()
            _replay(run, graph, step)
        run.judge()


@requirement("INV-93", on=LAYER, cases="layer_prefill_replays")
def test_what_a_prefill_graph_holds_never_moves(subject: Subject, case: LayerCase) -> None:
    """INV-93: the addresses that the pieces of a broken prefill hold are the same after every replay."""
    run, graph = _prefill_captured(subject, case)
    first = _addresses(subject, graph)
    for step in steps(case.schedule):
        _replay(run, graph, step)
        _same_addresses(subject, first, _addresses(subject, graph))


@requirement("INV-92", on=LAYER, cases="layer_decodes")
def test_graphs_of_several_sizes_serve_one_cache_in_turn(subject: Subject, case: LayerCase) -> None:
    """INV-92: captured one by one between batches, for 1, 2, 3 and 4 rows; each decode takes the smallest that fits."""
    run = _opened(subject, case, "decode")
    for place, step in enumerate(steps(case.schedule)):
        rows = 1 + place % ROWS
        if rows not in run.graphs:  # capture runs kernels: rows of living sequences stay as they are
            run.graphs[rows] = run.session.capture(rows)
        fitting = [size for size in sorted(run.graphs) if size >= len(step.parts)]
        run.do(step, graph_rows=fitting[0] if fitting else len(step.parts))
    run.judge()


@requirement("INV-92", on=LAYER, cases="layer_prefill_replays")
def test_a_prefill_may_fill_its_graph(subject: Subject, case: LayerCase) -> None:
    """INV-92: captured after the first batch, for exactly the rows of the largest one."""
    run = _opened(subject, case, "prefill")
    todo = list(steps(case.schedule))
    sizes = [sum(count for _, count in step.parts) for step in todo if step.kind == "prefill"]
    run.do(todo[0])
    graph = run.session.capture(max(sizes), mode="prefill")
    for step in todo[1:]:
        _replay(run, graph, step)
    run.judge()


@requirement("INV-93", on=LAYER, cases="layer_decodes")
def test_what_a_graph_holds_never_moves(subject: Subject, case: LayerCase) -> None:
    """INV-93: the addresses that captured kernels hold are the same after every replay, and rows stay right."""
    run = _captured(subject, case)
    first = _addresses(subject, run.graphs[ROWS])
    for step in steps(case.schedule):
        run.do(step, graph_rows=ROWS)
        _same_addresses(subject, first, _addresses(subject, run.graphs[ROWS]))
    run.judge()


@requirement("INV-94", on=LAYER, cases="layer_decodes")
def test_a_replay_leaves_memory_alone_and_does_not_wait(subject: Subject, case: LayerCase) -> None:
    """INV-94: replays in steady state take no memory for good and never wait for the device."""
    if subject.device.type != "cuda":
        raise NotApplicable("memory counters and synchronisation are those of a CUDA device.")
    run = _captured(subject, case)
    grown = []
    for step in steps(case.schedule):
        if step.kind != "decode":
            run.do(step)
            continue
        segments = run.segments(step)
        replay = run.graphs[ROWS].unwrap().replay  # guards compare inputs, and so wait themselves
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.set_sync_debug_mode("error")
        try:
            result = replay(segments)
        except RuntimeError as error:
            raise ConformanceFailure(f"replay raised {summary_of(error)}") from error
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        held = sum(-(-part.untyped_storage().nbytes() // BLOCK) * BLOCK for part in result[:4] if part is not None)
        grown.append(torch.cuda.memory_allocated() - before - held)
        run.keep(step, result)
        del result
    run.judge()
    subject.note(bytes_grown=grown)
    subject.expect(sum(grown[1:]) <= 0, f"replays took memory for good: {grown} bytes beside their results.")


@requirement("INV-54", on=LAYER, cases="layer_decodes")
def test_a_weight_update_reaches_the_next_replay(subject: Subject, case: LayerCase) -> None:
    """INV-54: new sinks written between two replays are those of the next one."""
    run = _captured(subject, case)
    for place, step in enumerate(steps(case.schedule)):
        run.do(step, graph_rows=ROWS)
        if step.kind in BATCHES:
            run.judge()
            _update(run, place + 1)


@requirement("INV-54", on=LAYER, cases="layer_rank_graphs")
def test_a_rank_s_graphs_use_its_sinks_of_the_time(subject: Subject, case: LayerCase) -> None:
    """INV-54: a decode graph and a broken prefill of as many rows, on the first rank and the last, new sinks after each
    step: each replay uses that rank's sinks of its time."""
    for rank in (0, case.tp - 1):
        run = _opened(subject, case.with_(rank=rank), "decode")
        rows = max(sum(count for _, count in step.parts) for step in steps(case.schedule)) + 1
        run.graphs[rows] = run.session.capture(rows)
        prefill = run.session.capture(rows, mode="prefill") if "prefill" in run.convention.graphs else None
        for place, step in enumerate(steps(case.schedule)):
            if prefill is None:
                run.do(step, graph_rows=rows)
            else:
                run.keep(step, (prefill if step.kind == "prefill" else run.graphs[rows]).replay(run.segments(step)))
            run.judge()
            _update(run, place + 1)


@requirement("INV-92", on=LAYER, cases="layer_rejections")
def test_a_replay_follows_drafts_that_were_rejected(subject: Subject, case: LayerCase) -> None:
    """INV-92: what an eager step took back between two replays, tokens and pages, the next replay does not see."""
    _captured(subject, case).run(graph_rows=ROWS)


@requirement("INV-92", on=LAYER, cases="layer_prefill_replays")
def test_prefill_graphs_of_several_sizes_serve_one_cache_in_turn(subject: Subject, case: LayerCase) -> None:
    """INV-92: a small one captured first, then a large one; each prefill takes the smallest that fits."""
    run = _opened(subject, case, "prefill")
    sizes = [sum(count for _, count in step.parts) for step in steps(case.schedule) if step.kind == "prefill"]
    graphs = {rows: run.session.capture(rows, mode="prefill") for rows in sorted({min(sizes), max(sizes) + 3})}
    for step in steps(case.schedule):
        if step.kind == "prefill":
            rows = sum(count for _, count in step.parts)
            run.keep(step, graphs[min(size for size in graphs if size >= rows)].replay(run.segments(step)))
        else:
            run.do(step)
    run.judge()
