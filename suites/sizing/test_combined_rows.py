"""What each query of a sparse prefill attends to: its request's keys and no others (INV-73, INV-81)."""

from dataclasses import replace

import torch

from dsv4_conformance.cases.state_case import ChunkCase
from dsv4_conformance.cases.state_inputs import chunk_inputs
from dsv4_conformance.oracle import sparse_prefill as definition
from dsv4_conformance.runner.gathered import RATIOS, gathered, named, numbers, open_cache, wanted
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

CHUNKS = ("SparsePrefillChunkCache",)


@requirement("INV-73", on=CHUNKS, cases="chunks")
def test_workspace_regions_hold_their_request_s_rows(subject: Subject, case: ChunkCase) -> None:
    """INV-73: from each request's bases on stand its compressed entries, in order, and the window positions that its
    new tokens see, oldest first."""
    given = chunk_inputs(case, subject.device)
    cache = open_cache(subject, given)
    requests = len(case.seq_lens)
    window = [definition.gathered_window(s, e) for s, e in zip(case.seq_lens, case.extend_lens, strict=True)]
    for ratio in RATIOS:
        tags = gathered(subject, cache, given, ratio).tags
        bases = numbers("window_base", cache.window_base(ratio), requests)
        for r, (base, positions) in enumerate(zip(bases, window, strict=True)):
            right = [2 * definition.slot(given.window_pages[r], p) + 1 for p in positions]
            subject.expect(
                base >= 0 and tags[base : base + len(right)] == right,
                f"the window rows of request {r} at ratio {ratio} are not positions {positions.start} to "
                f"{positions.stop - 1} from workspace row {base} on.",
            )
        if not ratio:
            continue
        bases = numbers("compressed_base", cache.compressed_base(ratio), requests)
        for r, (base, seq_len) in enumerate(zip(bases, case.seq_lens, strict=True)):
            held = range(definition.entries(seq_len, ratio))
            right = [2 * definition.slot(given.pages[r], entry, ratio) for entry in held]
            subject.expect(
                base >= 0 and tags[base : base + len(right)] == right,
                f"the {len(held)} entries of request {r} at ratio {ratio} are not those from workspace row {base} on.",
            )


@requirement("INV-73", on=CHUNKS, cases="chunks")
def test_combined_rows_name_their_request_s_keys_alone(subject: Subject, case: ChunkCase) -> None:
    """INV-73: read back through a row-tagged workspace, a query's row names the selected entries and the window of its
    own request, each once, and -1 elsewhere; its length counts both. An earlier layer selected otherwise."""
    given = chunk_inputs(case, subject.device)
    cache = open_cache(subject, given)
    cache.combined(4, torch.where(given.selection == -1, -1, torch.zeros_like(given.selection)))
    for ratio in RATIOS:
        layer = gathered(subject, cache, given, ratio)
        found, right = named(layer, ratio), wanted(given, ratio)
        lengths = layer.lengths.tolist()
        for number, (request, position) in enumerate(given.queries):
            where = f"query at position {position} of request {request}, ratio {ratio}"
            length = definition.processed(position, ratio, case.topk if ratio == 4 else position + 1)
            subject.expect(lengths[number] == length, f"{where}: length {lengths[number]} where {length} is right.")
            if found[number] != right[number]:
                lost, extra = set(right[number]) - set(found[number]), set(found[number]) - set(right[number])
                twice = len(found[number]) - len(set(found[number]))
                told = f"{len(lost)} keys are missing, {len(extra)} are not its own, {twice} are named twice"
                subject.expect(False, f"{where}: {told}.")


@requirement("INV-81", on=CHUNKS, cases="chunks")
def test_rows_of_nobody_attend_to_nothing(subject: Subject, case: ChunkCase) -> None:
    """INV-81: query rows beyond the new tokens are -1 throughout with length 0, and leave other rows as they are."""
    given = chunk_inputs(case.with_(padded_rows=case.padded_rows or 3), subject.device)
    owned = len(given.queries)
    alone = replace(
        given,
        batch=replace(given.batch, query_rows=owned),
        page_table=given.page_table[:owned],
        c128_slots=given.c128_slots[:owned],
        selection=given.selection[:owned],
    )
    cache, without = open_cache(subject, given), open_cache(subject, alone)
    for ratio in RATIOS:
        layer, own = gathered(subject, cache, given, ratio), gathered(subject, without, alone, ratio)
        lengths = layer.lengths[owned:]
        subject.expect((lengths == 0).all(), f"rows of nobody have lengths {lengths.tolist()} at ratio {ratio}.")
        subject.expect((layer.rows[owned:] == -1).all(), f"a row of nobody names a workspace row at ratio {ratio}.")
        same = torch.equal(own.rows, layer.rows[:owned]) and torch.equal(own.lengths, layer.lengths[:owned])
        subject.expect(same and own.tags == layer.tags, f"rows of nobody changed those of others at ratio {ratio}.")
