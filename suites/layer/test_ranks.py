"""The ranks of a tensor-parallel layer: shares of heads, sinks and outputs (INV-50, 51, 53, 54)."""

from dataclasses import replace

import torch

from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.layer_inputs import sinks, spec_of, weights_root
from dsv4_conformance.cases.schedule import steps
from dsv4_conformance.runner.layer_run import LayerRun, unset_memory_is_nan
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

LAYER = ("AttentionLayer",)


@requirement("INV-50", on=LAYER, cases="layer_ranks")
def test_the_ranks_together_are_the_whole_layer(subject: Subject, case: LayerCase) -> None:
    """INV-50: heads of all ranks side by side, and the sum of their outputs, equal the layer on one rank."""
    whole = LayerRun(subject, case.with_(tp=1, precision="float32", quantised=False)).run(judge=False)
    ranks = [
        LayerRun(subject, case.with_(rank=rank, precision="float32", quantised=False)).run(judge=False)
        for rank in range(case.tp)
    ]
    for run in () if whole.exact else (whole, *ranks):
        run.judge()
    for sequence in whole.streams if whole.exact else ():
        o, out = whole.output(sequence)
        shares = [rank.output(sequence) for rank in ranks]
        subject.close("o", torch.cat([share[0] for share in shares], 1), o.to(torch.float64))
        subject.close("out", torch.stack([share[1] for share in shares]).sum(0), out.to(torch.float64))


@requirement("INV-51", on=LAYER, cases="layer_ranks")
def test_padded_heads_may_hold_anything(subject: Subject, case: LayerCase) -> None:
    """INV-51: with NaN in all memory handed out unset, padded query heads among it, the last rank's rows are right."""
    with unset_memory_is_nan():
        LayerRun(subject, case.with_(rank=case.tp - 1)).run()


@requirement("INV-53", on=LAYER, cases="layer_ranks")
def test_a_rank_s_heads_use_that_rank_s_sinks_at_one_address(subject: Subject, case: LayerCase) -> None:
    """INV-53: the kernel's sink holds sink[rank n : (rank + 1) n] first and never moves; first and last rank."""
    for rank in (0, case.tp - 1):
        run = LayerRun(subject, case.with_(rank=rank))
        held = []  # a tensor that is gone could give its address to the next
        for step in steps(case.schedule):
            run.do(step)
            held.append(run.sink())
        run.judge()
        n = run.spec.geometry.num_attention_heads // case.tp
        own = run.spec.weights.attn_sink[rank * n : (rank + 1) * n]
        subject.expect(torch.equal(run.sink()[:n], own), f"rank {rank} of {case.tp} holds other sinks.")
        moved = len({sink.data_ptr() for sink in held}) > 1
        subject.expect(not moved, "the sink was built again at another address.")


@requirement("INV-54", on=LAYER, cases="layer_ranks")
def test_weights_loaded_late_and_updated_later_reach_the_sinks(subject: Subject, case: LayerCase) -> None:
    """INV-54: a first step before the weights are there, then updates between decodes and prefills, on the first rank
    and the last: each row uses the sinks of its time."""
    for rank in (0, case.tp - 1):
        mine = case.with_(rank=rank)
        spec = spec_of(mine, subject.device)
        heads = spec.geometry.num_attention_heads
        unloaded = replace(spec.weights, attn_sink=torch.zeros(heads, device=subject.device))
        run = LayerRun(subject, mine, spec=replace(spec, weights=unloaded))
        built = run.sink()
        for place, step in enumerate(steps(mine.schedule)):
            run.do(step)
            run.judge()
            sink = sinks(weights_root(mine) + place, heads, "special", subject.device)
            run.session.load_sink(sink)
            run.spec = replace(spec, weights=replace(spec.weights, attn_sink=sink))
            stays = run.sink().data_ptr() == built.data_ptr()
            subject.expect(stays, "the refreshed sink lies at another address.")
