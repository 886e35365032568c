"""How an entry is pooled, normed and roped: relations that need no second compressor (INV-22 to 25, 28, 29)."""

from dataclasses import replace

import torch
from torch import Tensor

from dsv4_conformance.cases.compressor_case import CompressorCase
from dsv4_conformance.cases.compressor_inputs import Streams, compressor_spec, marks, peaks, token_streams
from dsv4_conformance.cases.generator import below
from dsv4_conformance.cases.schedule import longest
from dsv4_conformance.numerics import state_reference
from dsv4_conformance.oracle import compressor
from dsv4_conformance.oracle.linear import rms_norm, turned
from dsv4_conformance.runner.driving import LedCompressor, declared, judge_entries
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.weights import CompressorSpec
from dsv4_conformance.suite import requirement

COMPRESSOR = ("Compressor",)


def entries_of(
    subject: Subject, spec: CompressorSpec, case: CompressorCase, streams: Streams | None = None
) -> tuple[Tensor, Tensor]:
    """Entries float32 ``(n, dim)`` of sequence 0 of a case without cuts, and its tokens."""
    streams = streams or token_streams(case, subject.device)
    ((stretch, _, entries),) = LedCompressor(subject, spec, streams, case.schedule).entries()
    return entries, stretch.x


def judge(subject: Subject, spec: CompressorSpec, got: Tensor, pooled: Tensor, x: Tensor) -> None:
    """Compare entries with what the finish makes of ``pooled``, float64 ``(n, dim)``."""
    judge_entries(subject, spec, got, compressor.finished(spec, pooled), x)


@requirement("INV-22", on=COMPRESSOR, cases="pooling_halves")
def test_each_half_of_a_token_reaches_one_entry(subject: Subject, case: CompressorCase) -> None:
    """INV-22: at ratio 4 the B half of token s changes entry s // 4 alone, its A half entry s // 4 + 1 alone."""
    spec, length = compressor_spec(case, subject.device), longest(case.schedule)
    base, _ = entries_of(subject, spec, case)
    for token in below(case.digest(), "changed", (2,), length, "cpu").tolist():
        for half in ("A", "B"):
            dims = slice(0, case.hidden // 2) if half == "A" else slice(case.hidden // 2, None)

            def change(rows: Tensor, token: int = token, dims: slice = dims) -> Tensor:
                rows = rows.clone()
                rows[token, dims] *= -1
                return rows

            streams = Streams(case.digest(), case.hidden, length, subject.device, change)
            changed, _ = entries_of(subject, spec, case, streams)
            moved = torch.nonzero((changed != base).any(1)).flatten().tolist()
            wanted = [entry for entry in (token // 4 + (half == "A"),) if entry < len(base)]
            subject.expect(
                moved == wanted, f"the {half} half of token {token} changed entries {moved}; {wanted} is right."
            )


@requirement("INV-23", on=COMPRESSOR, cases="pooling")
def test_a_constant_on_all_scores_of_a_channel_changes_nothing(subject: Subject, case: CompressorCase) -> None:
    """INV-23: the softmax runs over the slots of one channel, so that +112 or -112 on a channel's scores is nothing."""
    spec = compressor_spec(case, subject.device)
    sign = 1 - 2 * below(case.digest(), "signs", (case.dim,), 2, subject.device).float()
    # 112 and the biases add without rounding; exp(112) overflows and exp(-112) underflows in float32.
    shift = (112.0 * sign).repeat(len(spec.weights.wkv) // case.dim)
    shifted = replace(spec, weights=replace(spec.weights, ape=spec.weights.ape + shift))
    got, x = entries_of(subject, shifted, case)
    judge(subject, spec, got, compressor.pooled(spec, *compressor.projected(spec, x)), x)


@requirement("INV-24", on=COMPRESSOR, cases="pooling_equal")
def test_equal_scores_give_the_mean_of_the_slots(subject: Subject, case: CompressorCase) -> None:
    """INV-24: with equal scores an entry is the mean of its 128 or 8 values, of 4 in entry 0 of ratio 4."""
    spec = compressor_spec(case, subject.device)
    got, x = entries_of(subject, spec, case)
    u = _windows(spec, x)
    if case.ratio == 128:
        judge(subject, spec, got, u.mean(1), x)
        return
    a, b = u[..., : case.dim], u[..., case.dim :]
    pooled = torch.cat((b[:1].mean(1), torch.cat((a[:-1], b[1:]), 1).mean(1)))
    judge(subject, spec, got, pooled, x)


@requirement("INV-25", on=COMPRESSOR, cases="pooling_peaks")
def test_a_score_above_all_others_picks_that_token_s_value(subject: Subject, case: CompressorCase) -> None:
    """INV-25: where one slot's score is far above the others, by its bias or its gate, the entry is that value."""
    spec = compressor_spec(case, subject.device)
    got, x = entries_of(subject, spec, case)
    u, channel = _windows(spec, x), torch.arange(case.dim, device=x.device)
    entry = torch.arange(len(u), device=x.device)
    if case.data == "gate_peak":
        slot = marks(case, len(u), x.device)
        picked = u[entry, slot]
        if case.ratio == 4:  # even channels listen to the B halves, odd ones to the A halves of the window before
            b, a = picked[:, case.dim :], picked[:, : case.dim].roll(1, 0)
            a[0] = u[0, :, case.dim :].mean(0)  # entry 0 has no A half, and its four B scores are equal there
            picked = torch.where(channel % 2 == 0, b, a)
    else:
        slot = peaks(case, x.device)
        if case.ratio == 4:
            slots = torch.cat((u[..., : case.dim].roll(1, 0), u[..., case.dim :]), 1)
            slots[0, :4] = u[0, :, case.dim :].mean(0)
            picked = slots[:, slot, channel]
        else:
            picked = u[:, slot, channel]
    judge(subject, spec, got, picked, x)


@requirement("INV-28", on=COMPRESSOR, cases="pooling")
def test_the_scale_of_the_values_is_normed_away(subject: Subject, case: CompressorCase) -> None:
    """INV-28: with wkv times 8, entries are those of wkv under 1/64 of the epsilon: the norm follows the pooling."""
    spec = compressor_spec(case, subject.device)
    scaled = replace(spec, weights=replace(spec.weights, wkv=spec.weights.wkv * 8))
    got, x = entries_of(subject, scaled, case)
    same = replace(spec, eps=spec.eps / 64)
    judge(subject, same, got, compressor.pooled(same, *compressor.projected(same, x)), x)


@requirement("INV-29", on=COMPRESSOR, cases="pooling")
def test_entries_carry_the_rope_of_their_first_token(subject: Subject, case: CompressorCase) -> None:
    """INV-29: entry i turned back by the angle of position r * i is the normed vector; other dims are never turned."""
    spec = compressor_spec(case, subject.device)
    got, x = entries_of(subject, spec, case)
    first = torch.arange(len(got), device=got.device) * case.ratio
    pooled = compressor.pooled(spec, *compressor.projected(spec, x))
    if declared(subject, "Compressor").stored == "fp8":  # rounded after the rope: turned back, roundings would mix
        judge(subject, spec, got, pooled, x)
    else:
        back = turned(got.to(torch.float64), spec.table, first, inverse=True)
        reference = turned(state_reference.entries(spec, x), spec.table, first, inverse=True)
        precision = declared(subject, "Compressor").precision
        subject.close("normed", back, rms_norm(pooled, spec.weights.norm, spec.eps), precision, reference)
    plain = replace(spec, table=torch.tensor([1.0, 0.0], device=x.device).repeat(32).expand_as(spec.table).contiguous())
    unturned, _ = entries_of(subject, plain, case)
    if case.dim == 128 and declared(subject, "Compressor").stored == "fp8":
        return  # all dims of such a row share a scale
    subject.expect(torch.equal(unturned[:, :-64], got[:, :-64]), "the rope table reaches dims before the last 64.")


def _windows(spec: CompressorSpec, x: Tensor) -> Tensor:
    """Values of the tokens of full windows, float64 ``(n, ratio, coff * dim)``."""
    u, _ = compressor.projected(spec, x)
    return u[: len(x) // spec.ratio * spec.ratio].view(-1, spec.ratio, u.shape[1])
