"""The grow-only workspace of sparse prefill, and that nothing but gathered rows is read from it (INV-71, INV-72)."""

import torch

from dsv4_conformance.cases.generator import bf16_values, words
from dsv4_conformance.cases.state_case import ChunkCase, WorkspaceCase
from dsv4_conformance.cases.state_inputs import chunk_inputs
from dsv4_conformance.errors import NotApplicable
from dsv4_conformance.implementations.api import PrefillCall
from dsv4_conformance.runner.gathered import gathered, open_cache
from dsv4_conformance.runner.opened import Opened
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

WORKSPACE = ("SparsePrefillWorkspace",)
MORE = 64
"""Rows asked for beyond the gathered ones: a buffer that an earlier, longer batch left behind."""


def _view(subject: Subject, workspace: Opened, rows: int) -> torch.Tensor:
    return subject.promised("open_workspace().get", workspace.get(rows), (rows, 1, 512), torch.bfloat16)


@requirement("INV-72", on=WORKSPACE, cases="workspaces")
def test_sparse_prefill_workspace_reuses_and_grows(subject: Subject, case: WorkspaceCase) -> None:
    """INV-72: a request for as many or fewer rows views the same storage; for more, a buffer of exactly so many."""
    workspace = subject.open("open_workspace")
    held: torch.Tensor | None = None
    for rows in case.rows:
        view = _view(subject, workspace, rows)
        subject.expect(view.is_contiguous(), f"the view of {rows} rows is not contiguous.")
        if held is not None and rows <= len(held):
            same = view.data_ptr() == held.data_ptr()
            subject.expect(same, f"{rows} rows came from another storage than the {len(held)} rows that are there.")
            continue
        if held is not None:
            subject.expect(view.data_ptr() != held.data_ptr(), f"{rows} rows were said to fit into {len(held)}.")
        held = view
        exact = rows * 512 * 2
        got = view.untyped_storage().nbytes()
        subject.expect(got == exact, f"a buffer of {got} bytes was made for {rows} rows; exactly {exact} are right.")


@requirement("INV-72", on=WORKSPACE, cases="workspaces")
def test_rows_that_a_layer_still_reads_survive_growth(subject: Subject, case: WorkspaceCase) -> None:
    """INV-72: growth makes another buffer; a view taken before keeps its rows, whatever is written afterwards."""
    workspace = subject.open("open_workspace")
    first = _view(subject, workspace, case.rows[0])
    first.fill_(3.0)
    larger = _view(subject, workspace, max(case.rows) + 1)
    larger.fill_(torch.nan)
    subject.expect((first == 3.0).all(), "rows of a view taken before growth changed with the new buffer.")
    again = _view(subject, workspace, case.rows[0])
    subject.expect(again.data_ptr() == larger.data_ptr(), "after growth, fewer rows came from another storage.")


@requirement("INV-72", on=WORKSPACE, cases="workspaces")
def test_no_rows_are_an_error(subject: Subject, case: WorkspaceCase) -> None:
    """INV-72: get(0) and a negative number are refused, before and after the first buffer."""
    workspace = subject.open("open_workspace")
    workspace.refused("get", 0)
    view = _view(subject, workspace, case.rows[0])
    for rows in (0, -1):
        workspace.refused("get", rows)
    subject.expect(_view(subject, workspace, 1).data_ptr() == view.data_ptr(), "a refused request changed the buffer.")


@requirement("INV-71", on=WORKSPACE, cases="chunks")
def test_workspace_content_before_a_call_does_not_matter(subject: Subject, case: ChunkCase) -> None:
    """INV-71: with NaN or Inf in the whole buffer before each layer, sparse prefill gives the same finite bits; C0, C4,
    C128 and C0 layers take turns in one buffer."""
    offered = subject.implementation.surfaces
    missing = [name for name in ("SparsePrefillChunkCache", "SparsePrefill") if name not in offered]
    if missing:
        raise NotApplicable(f"the check needs {missing[0]} as well, which is not offered.")
    given = chunk_inputs(case.with_(topk=min(case.topk, 64)), subject.device)
    cache, workspace = open_cache(subject, given), subject.open("open_workspace")
    heads = min(subject.convention("SparsePrefill").h_q or (2,))
    queries = bf16_values(words(case.digest(), "q", (given.batch.query_rows, heads, 256), subject.device), 124)
    for number, ratio in enumerate((0, 4, 128, 0)):
        layer = gathered(subject, cache, given, ratio)
        count = len(layer.tags)
        keys = bf16_values(words(case.digest(), f"keys of layer {number}", (count, 1, 256), subject.device), 124)
        results = []
        for fill in (torch.nan, torch.inf):
            _view(subject, workspace, count + MORE).fill_(fill)
            view = _view(subject, workspace, count + MORE)
            view[:count] = keys
            call = PrefillCall(queries, view, layer.rows[:, None], layer.lengths, None, 512**-0.5)
            results.append(subject.run(call))
        subject.expect(results[0].out.isfinite().all(), f"NaN of ungathered rows reached a layer of ratio {ratio}.")
        subject.same_bits(results[0], results[1], f"between NaN and Inf in ungathered rows at ratio {ratio}")
