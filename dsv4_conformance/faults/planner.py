"""Chunk planners that disagree with what the gather asks of the workspace (spec §13.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.faults.fault import fault
from dsv4_conformance.faults.layers import Layered
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.extent_api import PlannerSession
from dsv4_conformance.mla.attend import Attention
from dsv4_conformance.mla.chunk_cache import SparsePrefillChunkCache
from dsv4_conformance.mla.metadata import DSV4Metadata
from dsv4_conformance.mla.planner import Piece, Planner


class Planned(Builtin):
    """The built-in planner; subclasses name another one."""

    touches: ClassVar[tuple[str, ...]] = ("Planner",)
    plans: ClassVar[type[Planner]] = Planner

    def open_planner(self, rows: int, ratios: Sequence[int]) -> PlannerSession:
        """Planner of the class's own kind."""
        return cast("PlannerSession", self.plans(rows, ratios))


@fault("V15", breaks="INV-143")
class BudgetInTokens(Planned):
    """Compressed lengths are compared with a budget in tokens: up to ratio times the rows that there are."""

    class plans(Planner):
        """Too generous."""

        def _most(self, current: list[Piece], request: int, start: int, left: int) -> int:
            rows, self._rows = self._rows, self._rows * max(*self._ratios, 1)
            try:
                return super()._most(current, request, start, left)
            finally:
                self._rows = rows


@fault("T09", breaks="INV-143")
class ReservesWholeBlocks(Planned):
    """The pool is rounded down to whole blocks of 64 rows; the planner goes by what was asked for."""

    class plans(Planner):
        """Less than was promised."""

        def reserved(self) -> int:
            """Whole blocks."""
            return self._rows // 64 * 64 or self._rows


@fault("V65b", breaks="INV-145")
class ClampsWhatDoesNotFit(Planned):
    """A token that gathers more rows than there are is planned all the same; a slice cuts its rows."""

    class plans(Planner):
        """Never refuses."""

        def plan(self, seq_lens: Sequence[int], extend_lens: Sequence[int]) -> list[list[Piece]]:
            """Token by token where nothing fits."""
            try:
                return super().plan(seq_lens, extend_lens)
            except BadInput:
                pieces = enumerate(zip(seq_lens, extend_lens, strict=True))
                return [[Piece(r, p, 1)] for r, (end, new) in pieces for p in range(end - new, end)]


@fault("V57b", breaks="INV-155")
class LaterChunksDoNotGather(Layered):
    """Only the first chunk of a prompt gathers; the others read the rows that it left, though theirs lie elsewhere."""

    class attends(Attention):
        """One gather."""

        def _gathered(self, q: Tensor, meta: DSV4Metadata, cache: SparsePrefillChunkCache, part: slice) -> Tensor:
            if not part.start:
                return super()._gathered(q, meta, cache, part)
            rows = self.workspace.get(self.workspace.rows)
            kept = rows.clone()
            cache.ensure_c4(meta.page_table[part])
            cache.ensure_c128(meta.c128_page_indices[part])
            raw = meta.c4_sparse_raw_indices[part] if self._ratio == 4 else None
            indices, lengths = cache.combined(self._ratio, raw)
            return self._kernels.rows(q, kept, indices, lengths, self._sink.get(), self._scale)
