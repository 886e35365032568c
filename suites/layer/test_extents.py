"""A layer that counts its keys, prefills under a budget, and keeps any number of drafts (INV-152, INV-155, INV-42)."""

from dataclasses import replace

import torch

from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.layer_inputs import spec_of
from dsv4_conformance.cases.schedule import longest, sequences, steps
from dsv4_conformance.runner.declared import need_paths
from dsv4_conformance.runner.layer_run import LayerRun
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

LAYER = ("AttentionLayer",)
ROUNDING = {"float32": 1e-5, "bfloat16": 2e-3}
"""Of a share, measured over 512 channels: a key too many of 192 shifts it by 5e-3."""


@requirement("INV-152", on=LAYER, cases="layer_counts")
def test_a_layer_counts_its_keys(subject: Subject, case: LayerCase) -> None:
    """INV-152: with queries of 0, tokens that are all the same, keys without rope dims and entries of 0, o of position
    p is that key times n / (n + m + e^sink): n window positions and m entries, at every length."""
    spec = spec_of(case, subject.device)
    weights = spec.weights
    norm = weights.kv_norm.clone()
    norm[448:] = 0
    compressor = weights.compressor
    if compressor is not None:
        compressor = replace(compressor, norm=torch.zeros_like(compressor.norm))
    weights = replace(weights, wq_b=torch.zeros_like(weights.wq_b), kv_norm=norm, compressor=compressor)
    hidden = spec.geometry.hidden_size
    row = 0.5 + torch.arange(hidden, device=subject.device) % 7 / 8
    most = longest(case.schedule) + 8
    same = {(s, p): row for s in range(sequences(case.schedule)) for p in range(most)}
    run = LayerRun(subject, case, replace(spec, weights=weights), changed=same)
    room = ROUNDING["bfloat16" if run.case.precision == "bfloat16" else "float32"]
    for step in steps(run.case.schedule):
        run.do(step, judge=False)
        for number in run.streams:
            held = len(run.streams[number].tokens)
            last = torch.tensor([held - 1], device=subject.device)
            key = run.session.window_rows(number, last)[0].to(torch.float64)
            pending, run.streams[number].pending = run.streams[number].pending, []
            for rows in pending:
                _counted(subject, run, rows.positions, rows.o.to(torch.float64), key, room)


def _counted(
    subject: Subject, run: LayerRun, positions: torch.Tensor, o: torch.Tensor, key: torch.Tensor, room: float
) -> None:
    spec = run.spec
    window = (positions + 1).clamp(max=128).to(torch.float64)
    entries = torch.zeros_like(window)
    if spec.ratio:
        entries = ((positions + 1) // spec.ratio).to(torch.float64)
        entries = entries.clamp(max=spec.geometry.index_topk) if spec.ratio == 4 else entries
    sink = spec.weights.attn_sink[: o.shape[1]].to(torch.float64)
    wanted = window[:, None] / (window[:, None] + entries[:, None] + sink.exp())
    got = (o * key).sum(-1) / key.square().sum()
    wrong = ~((got - wanted).abs() <= room)
    place = torch.nonzero(wrong)[0].tolist() if bool(wrong.any()) else [0, 0]
    row, head = place
    share = float(got[row, head])
    counted = float(window[row] / share - sink[head].exp()) if share else 0.0
    subject.expect(
        ~wrong.any(),
        f"position {int(positions[row])}, head {head}: o is {share:.6g} of a key, not {float(wanted[row, head]):.6g}: "
        f"as if {counted:.2f} keys were seen instead of {int(window[row])} + {int(entries[row])}.",
    )


@requirement("INV-155", on=LAYER, cases="layer_budgets")
def test_the_budget_of_a_prefill_changes_no_row(subject: Subject, case: LayerCase) -> None:
    """INV-155: prefills that are cut into 1, 2, 7 and as many chunks as there are: every row is the definition's, also
    on the last of two ranks."""
    need_paths(subject, "sparse")
    run = LayerRun(subject, case).run()
    if run.convention.tp is None or 2 in run.convention.tp:
        LayerRun(subject, case.with_(tp=2, rank=1)).run()


@requirement("INV-155", on=LAYER, cases="layer_budgets")
def test_a_prefill_that_fits_no_budget_is_refused_whole(subject: Subject, case: LayerCase) -> None:
    """INV-155: a prompt whose last token alone gathers a row too many is refused, and leaves no trace: a prompt that
    fits runs in its place."""
    need_paths(subject, "sparse")
    case = case.with_(schedule="p0:257+1:3", workspace_rows=128 + 257 // (case.ratio or 10**9) - 1)
    run = LayerRun(subject, case)
    step = steps(case.schedule)[0]
    run.session.refused("step", run.segments(step), mode="prefill", path="sparse")
    run.streams.clear()
    for fitting in steps("p0:100+1:20 p0:2 d0+1"):
        run.do(fitting)
    run.judge()


@requirement("INV-42", on=LAYER, cases="layer_drafts")
def test_any_number_of_drafts_may_be_kept(subject: Subject, case: LayerCase) -> None:
    """INV-42: eight drafts, of which 0 to 8 are kept, at every place of groups, window and pages: no step reads a row
    that it replaces, nor one of a draft that was rejected."""
    LayerRun(subject, case).run()
