"""Surfaces about extents: formulas, the chunk planner of a bounded workspace, and prefixes found again by content.

Conventions, data and protocols; no torch at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dsv4_conformance.spec.formulas import FORMULAS

if TYPE_CHECKING:
    from torch import Tensor

    from dsv4_conformance.implementations.state_api import LayerResult, Mode

EXTENT_METHODS: Mapping[str, tuple[str, ...]] = {
    "Formula": ("formula",),
    "Planner": ("open_planner",),
    "PrefixReuse": ("open_prefix_cache",),
}
"""Surface -> methods of the adapter that answer it."""


@dataclass(frozen=True)
class FormulaConvention:
    """Declarations for Formula. ``formulas``: names out of spec/formulas.py that the adapter evaluates; ``pool_bytes``:
    bytes of the largest pool that offsets may reach into; beyond it an adapter may refuse."""

    formulas: tuple[str, ...] = tuple(FORMULAS)
    pool_bytes: int = 1 << 37


@dataclass(frozen=True)
class PrefixConvention:
    """Declarations for PrefixReuse. ``granularity``: prompts share prefixes in multiples of so many tokens; ``held``:
    finished prompts that are found again while nothing else needs their place."""

    granularity: int = 256
    held: int = 2


@dataclass(frozen=True)
class Piece:
    """New tokens ``start`` .. ``start + count - 1`` of request ``request``, by position in the sequence."""

    request: int
    start: int
    count: int


class PlannerSession(Protocol):
    """Cuts prefills so that what each chunk gathers fits into a workspace that was reserved before (spec §13.1)."""

    def plan(self, seq_lens: Sequence[int], extend_lens: Sequence[int]) -> Sequence[Sequence[Piece]]:
        """Chunks of a batch of requests that hold ``seq_lens`` tokens with it, the last ``extend_lens`` of them new.

        Raises for a batch of which some token alone needs more rows than are reserved.
        """

    def rows(self, chunk: Sequence[Piece]) -> int:
        """Rows that the gather of a chunk asks of the workspace, in the layer that gathers most."""

    def reserved(self) -> int:
        """Rows of the workspace."""


@dataclass(frozen=True)
class TokenSegment:
    """Consecutive new tokens of one sequence: their ``ids``, and ``x (n, hidden)`` as the layer sees them. Equal ids at
    equal positions after equal prefixes have equal rows."""

    sequence: int
    ids: tuple[int, ...]
    x: Tensor


class PrefixSession(Protocol):
    """One attention layer behind a cache of prefixes, which are found by the ids of their tokens."""

    def lookup(self, ids: Sequence[int]) -> int:
        """Tokens of the prompt ``ids`` that ``admit`` would take from the cache: fewer than there are, so that at least
        one is computed."""

    def admit(self, sequence: int, ids: Sequence[int]) -> int:
        """Start a sequence that is going to have the prompt ``ids``; the number of its first tokens that are there
        already."""

    def step(self, segments: Sequence[TokenSegment], mode: Mode = "prefill") -> LayerResult:
        """Run new tokens of admitted sequences, as LayerSession.step."""

    def finish(self, sequence: int) -> None:
        """End a sequence; later prompts may find what it leaves."""

    def poison(self) -> None:
        """Fill with NaN every byte that neither a living sequence nor the cache owns."""

    def window_rows(self, sequence: int, positions: Tensor) -> Tensor:
        """As LayerSession.window_rows; the last 128 positions may be asked for."""

    def compressed_rows(self, sequence: int) -> Tensor:
        """As LayerSession.compressed_rows."""

    def compressed_slots(self, sequence: int) -> Tensor:
        """Slots of the stored compressed entries of a living sequence, int ``(S // ratio,)``."""
