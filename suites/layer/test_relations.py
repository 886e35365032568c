"""What holds between two runs of a layer: windows, rotations, heads and groups (INV-40, 43 to 47)."""

from dataclasses import replace
from typing import Any

import torch

from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.layer_inputs import rope_tables, spec_of, tokens, weights_root
from dsv4_conformance.oracle import layer_stages
from dsv4_conformance.runner.layer_run import LayerRun
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.weights import LayerSpec, RopeTables
from dsv4_conformance.suite import requirement

LAYER = ("AttentionLayer",)


def _shifted(spec: LayerSpec, by: int) -> LayerSpec:
    """The same layer whose position p has the angles of position p + ``by``."""
    tables = rope_tables(spec.geometry, spec.max_tokens + by, spec.rope.plain.device)
    return replace(spec, rope=RopeTables(tables.plain[by:].clone(), tables.compressed[by:].clone()))


def _with(spec: LayerSpec, **weights: Any) -> LayerSpec:
    return replace(spec, weights=replace(spec.weights, **weights))


@requirement("INV-40", on=LAYER, cases="layer_window")
def test_a_window_layer_forgets_what_is_128_tokens_back(subject: Subject, case: LayerCase) -> None:
    """INV-40: in a C0 layer a token changes the rows of its own and the next 127 positions, and no other."""
    base = LayerRun(subject, case).run()
    held = len(base.streams[0].tokens)
    for position in {0, (held - 129) // 2}:
        other = tokens(weights_root(case), 99, 0, 1, base.spec.geometry.hidden_size, subject.device)[0]
        changed = LayerRun(subject, case, changed={(0, position): other}).run(judge=False)
        (before, _), (after, _) = base.output(0), changed.output(0)
        gone, seen = position + 128, position + 127
        subject.expect(torch.equal(before[gone:], after[gone:]), f"row {gone} or later still sees token {position}.")
        subject.expect(bool((before[seen] != after[seen]).any()), f"row {seen} no longer sees token {position}.")


@requirement("INV-43", on=LAYER, cases="layer_exact")
def test_only_relative_positions_matter(subject: Subject, case: LayerCase) -> None:
    """INV-43: all positions shifted by 640 (a multiple of 4 and 128) leave every row as it was."""
    spec = spec_of(case, subject.device)
    base = LayerRun(subject, case).run(judge=False)
    moved = LayerRun(subject, case, spec=_shifted(spec, 640)).run()
    base.same_rows(moved)


@requirement("INV-44", on=LAYER, cases="layer_first_tokens")
def test_rope_and_its_inverse_cancel_and_leave_448_dims_alone(subject: Subject, case: LayerCase) -> None:
    """INV-44: a token that sees only itself gives the same o at any angle: dims 0 to 447 bit for bit."""
    spec = spec_of(case, subject.device)
    base = LayerRun(subject, case).run(judge=False)
    for by in (1, 1000):
        turned = LayerRun(subject, case, spec=_shifted(spec, by)).run(judge=False)
        base.same_rows(turned)
        for sequence in base.streams if base.exact else ():
            (a, _), (b, _) = base.output(sequence), turned.output(sequence)
            # q . k is the same up to rounding, so the softmax weight of the one key may move by an ulp.
            subject.close("nope dims", b[..., :448], a[..., :448].to(torch.float64))


@requirement("INV-45", on=LAYER, cases="layer_first_tokens")
def test_a_token_that_sees_itself_gives_its_unrotated_key(subject: Subject, case: LayerCase) -> None:
    """INV-45: one key and no sink: o is that key without its rotation, in every head, at any angle."""
    spec = spec_of(case, subject.device)
    silent = _with(spec, attn_sink=torch.full_like(spec.weights.attn_sink, -torch.inf))
    level = torch.zeros_like(spec.rope.plain)
    level[:, ::2] = 1.0
    flat = replace(silent, rope=RopeTables(level, level))
    for by in (0, 777):
        run = LayerRun(subject, case, spec=_shifted(silent, by)).run()
        for sequence in run.streams if run.exact else ():
            o, _ = run.output(sequence)
            key = layer_stages.window_keys(flat, run.x(sequence), torch.arange(len(o), device=o.device))
            subject.close("o", o, key[:, None].expand_as(o))


@requirement("INV-46", on=LAYER, cases="layer_exact")
def test_the_size_of_a_head_s_query_does_not_matter(subject: Subject, case: LayerCase) -> None:
    """INV-46: one head's query weights times 4 change nothing; times -1 they turn its logits over."""
    spec = spec_of(case, subject.device)
    base = LayerRun(subject, case).run(judge=False)
    head = case.digest() % spec.geometry.num_attention_heads
    own = slice(512 * head, 512 * head + 512)
    for factor in (4.0, -1.0):
        wq_b = spec.weights.wq_b.clone()
        wq_b[own] *= factor
        run = LayerRun(subject, case, spec=_with(spec, wq_b=wq_b)).run(judge=factor < 0)
        if factor > 0:
            base.same_rows(run)


@requirement("INV-47", on=LAYER, cases="layer_exact")
def test_a_group_s_heads_reach_that_group_s_outputs_only(subject: Subject, case: LayerCase) -> None:
    """INV-47: with output channel j reading group j mod G alone, another sink of one head moves its channels only."""
    spec = spec_of(case, subject.device)
    geometry = spec.geometry
    column = torch.arange(spec.weights.wo_b.shape[1], device=subject.device) // geometry.o_lora_rank
    channel = torch.arange(geometry.hidden_size, device=subject.device) % geometry.o_groups
    split = _with(spec, wo_b=spec.weights.wo_b * (channel[:, None] == column))
    head = case.digest() % geometry.num_attention_heads
    sink = spec.weights.attn_sink.clone()
    sink[head] = torch.inf if sink[head] != torch.inf else 0.0
    first = LayerRun(subject, case, spec=split).run()
    second = LayerRun(subject, case, spec=_with(split, attn_sink=sink)).run(judge=not first.exact)
    mine = channel == head // geometry.heads_per_group
    for sequence in first.streams:
        (_, a), (_, b) = first.output(sequence), second.output(sequence)
        if first.exact:
            subject.close("out of other groups", b[:, ~mine], a[:, ~mine].to(torch.float64))
        moved = (a[:, mine] - b[:, mine]).abs().max() > 1e-3 * a[:, mine].abs().max()
        subject.expect(moved, f"out of group {head // geometry.heads_per_group} ignores its head {head}.")
