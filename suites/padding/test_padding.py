"""Padded query heads: inert, few, and of no influence on the real ones (INV-51, 52, 55)."""

from dataclasses import replace

import torch

from dsv4_conformance.cases.case import AttentionCase, HeadCase, PaddedCase
from dsv4_conformance.cases.generator import bf16_values, words
from dsv4_conformance.numerics.truth import Truth
from dsv4_conformance.runner.execute import Call
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import ATTENTION, requirement

LAYOUT = ("HeadLayout",)


def pad_call(call: Call, padded: int, fill: str, key: int) -> Call:
    """The call with heads appended up to ``padded``: their queries hold ``fill``, their sinks 0, a value or NaN."""
    missing = padded - call.q.shape[-2]
    shape = (*call.q.shape[:-2], missing, 512)
    if fill == "random":
        extra = bf16_values(words(key, "pad", (*shape[:-1], 256), call.q.device), 132)
    else:
        value = {"zero": 0.0, "nan": torch.nan, "inf": torch.inf}[fill]
        extra = torch.full(shape, value, dtype=call.q.dtype, device=call.q.device)
    sink = call.sink
    if sink is not None:
        value = {"zero": 0.0, "random": 3.5, "nan": torch.nan, "inf": -torch.inf}[fill]
        sink = torch.cat((sink, sink.new_full((missing,), value)))
    return replace(call, q=torch.cat((call.q, extra), -2), sink=sink)


def _real(truth: Truth, padded: int) -> Truth:
    """The truth of the real heads with rows of 0 for the padded ones, which are never compared."""

    def grow(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x, x.new_zeros(x.shape[0], padded - x.shape[1], *x.shape[2:])), 1)

    names = ("out", "lse", "max_logits")
    return Truth(
        replace(truth.answer, **{n: grow(getattr(truth.answer, n)) for n in names}),
        replace(truth.budgets, **{n: grow(getattr(truth.budgets, n)) for n in names}),
    )


@requirement("INV-51", on=ATTENTION, cases="padding")
def test_padded_heads_do_not_reach_real_ones(subject: Subject, case: PaddedCase) -> None:
    """INV-51: whatever padded queries and sinks hold (0, random, Inf, NaN), real heads are right and keep every bit."""
    call = subject.build(case.attention)
    real = slice(0, case.attention.h_q)
    truth = subject.truth(call)
    subject.mutants_of(call, truth)
    filled = pad_call(call, case.padded, case.fill, case.digest())
    outputs = subject.judge(filled, _real(truth, case.padded), heads=real)
    zero = subject.run(pad_call(call, case.padded, "zero", case.digest()))
    subject.same_bits(outputs, zero, f"in real heads between {case.fill} and 0 in padded ones", heads=real)


@requirement("INV-55", on=ATTENTION, cases="head_counts")
def test_real_heads_do_not_depend_on_the_padded_width(subject: Subject, case: AttentionCase) -> None:
    """INV-55: h_q real heads alone, padded to 64 and padded to 128 agree with one answer."""
    call = subject.build(case)
    truth = subject.truth(call)
    declared = subject.convention(case.surface).h_q
    if declared is None or case.h_q in declared:
        subject.judge(call)
    for padded in (64, 128):
        if padded > case.h_q and (declared is None or padded in declared):
            wide = pad_call(call, padded, "random", case.digest())
            subject.judge(wide, _real(truth, padded), heads=slice(0, case.h_q))


@requirement("INV-51", on=LAYOUT, cases="heads")
def test_padded_query_keeps_real_heads_first(subject: Subject, case: HeadCase) -> None:
    """INV-51: pad_query puts the real heads first, bit for bit, and gives the declared width."""
    local = case.n_heads // case.tp
    padded = subject.ask("padded_heads", case.n_heads, case.tp)
    for tokens in (3, 1, 17, 130):
        q = bf16_values(words(case.digest(), "q", (tokens, local, 256), subject.device), 124)
        wide = subject.ask("pad_query", q, padded)
        wide = subject.promised("pad_query", wide, (tokens, padded, 512), torch.bfloat16)
        subject.expect(torch.equal(wide[:, :local], q), "the first heads of the padded query are not the real ones.")


@requirement("INV-52", on=LAYOUT, cases="heads")
def test_heads_are_padded_to_64_not_to_all(subject: Subject, case: HeadCase) -> None:
    """INV-52 (SHOULD): tp = 1 keeps n_heads; tp > 1 pads to 64 where the rank's heads fit, else to n_heads."""
    padded = subject.ask("padded_heads", case.n_heads, case.tp)
    local = case.n_heads // case.tp
    wanted = case.n_heads if case.tp == 1 else 64 if local <= 64 else case.n_heads
    subject.expect(
        padded == wanted, f"{local} heads of {case.n_heads} at tp {case.tp} are padded to {padded}, not {wanted}."
    )
