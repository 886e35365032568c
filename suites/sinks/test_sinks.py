"""Attention sinks: limits, separation from lse, scaling, and the slice of each rank (INV-02 to 05, 07, 53, 54)."""

from dataclasses import replace

import torch

from dsv4_conformance.cases.case import AttentionCase, HeadCase, RankCase
from dsv4_conformance.cases.generator import words
from dsv4_conformance.errors import NotApplicable
from dsv4_conformance.implementations.api import HeadConvention
from dsv4_conformance.numerics.algebra import apply_sink
from dsv4_conformance.numerics.truth import Truth
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import ATTENTION, requirement

LAYOUT = ("HeadLayout",)


@requirement("INV-02", on=ATTENTION, cases="sinks")
def test_sink_of_minus_infinity_equals_no_sink(subject: Subject, case: AttentionCase) -> None:
    """INV-02: a sink of -inf in every head and no sink tensor give the same bits."""
    call = subject.build(case)
    subject.judge(call)
    assert call.sink is not None
    minus = subject.judge(replace(call, sink=torch.full_like(call.sink, -torch.inf)))
    none = subject.run(replace(call, sink=None))
    subject.same_bits(minus, none, "between sink -inf and no sink")


@requirement("INV-03", on=ATTENTION, cases="sinks")
def test_sink_of_plus_infinity_silences_its_head_alone(subject: Subject, case: AttentionCase) -> None:
    """INV-03: out is exactly 0 in heads with sink +inf; other heads, and lse everywhere, keep every bit."""
    call = subject.build(case)
    base = subject.judge(call)
    assert call.sink is not None
    silenced = torch.arange(case.h_q, device=call.q.device) % 5 == case.digest() % 5
    outputs = subject.judge(replace(call, sink=call.sink.masked_fill(silenced, torch.inf)))
    subject.expect((outputs.out[:, silenced] == 0).all(), "out is not exactly 0 in a head whose sink is +inf.")
    subject.same_bits(base, outputs, "in heads whose sink did not change", heads=torch.nonzero(~silenced).flatten())
    if base.lse is not None and outputs.lse is not None:
        subject.expect(torch.equal(base.lse, outputs.lse), "lse changed with the sink.")


@requirement("INV-04", on=ATTENTION, cases="sinks")
def test_sink_stays_out_of_lse_and_max_logits(subject: Subject, case: AttentionCase) -> None:
    """INV-04: lse and max_logits have the same bits under any sink and without one."""
    call = subject.build(case)
    base = subject.judge(call).named()
    if len(base) == 1:
        raise NotApplicable("the adapter declares that it returns nothing but out.")
    assert call.sink is not None
    for sink in (None, call.sink + 1.5, call.sink.roll(1), torch.full_like(call.sink, torch.inf)):
        other = subject.run(replace(call, sink=sink)).named()
        for name in ("lse", "max_logits"):
            if name in base:
                subject.expect(torch.equal(base[name], other[name]), f"{name} changed with the sink.")


@requirement("INV-05", on=ATTENTION, cases="sinks")
def test_sink_scales_the_output_by_a_known_factor(subject: Subject, case: AttentionCase) -> None:
    """INV-05: out(sink) = out(no sink) * sigmoid(lse - sink), head by head."""
    call = subject.build(case)
    assert call.sink is not None
    plain = subject.truth(replace(call, sink=None)).answer
    subject.judge(call, Truth(apply_sink(plain, call.sink), subject.truth(call).budgets))
    subject.judge(call)


@requirement("INV-07", on=ATTENTION, cases="sinks")
def test_raising_the_sink_shrinks_the_head_by_one_factor(subject: Subject, case: AttentionCase) -> None:
    """INV-07: a higher sink scales the whole head vector by (L + e^low) / (L + e^high), its direction unchanged."""
    call = subject.build(case.with_(sink="finite"))
    assert call.sink is not None
    low = subject.judge(call)
    raised = replace(call, sink=call.sink + 1.0)
    high = subject.judge(raised)
    lse = subject.truth(call).answer.lse if low.lse is None else low.lse.to(torch.float64)
    keyed = lse.isfinite()
    lse = lse.masked_fill(~keyed, 0.0)
    below, above = call.sink.to(torch.float64), call.sink.to(torch.float64) + 1.0
    factor = torch.exp(torch.logaddexp(lse, below.expand_as(lse)) - torch.logaddexp(lse, above.expand_as(lse)))
    error = (high.out.to(torch.float64) - low.out.to(torch.float64) * factor[..., None]).abs().amax(-1)
    room = subject.truth(raised).budgets.out + subject.truth(call).budgets.out * factor
    subject.expect(((error <= room) | ~keyed).all(), "raising the sink did not scale the head by one common factor.")


@requirement("INV-53", on=ATTENTION, cases="ranks")
def test_every_rank_uses_its_own_slice_of_the_sinks(subject: Subject, case: RankCase) -> None:
    """INV-53: a rank's heads, padded with NaN queries, under its own sink slice equal those heads of the whole."""
    heads = case.heads
    local = heads.n_heads // heads.tp
    mine = slice(heads.rank * local, (heads.rank + 1) * local)
    whole = subject.build(case.attention)
    assert whole.sink is not None
    padded = heads.n_heads if heads.tp == 1 else 64 if local <= 64 else heads.n_heads
    sink = whole.sink.new_zeros(padded)
    sink[:local] = whole.sink[mine]
    q = torch.full((*whole.q.shape[:-2], padded, 512), torch.nan, dtype=whole.q.dtype, device=whole.q.device)
    q[..., :local, :] = whole.q[..., mine, :]
    share = replace(whole, q=whole.q[..., mine, :].contiguous(), sink=whole.sink[mine].contiguous())
    truth = subject.truth(whole)
    outputs = subject.run(replace(whole, q=q, sink=sink)).heads(slice(0, local))
    subject.compare(share, outputs, truth.heads(mine))
    subject.mutants_of(whole, truth)


def _sinks(case: HeadCase, device: torch.device) -> torch.Tensor:
    """Distinct float32 sinks ``(n_heads,)``."""
    return words(case.digest(), "sinks", (case.n_heads,), device).to(torch.float32) / 2.0**29


def _real(subject: Subject, case: HeadCase) -> slice:
    """Where the rank's sinks stand in its local sink: first, or where they stand among all, as declared."""
    convention = subject.implementation.surfaces["HeadLayout"]
    local = case.n_heads // case.tp
    first = case.rank * local if isinstance(convention, HeadConvention) and convention.heads == "own place" else 0
    return slice(first, first + local)


@requirement("INV-53", on=LAYOUT, cases="heads")
def test_local_sink_is_the_rank_s_slice_kept_in_one_place(subject: Subject, case: HeadCase) -> None:
    """INV-53: local_sink starts with sink[rank n : (rank + 1) n] (or has them at their own place, where declared), in
    the same storage every time; tp = 1: itself."""
    sink, local = _sinks(case, subject.device), case.n_heads // case.tp
    padded = subject.ask("padded_heads", case.n_heads, case.tp)
    first = subject.promised(
        "local_sink", subject.ask("local_sink", sink, case.rank, case.tp), (padded,), torch.float32
    )
    mine = first[_real(subject, case)]
    wanted = sink[case.rank * local : (case.rank + 1) * local]
    subject.expect(torch.equal(mine, wanted), f"rank {case.rank} of {case.tp} got another rank's sinks.")
    second = subject.ask("local_sink", sink, case.rank, case.tp)
    subject.expect(second.data_ptr() == first.data_ptr(), "the second call returned another storage.")
    if case.tp == 1:
        subject.expect(first.data_ptr() == sink.data_ptr(), "tp = 1 must use the parameter itself.")


@requirement("INV-54", on=LAYOUT, cases="heads")
def test_weight_update_reaches_the_cached_sink_in_place(subject: Subject, case: HeadCase) -> None:
    """INV-54: after an in-place update and refresh_sink, the same storage holds the new slice."""
    sink, local = _sinks(case, subject.device), case.n_heads // case.tp
    before = subject.ask("local_sink", sink, case.rank, case.tp)
    address = before.data_ptr()
    sink.mul_(-3.0)
    subject.ask("refresh_sink", sink, case.rank, case.tp)
    after = subject.ask("local_sink", sink, case.rank, case.tp)
    wanted = sink[case.rank * local : (case.rank + 1) * local]
    subject.expect(after.data_ptr() == address, "the refreshed sink lies at another address.")
    subject.expect(torch.equal(before[_real(subject, case)], wanted), "the cached sink still holds the old weights.")
