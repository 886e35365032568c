"""Stand-in for vLLM's block manager: which blocks of a pool hold which tokens of which sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput


class Blocks:
    """``count`` blocks of ``size`` tokens. Block i of a sequence holds its tokens ``i size`` to ``i size + size - 1``.

    What was given back last is lent first, uncleared: a block that a kernel should not read holds another's rows.
    """

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self._free = list(range(count))
        self._lent: dict[int, list[int]] = {}

    def grow(self, sequence: int, tokens: int) -> None:
        """Lend what ``tokens`` tokens of ``sequence`` need. Raises BadInput if the pool is empty."""
        lent = self._lent.setdefault(sequence, [])
        while len(lent) * self.size < tokens:
            if not self._free:
                raise BadInput(
                    f"sequence {sequence} finds no block for {tokens} tokens; release others, or open the session for "
                    "more sequences or tokens."
                )
            lent.append(self._free.pop())

    def forget(self, sequence: int, position: int) -> None:
        """Take back the blocks that hold nothing at or behind ``position``, as a sliding window does."""
        lent = self._lent[sequence]
        for block in range(min(max(position, 0) // self.size, len(lent))):
            if lent[block] >= 0:
                self._free.append(lent[block])
                lent[block] = -1

    def truncate(self, sequence: int, tokens: int) -> None:
        """Take back the blocks beyond the first ``tokens`` tokens."""
        lent = self._lent[sequence]
        while (len(lent) - 1) * self.size >= tokens and lent:
            block = lent.pop()
            if block >= 0:
                self._free.append(block)

    def release(self, sequence: int) -> None:
        """Take back all blocks of a sequence."""
        self._free += [block for block in self._lent.pop(sequence) if block >= 0]

    def table(self, sequence: int) -> list[int]:
        """Block numbers of a sequence, -1 where they were taken back."""
        return list(self._lent[sequence])

    def tables(self, sequences: Sequence[int]) -> Tensor:
        """int64 ``(len(sequences), blocks)``, short ones filled with -1."""
        rows = [self._lent[sequence] for sequence in sequences]
        widest = max((len(row) for row in rows), default=0)
        return torch.tensor([row + [-1] * (widest - len(row)) for row in rows], dtype=torch.int64).view(-1, widest)

    def of_rows(self, sequences: Sequence[int]) -> tuple[Tensor, Tensor]:
        """For rows of these sequences: the request of each row int64 ``(n,)``, and the requests' tables."""
        number = {sequence: row for row, sequence in enumerate(dict.fromkeys(sequences))}
        return torch.tensor([number[sequence] for sequence in sequences], dtype=torch.int64), self.tables(list(number))
