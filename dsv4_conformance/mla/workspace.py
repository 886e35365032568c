"""The bf16 buffer that sparse prefill gathers its keys into: one for all layers and batches (spec §13.1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.spec.geometry import HEAD_DIM


class SparsePrefillWorkspace:
    """Grow-only rows ``(n, 1, 512)``; holds nothing until it is first asked (spec §13.1, INV-72).

    Every layer writes the rows that it reads before it reads them, so one buffer serves all layers, ratios and batches.
    That is safe only while sparse prefill is eager and serial; ``use`` checks both. ``dtype`` is bf16 for kernels,
    float32 for a layer that computes in float32.
    """

    def __init__(self, device: torch.device | str, dtype: torch.dtype = torch.bfloat16) -> None:
        self._device = torch.device(device)
        self._dtype = dtype
        self._buffer: Tensor | None = None
        self._open = False
        self._locked = False

    @property
    def rows(self) -> int:
        """Rows that the buffer holds now."""
        return 0 if self._buffer is None else self._buffer.shape[0]

    def reserve(self, rows: int) -> None:
        """Make the buffer for ``rows`` rows now, and never a larger one: what asks for more is refused from now on."""
        self.get(rows)
        self._locked = True

    def get(self, rows: int) -> Tensor:
        """A view of the first ``rows`` rows, uninitialised; a larger buffer of exactly ``rows`` replaces a smaller one.

        Nothing is copied on growth: a caller that still holds a view keeps the old rows. Raises BadInput if rows < 1 or
        beyond what was reserved.
        """
        if rows < 1:
            raise BadInput(f"a workspace of {rows} rows was asked for; a batch without keys needs none, so do not ask.")
        if self._buffer is None or self._buffer.shape[0] < rows:
            if self._locked:
                raise BadInput(f"{rows} rows were asked of a workspace of {self.rows}; plan chunks that fit into it.")
            self._buffer = torch.empty((rows, 1, HEAD_DIM), dtype=self._dtype, device=self._device)
        return self._buffer[:rows]

    @contextmanager
    def use(self, rows: int) -> Iterator[Tensor]:
        """``get(rows)`` for one attention call, from the gather to the kernel.

        Raises RuntimeError if another use is still open, or if the current stream captures a CUDA graph: a graph would
        keep the address of a buffer that a later, longer batch replaces.
        """
        if self._open:
            raise RuntimeError("The sparse-prefill workspace is in use; its users must run one after the other.")
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("The sparse-prefill workspace was asked for during graph capture; run the step eagerly.")
        self._open = True
        try:
            yield self.get(rows)
        finally:
            self._open = False
