"""What an implementation's time and memory follow (INV-160 to INV-166): relations within one run, no absolute times.

Off by default: profile ``performance``, on a GPU that nobody else uses. All are SHOULD: a WARN is slow, never wrong.
"""

from dsv4_conformance.cases.state_case import ExtentCase
from dsv4_conformance.cases.state_inputs import ChunkInputs, chunk_inputs, extent_chunk
from dsv4_conformance.cases.timing_case import TimingCase
from dsv4_conformance.errors import NotApplicable
from dsv4_conformance.implementations.state_api import LayerConvention
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.runner.timed_calls import (
    attention_call,
    decoding_layer,
    judged,
    prefilling_layer,
    widened,
    with_length,
    work,
)
from dsv4_conformance.runner.timing import ROUNDS, WARM_UP, at_most, ceilings, milliseconds, side_by_side
from dsv4_conformance.suite import ATTENTION, DECODE, requirement

LAYER = ("AttentionLayer",)
STEPS = 2
"""Decode steps of a layer in one round."""
PAGES = 4096
"""Columns of a page table for a million tokens."""


@requirement("INV-160", on=DECODE, cases="timed_heads")
def test_half_the_heads_cost_no_more_than_all(subject: Subject, case: TimingCase) -> None:
    """INV-160 (SHOULD): 64 query heads against 128 on the same lists; above 1.1, padding to 64 does not pay here."""
    narrow, wide = (judged(subject, attention_call(subject, case, h_q)) for h_q in (64, 128))
    at_most(subject, side_by_side(narrow, wide, subject.device), 1.1, "decode with 64 heads", "with 128")


@requirement("INV-161", on=ATTENTION, cases="timed_lengths")
def test_half_the_length_costs_less(subject: Subject, case: TimingCase) -> None:
    """INV-161 (SHOULD): with topk_length at half of the list a call takes at most 0.7 of the time."""
    whole = attention_call(subject, case)
    half = judged(subject, with_length(whole, case.keys // 2))
    timed = side_by_side(half, judged(subject, whole), subject.device)
    at_most(subject, timed, 0.7, f"topk_length {case.keys // 2}", f"{case.keys}")


@requirement("INV-162", on=ATTENTION, cases="timed_widths")
def test_width_beyond_the_length_costs_little(subject: Subject, case: TimingCase) -> None:
    """INV-162 (SHOULD): lists eight times as wide as topk_length take at most 1.15 times as long as ones that fit."""
    call = attention_call(subject, case)
    wide, fitting = (judged(subject, each) for each in (widened(call, 8), call))
    at_most(subject, side_by_side(wide, fitting, subject.device), 1.15, "a list eight times as wide", "one that fits")


@requirement("INV-163", on=("SparsePrefillChunkCache",), cases="timed_extents")
def test_a_gather_costs_what_is_live(subject: Subject, case: TimingCase) -> None:
    """INV-163 (SHOULD): gather lists under a page table for a million tokens take at most 1.5 times as long as under
    one that fits, and list as many rows."""

    shape = ExtentCase(case.surface, case.tokens, case.rows, PAGES, case.seed)
    batches = (extent_chunk(shape.with_(pages=pages)) for pages in (PAGES, -(-case.tokens // 256)))
    wide, fitting = (chunk_inputs(batch, subject.device) for batch in batches)

    def gather(given: ChunkInputs) -> int:
        cache = subject.implementation.open_chunk_cache(given.batch)
        cache.ensure_c4(given.page_table)
        return int(cache.token_ids(4).numel())

    rows, live = gather(wide), gather(fitting)
    subject.note(gathered_rows=rows, live_rows=live)
    subject.expect(rows == live, f"{rows} rows are gathered under a page table for a million tokens, {live} are live.")
    timed = side_by_side(lambda: gather(wide), lambda: gather(fitting), subject.device)
    at_most(subject, timed, 1.5, "gather lists under a table for a million tokens", f"under one for {case.tokens}")


@requirement("INV-164", on=ATTENTION, cases="timed_roofline")
def test_a_call_reaches_a_quarter_of_the_roofline(subject: Subject, case: TimingCase) -> None:
    """INV-164 (SHOULD): a call takes at most four times what its bytes, or its FLOP, take at the ceilings measured by a
    copy and a matmul in the same process."""
    call = attention_call(subject, case)
    run, best = judged(subject, call), ceilings(subject.device)
    flop, moved = work(call)
    ideal = max(moved / best.bandwidth, flop / best.flops) * 1e3
    for _ in range(WARM_UP):
        run()
    times = sorted(milliseconds(run, subject.device, 5) for _ in range(ROUNDS))
    took = times[len(times) // 2]
    subject.note(
        flop=flop,
        bytes=moved,
        ms=took,
        achieved_flops=flop / took * 1e3,
        achieved_bandwidth=moved / took * 1e3,
        ceiling_flops=best.flops,
        ceiling_bandwidth=best.bandwidth,
        roofline_share=ideal / took,
        spread=(times[-len(times) // 4] - times[len(times) // 4]) / took,
    )
    bound = "memory" if moved / best.bandwidth > flop / best.flops else "arithmetic"
    subject.expect(
        ideal / took >= 0.25,
        f"the call takes {took:.3g} ms, and {bound} at its measured ceiling would take {ideal:.3g} ms: "
        f"{ideal / took:.0%} of the roofline.",
    )


@requirement("INV-165", on=LAYER, cases="timed_replays")
def test_a_replay_is_no_slower_than_the_eager_step(subject: Subject, case: TimingCase) -> None:
    """INV-165 (SHOULD): decode steps of a captured graph against the same steps run eagerly."""
    convention = subject.implementation.surfaces["AttentionLayer"]
    assert isinstance(convention, LayerConvention)
    if "decode" not in convention.graphs:
        raise NotApplicable("the adapter declares that it captures no decode step.")
    layer, segments = decoding_layer(subject, case, 2 * (STEPS * ROUNDS + WARM_UP))
    graph = layer.capture(case.rows)
    timed = side_by_side(
        lambda: graph.replay(segments), lambda: layer.step(segments, mode="decode"), subject.device, calls=STEPS
    )
    at_most(subject, timed, 1.05, "a replayed decode step", "an eager one")


@requirement("INV-166", on=LAYER, cases="timed_paths")
def test_sparse_prefill_pays_on_long_contexts(subject: Subject, case: TimingCase) -> None:
    """INV-166 (SHOULD): a chunk of a prefill over the gathered workspace against the same chunk over pages."""
    convention = subject.implementation.surfaces["AttentionLayer"]
    assert isinstance(convention, LayerConvention)
    if not {"paged", "sparse"} <= set(convention.paths):
        raise NotApplicable("the adapter declares one path for prefills.")
    prefill = prefilling_layer(subject, case)
    sparse, paged = prefill("sparse"), prefill("paged")
    apart = float((sparse.o.float() - paged.o.float()).abs().max() / paged.o.float().abs().max())
    subject.expect(apart <= 0.1, f"the two paths differ by {apart:.3g} of the largest value: neither time means much.")
    timed = side_by_side(lambda: prefill("sparse"), lambda: prefill("paged"), subject.device)
    at_most(subject, timed, 1.0, "a chunk by sparse prefill", "over pages")
