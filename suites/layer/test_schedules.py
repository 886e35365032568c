"""A whole layer against its definition, whatever the schedule (INV-42, 41, 48, 70, 81, 30, 80, 71)."""

import re
from dataclasses import replace

import torch

from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.layer_inputs import spec_of, tokens, weights_root
from dsv4_conformance.cases.schedule import BATCHES, steps
from dsv4_conformance.errors import NotApplicable
from dsv4_conformance.runner.declared import need_padded_rows, need_paths
from dsv4_conformance.runner.layer_run import LayerRun, unset_memory_is_nan
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

LAYER = ("AttentionLayer",)


@requirement("INV-42", on=LAYER, cases="layer_schedules")
def test_every_schedule_gives_what_the_definition_gives(subject: Subject, case: LayerCase) -> None:
    """INV-42: prefill in any chunks, decode, verify with rejected drafts: every row equals the layer's definition."""
    LayerRun(subject, case).run()


@requirement("INV-42", on=LAYER, cases="layer_steps")
def test_chunks_and_single_tokens_give_what_the_definition_gives(subject: Subject, case: LayerCase) -> None:
    """INV-42: at once, in odd chunks or token by token, alone or beside sequences of other lengths: every row."""
    LayerRun(subject, case).run()


@requirement("INV-42", on=LAYER, cases="layer_long")
def test_long_lives_give_what_the_definition_gives(subject: Subject, case: LayerCase) -> None:
    """INV-42: a fifth page, 140 decode steps in a row, idle sequences, six at once, numbers with gaps: every row."""
    LayerRun(subject, case).run()


@requirement("INV-42", on=LAYER, cases="layer_crowds")
def test_crowds_give_what_the_definition_gives(subject: Subject, case: LayerCase) -> None:
    """INV-42: ten sequences in a step, sequences of equal length: every row."""
    LayerRun(subject, case).run()


@requirement("INV-71", on=LAYER, cases="layer_schedules")
def test_nothing_is_read_that_was_not_written(subject: Subject, case: LayerCase) -> None:
    """INV-71: with NaN in every byte that no sequence owns and in all memory handed out unset, rows stay right."""
    poisoned = case.with_(schedule=re.sub(r"(?=[pdv]\d)", "x ", case.schedule))
    with unset_memory_is_nan():
        LayerRun(subject, poisoned).run()


@requirement("INV-41", on=LAYER, cases="layer_exact")
def test_no_row_depends_on_a_later_token(subject: Subject, case: LayerCase) -> None:
    """INV-41: another token at position p, the last of its groups or of all, changes no row before p but changes p."""
    base = LayerRun(subject, case).run(judge=False)
    forked = {step.target for step in steps(case.schedule) if step.kind == "fork"}  # their first tokens are another's
    held = {number: len(stream.tokens) for number, stream in base.streams.items() if number not in forked}
    if not held:
        raise NotApplicable("no sequence of the schedule's own is there at its end.")
    number = max(held, key=lambda n: (held[n], -n))
    for position in {min(127, held[number] - 1), held[number] - 1}:
        other = tokens(weights_root(case), 99, 0, 1, base.spec.geometry.hidden_size, subject.device)[0]
        changed = LayerRun(subject, case, changed={(number, position): other}).run(judge=False)
        if not base.exact:
            changed.judge()
        for name, before, after in zip(("o", "out"), base.output(number), changed.output(number), strict=True):
            if base.exact:
                subject.close(name, after[:position], before[:position].to(torch.float64))
            moved = (after[position] - before[position]).abs().max() > 1e-3 * before[position].abs().max()
            subject.expect(moved, f"{name} of position {position} ignores its own token.")


@requirement("INV-48", on=LAYER, cases="layer_exact")
def test_a_sequence_does_not_notice_the_others(subject: Subject, case: LayerCase) -> None:
    """INV-48: each sequence that runs alone, in the same chunks, gives the rows it gives in the batch."""
    together = LayerRun(subject, case).run(judge=False)
    for number in together.streams:
        alone = " ".join(
            replace(step, parts=((number, count),), padding=0).text()
            for step in steps(case.schedule)
            for sequence, count in step.parts
            if sequence == number and step.kind in (*BATCHES, "keep", "release")
        )
        LayerRun(subject, case.with_(schedule=alone), spec=together.spec).run(judge=False).same_rows(together)


@requirement("INV-81", on=LAYER, cases="layer_exact")
def test_rows_of_nobody_change_nothing(subject: Subject, case: LayerCase) -> None:
    """INV-81: 1 to 5 padding rows behind every batch leave all rows and the caches as they are without them."""
    need_padded_rows(subject)
    plain = LayerRun(subject, case).run(judge=False)
    wide = " ".join(
        replace(step, padding=1 + (case.digest() + place) % 5).text() if step.kind in BATCHES else step.text()
        for place, step in enumerate(steps(case.schedule))
    )
    padded = LayerRun(subject, case.with_(schedule=wide), spec=plain.spec)
    padded.run(judge=False)
    plain.same_rows(padded)
    padded.judge()


@requirement("INV-70", on=LAYER, cases="layer_prefills")
def test_sparse_prefill_equals_the_paged_path(subject: Subject, case: LayerCase) -> None:
    """INV-70: the same batches through the workspace and through the pages, each judged, each prefill on the path
    asked for."""
    need_paths(subject, "sparse", "paged")
    kinds = [step.kind for step in steps(case.schedule) if step.kind in (*BATCHES, "idle")]
    for path in ("sparse", "paged"):
        run = LayerRun(subject, case.with_(path=path)).run()
        ran = {taken for kind, taken in zip(kinds, run.paths, strict=True) if kind == "prefill"}
        subject.expect(ran == {path}, f"path {path} was asked for and {sorted(ran)} ran.")


@requirement("INV-30", on=LAYER, cases="layer_prefixes")
def test_a_shared_prefix_is_continued_as_if_it_were_its_own(subject: Subject, case: LayerCase) -> None:
    """INV-30: a sequence that starts from another's cached pages gives what a sequence of those tokens gives."""
    LayerRun(subject, case).run()


@requirement("INV-30", on=LAYER, cases="layer_forks")
def test_a_prefix_of_a_prefix_is_continued_as_if_it_were_its_own(subject: Subject, case: LayerCase) -> None:
    """INV-30: a fork of a fork at an earlier page, and a fork at a page whose last tokens were decoded."""
    LayerRun(subject, case).run()


@requirement("INV-80", on=LAYER, cases="layer_prefills")
def test_layers_of_all_ratios_can_share_one_workspace(subject: Subject, case: LayerCase) -> None:
    """INV-80: C0, C4 and C128 layers take turns, and the workspace grows between them, without harm to any."""
    need_paths(subject, "sparse")
    subject.restart()  # what earlier cases made grow would not grow again
    runs = [LayerRun(subject, case.with_(ratio=ratio, path="sparse")) for ratio in (0, 4, 128)]
    for place, step in enumerate(steps(case.schedule)):
        for run in runs[place % 3 :] + runs[: place % 3]:
            run.do(step)
    for run in runs:
        run.judge()


@requirement("INV-49", on=LAYER, cases="layer_indexed")
def test_the_indexer_does_not_matter_while_every_entry_fits(subject: Subject, case: LayerCase) -> None:
    """INV-49: with at most index_topk entries visible, another indexer's weights give the same rows."""
    spec = spec_of(case, subject.device)
    other = spec_of(case.with_(seed=case.seed + 1), subject.device).weights.indexer
    first = LayerRun(subject, case).run(judge=False)
    second = LayerRun(subject, case, spec=replace(spec, weights=replace(spec.weights, indexer=other))).run(judge=False)
    for sequence in first.streams:
        for name, a, b in zip(("o", "out"), first.output(sequence), second.output(sequence), strict=True):
            if first.ordered and second.ordered:
                subject.expect(torch.equal(a, b), f"{name} of sequence {sequence} changed with the indexer's weights.")
    # An engine that lists entries by score sums them in another order: the same rows, not the same bits.
    first.same_rows(second)
    first.judge()
