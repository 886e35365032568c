"""Which keys a row of a layer sees, in prefill, decode and verify steps (spec §4, §7, §13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.faults.fault import fault
from dsv4_conformance.faults.layers import Layered, Stepping, patch
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.metadata import DSV4Metadata
from dsv4_conformance.mla.sequences import LOOKBACK
from dsv4_conformance.mla.step import LayerOutput, NewTokens, Run

PAGE = 256


def parts(runs: Sequence[Run]) -> list[slice]:
    """Rows of each run."""
    found, first = [], 0
    for run in runs:
        found.append(slice(first, first := first + run.count))
    return found


def drafts(runs: Sequence[Run]) -> list[tuple[Run, slice]]:
    """Runs of several tokens, few enough for a verify step, and their rows."""
    return [(run, rows) for run, rows in zip(runs, parts(runs), strict=True) if 1 < run.count <= LOOKBACK]


def see_entries(meta: DSV4Metadata, row: Any, counts: Tensor) -> None:
    """Let rows see their sequence's first ``counts`` entries of ratio 4 and ``counts * 4 // 128`` of ratio 128."""
    meta.c4_topk_lengths_raw[row] = counts.int()
    meta.c4_sparse_topk_lengths[row] = counts.clamp(1, meta.index_topk).int()
    seen = counts // 32
    entries = torch.arange(meta.c128_page_indices.shape[1])
    table = meta.page_table[row]
    column = (entries // 2).clamp(max=table.shape[1] - 1)
    slots = table[:, column] * 2 + (entries % 2).int()
    meta.c128_page_indices[row] = torch.where(entries < seen[:, None], slots, -1).int()
    meta.c128_topk_lengths_clamp1[row] = seen.clamp(min=1).int()


def see_window(meta: DSV4Metadata, rows: slice, positions: Tensor) -> None:
    """Let rows see the keys at positions int64 ``(n, 128)`` of their sequence, newest first; none where negative."""
    table = meta.page_table[rows].long()
    page = (positions.clamp(min=0) // PAGE).clamp(max=table.shape[1] - 1)
    slots = table.gather(1, page) * PAGE + positions % PAGE
    meta.swa_page_indices[rows] = torch.where(positions < 0, -1, slots).int()


@fault("S34", breaks="INV-42")
class DraftsSeeWhatTheLastSees(Layered):
    """The number of compressed entries follows from the sequence's length: early drafts see those of later ones."""

    class made(Stepping):
        """Verify steps with one count per sequence."""

        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            """All drafts see what the last one sees."""
            for run, rows in drafts(runs):
                see_entries(meta, rows, torch.full((run.count,), (run.start + run.count) // 4))


@fault("H03", breaks="INV-41")
class CompressedColumnsUnmasked(Layered):
    """The window's mask is padded with 0 over the compressed columns: every query sees every entry of a C128 layer."""

    class made(Stepping):
        """Prefills without a bound."""

        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            """Rows of a chunk see what its last row sees; ratio 4 has an indexer of its own."""
            for run, rows in zip(runs, parts(runs), strict=True):
                last = rows.stop - 1
                if run.count > LOOKBACK:
                    meta.c128_page_indices[rows] = meta.c128_page_indices[last].clone()
                    meta.c128_topk_lengths_clamp1[rows] = meta.c128_topk_lengths_clamp1[last].clone()


@fault("H01", breaks="INV-42")
class PicksJoinedIntoOneList(Layered):
    """Entries picked by each query are laid into one list of keys, to which all queries of the chunk attend."""

    def change(self, layer: AttentionLayer) -> None:
        """Join the selections of each sequence's rows."""
        caches: Any = layer.caches
        right = caches.select

        def select(x: Tensor, qr: Tensor, meta: DSV4Metadata, entries: int, runs: Any) -> None:
            right(x, qr, meta, entries, runs)
            for run, rows in zip(runs or (), parts(runs or ()), strict=True):
                picked = torch.unique(meta.c4_sparse_raw_indices[rows])
                picked = picked[picked >= 0][: meta.index_topk]
                if run.count > 1 and len(picked):
                    joined = torch.nn.functional.pad(picked, (0, meta.index_topk - len(picked)), value=-1)
                    meta.c4_sparse_raw_indices[rows] = joined.int()
                    raw = meta.c4_sparse_raw_indices[rows]
                    meta.c4_sparse_page_indices[rows] = layer.caches.indexer.paged(raw, meta.page_table[rows])  # type: ignore[union-attr]
                    meta.c4_sparse_topk_lengths[rows] = len(picked)

        if layer.caches.indexer is not None:
            patch(caches, select=select)


@fault("O52", breaks="INV-42")
class DraftsWrittenOverTheWindow(Layered):
    """All drafts go to the window's ring before attention: the oldest rows that the first ones need are replaced."""

    class made(Stepping):
        """Verify steps on a ring of 128 rows."""

        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            """A window position is read where the draft 128 tokens later was written, if this step has it."""
            for run, rows in drafts(runs):
                own = torch.arange(run.start, run.start + run.count)[:, None]
                seen = own - torch.arange(128)
                later = torch.where(seen + 128 < run.start + run.count, seen + 128, seen)
                see_window(meta, rows, torch.where(seen < 0, -1, later))


@fault("O49", breaks="INV-42")
class OnePositionPerStep(Layered):
    """Queries of a step of several tokens are all rotated to the position of the first."""

    class made(AttentionLayer):
        """Rotates so."""

        def before(self, x: Tensor, meta: DSV4Metadata, entries: int, runs: Any = None, bounds: Any = None) -> Tensor:
            """Queries of a verify step at one position."""
            q = super().before(x, meta, entries, runs, bounds)
            if runs is not None or bounds is not None or not len(x):
                return q
            first = torch.where(meta.state_rows[1:] == meta.state_rows[:-1], 0, 1).cumsum(0)
            group = torch.cat((first.new_zeros(1), first))
            start = torch.stack([meta.positions[group == number].min() for number in group.tolist()])
            return self.projections.queries(self.projections.query_source(x), start, self.padded)


@fault("O49c", breaks="INV-92")
class WindowCountsUnwrittenSlots(Layered):
    """Before the window is full its unopened slots count as keys, whatever they hold."""

    class made(Stepping):
        """Lists of 128 keys at once."""

        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            """Fill the list with the slots that would come next on the first page."""
            for run, rows in zip(runs, parts(runs), strict=True):
                own = torch.arange(run.start, run.start + run.count)[:, None]
                seen = own - torch.arange(128)
                see_window(meta, rows, torch.where(seen < 0, own - seen, seen))
                meta.swa_topk_lengths[rows] = 128


@fault("O49d", breaks="INV-40")
class WindowPinnedToTheFirstTokens(Layered):
    """The window holds the first 128 tokens for ever, and does not trail the query."""

    class made(Stepping):
        """Lists that stay."""

        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            """Positions 127 down to 0 once they are there."""
            for run, rows in zip(runs, parts(runs), strict=True):
                own = torch.arange(run.start, run.start + run.count)[:, None].clamp(max=127)
                see_window(meta, rows, own - torch.arange(128))


@fault("O19", breaks="INV-42")
class WindowOnTheWholeTable(Layered):
    """Columns are numbered from the window's first page on, and the table handed over is the whole one."""

    class made(Stepping):
        """Verify steps with such columns."""

        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            """Drafts look their keys up some pages too early."""
            for run, rows in drafts(runs):
                own = torch.arange(run.start, run.start + run.count)[:, None]
                seen = own - torch.arange(128)
                first = max(run.start - 127, 0) // PAGE * PAGE
                see_window(meta, rows, torch.where(seen < 0, -1, seen - first))


@fault("T05", breaks="INV-42")
class TableOfThePrepareBefore(Layered):
    """The table is copied before the step's pages are in it, so a token that opens a page goes to the dummy page."""

    class made(AttentionLayer):
        """Tables first, pages second."""

        def take(self, segments: Sequence[NewTokens], mode: str) -> list[Run]:
            """Remember what each table held before it grew."""
            alive = self.sequences._alive
            vars(self)["known"] = {number: len(sequence.pages) for number, sequence in alive.items()}
            return super().take(segments, mode)

        def metadata(self, runs: Sequence[Run], padded_rows: int) -> DSV4Metadata:
            """Metadata by the tables of the step before, for sequences that had one."""
            known: dict[int, int] = vars(self).get("known", {})
            whole = {run.number: self.sequences[run.number].pages for run in runs}
            for number, pages in whole.items():
                self.sequences[number].pages = pages[: known.get(number, len(pages))]
            try:
                return super().metadata(runs, padded_rows)
            finally:
                for number, pages in whole.items():
                    self.sequences[number].pages = pages


@fault("S12", breaks="INV-42")
class DraftLocationsNotTransposed(Layered):
    """Locations of several drafts of several sequences are reshaped and not transposed: legal shape, wrong order."""

    class made(Stepping):
        """Verify steps of equal widths."""

        def listed(self, meta: DSV4Metadata, runs: Sequence[Run]) -> None:
            """Deal the window slots out step by step."""
            counts = {run.count for run in runs}
            if len(runs) > 1 and len(counts) == 1 and 1 < counts.copy().pop() <= LOOKBACK:
                total = sum(run.count for run in runs)
                dealt = meta.raw_out_loc[:total].view(len(runs), -1).T.flatten()
                meta.raw_out_loc[:total] = dealt.clone()


@fault("S22", breaks="INV-42", symptom="raises")
class VerifyCallNotAdapted(Layered):
    """A parameter was added, and the call in verify steps still has one argument fewer."""

    class made(AttentionLayer):
        """Misses an argument in one mode."""

        def step(
            self, segments: Sequence[NewTokens], mode: str = "prefill", padded_rows: int = 0, path: str = "auto"
        ) -> LayerOutput:
            """All modes but verify."""
            if mode == "verify":
                raise TypeError("forward() missing 1 required positional argument: 'c4_page_size'")
            return super().step(segments, mode, padded_rows, path)


@fault("V53", breaks="INV-42", symptom="raises")
class FlatVerifyTakenForPrefill(Layered):
    """A verify batch is flattened to one row per token, which selects the prefill kernel: it wants more than 64."""

    class made(AttentionLayer):
        """Dispatches by rank."""

        def step(
            self, segments: Sequence[NewTokens], mode: str = "prefill", padded_rows: int = 0, path: str = "auto"
        ) -> LayerOutput:
            """Refuse what the prefill kernel refuses."""
            rows = sum(len(segment.x) for segment in segments)
            if rows > len(segments) and rows <= 64:
                raise RuntimeError(f"num_tokens > 64 is required by the prefill kernel, and it is {rows}")
            return super().step(segments, mode, padded_rows, path)


@fault("V41", breaks="INV-42", symptom="raises")
class TwoDecodeThresholds(Layered):
    """One builder takes up to 11 tokens for a decode and another up to 6; prefill lists of 7 to 11 are never built."""

    class made(AttentionLayer):
        """Lacks lists in between."""

        def metadata(self, runs: Sequence[Run], padded_rows: int) -> DSV4Metadata:
            """Without lists for such lengths."""
            if any(6 < run.count <= 11 for run in runs):
                raise AttributeError("'NoneType' object has no attribute 'prefill_swa_indices'")
            return super().metadata(runs, padded_rows)


@fault("V39", breaks="INV-42", symptom="raises")
class NoScheduleForDraftLayers(Layered):
    """Schedules are prepared for ratios 4 and 128; an uncompressed draft layer asks for its own."""

    def change(self, layer: AttentionLayer) -> None:
        """Look the schedule up by ratio."""
        schedules = {4: layer.kernels.plan, 128: layer.kernels.plan}
        right = layer.attention.attend

        def attend(*given: Any) -> Tensor:
            schedules[layer.spec.ratio]()
            return right(*given)

        patch(layer.attention, attend=attend)


@fault("V48", breaks="INV-42", symptom="raises")
class IdleStepsHaveNoMetadata(Layered):
    """A step without sequences skips its metadata, and the kernels that other ranks wait for have none."""

    class made(AttentionLayer):
        """Skips."""

        def step(
            self, segments: Sequence[NewTokens], mode: str = "prefill", padded_rows: int = 0, path: str = "auto"
        ) -> LayerOutput:
            """Run with what an idle rank has."""
            if not segments:
                raise AttributeError("'NoneType' object has no attribute 'page_table'")
            return super().step(segments, mode, padded_rows, path)


@fault("O58", breaks="INV-45", symptom="raises")
class NoMaskForASingleToken(Layered):
    """With a single token the mask of compressed entries is None, and what is added to it has a shape."""

    class made(AttentionLayer):
        """Adds to None."""

        def metadata(self, runs: Sequence[Run], padded_rows: int) -> DSV4Metadata:
            """Refuse what has no mask."""
            if self.spec.ratio and any(run.start + run.count == 1 for run in runs):
                raise TypeError("unsupported operand type(s) for +: 'NoneType' and 'Tensor'")
            return super().metadata(runs, padded_rows)
