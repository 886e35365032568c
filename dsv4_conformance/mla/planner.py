"""Cuts an extend batch into chunks whose gathers fit into a workspace of fixed size (spec §13.1, §13.2).

Everything is counted in what the gather asks of the workspace: rows, compressed entries and window positions together,
in the layer that gathers most. Counted in tokens, a chunk of one new token behind a long prefix looks small.
https://github.com/vllm-project/vllm/pull/51252
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.config_memory import workspace_rows


@dataclass(frozen=True)
class Piece:
    """New tokens ``start`` .. ``start + count - 1`` of request ``request``, by position in the sequence."""

    request: int
    start: int
    count: int


class Planner:
    """Plans for a workspace of ``rows`` rows that serves layers of these ``ratios``. Raises BadInput for rows < 1."""

    def __init__(self, rows: int, ratios: Sequence[int]) -> None:
        if rows < 1:
            raise BadInput(f"a workspace of {rows} rows holds nothing; reserve at least one.")
        self._rows, self._ratios = rows, tuple(ratios)

    def reserved(self) -> int:
        """Rows of the workspace."""
        return self._rows

    def rows(self, chunk: Sequence[Piece]) -> int:
        """Rows that the gather of ``chunk`` asks for, in the layer that gathers most."""
        ends, counts = [piece.start + piece.count for piece in chunk], [piece.count for piece in chunk]
        return max(workspace_rows(ratio, ends, counts) for ratio in self._ratios)

    def plan(self, seq_lens: Sequence[int], extend_lens: Sequence[int]) -> list[list[Piece]]:
        """Chunks, in request order, each as large as fits; a request may be spread over several.

        Raises BadInput, before any chunk is run, for a token whose own rows do not fit: nothing is ever cut short.
        """
        chunks: list[list[Piece]] = []
        current: list[Piece] = []
        for request, (length, new) in enumerate(zip(seq_lens, extend_lens, strict=True)):
            start = length - new
            while start < length:
                count = self._most(current, request, start, length - start)
                if count:
                    current.append(Piece(request, start, count))
                    start += count
                elif current:
                    chunks.append(current)
                    current = []
                else:
                    needed = self.rows([Piece(request, start, 1)])
                    raise BadInput(
                        f"position {start} of request {request} alone gathers {needed} rows and the workspace has "
                        f"{self._rows}; reserve that many."
                    )
        return [*chunks, current] if current else chunks

    def _most(self, current: list[Piece], request: int, start: int, left: int) -> int:
        """The largest number of tokens that still fits: rows grow with it."""
        low, high = 0, left
        while low < high:
            middle = (low + high + 1) // 2
            if self.rows([*current, Piece(request, start, middle)]) <= self._rows:
                low = middle
            else:
                high = middle - 1
        return low
