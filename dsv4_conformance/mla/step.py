"""What goes into one step of a layer, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor


class NewTokens(Protocol):
    """New tokens of one sequence: ``x (n, hidden)``."""

    @property
    def sequence(self) -> int:
        """Number of the sequence."""

    @property
    def x(self) -> Tensor:
        """float32 or bf16 ``(n, hidden)``."""


class LayerOutput(NamedTuple):
    """As implementations.state_api.LayerResult: o and q ``(T, n_local, 512)``, out ``(T, hidden)``, selected."""

    o: Tensor
    out: Tensor
    q: Tensor | None
    selected: Tensor | None
    path: str


@dataclass(frozen=True)
class Run:
    """Rows of one sequence in a step: its number, its compressor state row, position of its first token, and tokens."""

    number: int
    state_row: int
    start: int
    count: int
