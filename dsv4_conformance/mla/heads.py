"""Query-head padding and the per-rank attention sink of a tensor-parallel layer (spec §15)."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput

KERNEL_HEADS = 64
"""The smaller of the two head counts that sparse kernels are built for."""


def local_heads(n_heads: int, tp: int) -> int:
    """Query heads that one of ``tp`` ranks owns. Raises BadInput unless tp divides n_heads."""
    if tp < 1 or n_heads < 1 or n_heads % tp:
        raise BadInput(f"{n_heads} heads cannot be split over {tp} ranks; use a size that divides them.")
    return n_heads // tp


def padded_heads(n_heads: int, tp: int) -> int:
    """Query heads the kernel is called with on one of ``tp`` ranks (spec §15; performance, INV-52).

    No padding without tensor parallelism. With it, the 64-head kernel wherever a rank's heads fit into it: on SM100 it
    costs half of the 128-head kernel that padding to all heads would select.
    """
    if local_heads(n_heads, tp) > KERNEL_HEADS or tp == 1:
        return n_heads
    return KERNEL_HEADS


def pad_query(q: Tensor, padded: int) -> Tensor:
    """q ``(T, n_local, 512)`` -> ``(T, padded, 512)``: real heads first, the others uninitialised; q itself if it fits.

    Raises BadInput if q has more heads than ``padded``.
    """
    tokens, heads, dim = q.shape
    if heads > padded:
        raise BadInput(f"q has {heads} heads and cannot be padded to {padded}; pass the heads of one rank.")
    if heads == padded:
        return q
    wide = q.new_empty(tokens, padded, dim)
    wide[:, :heads] = q
    return wide


class LocalSink:
    """One rank's slice of the sink parameter fp32 ``(n_heads,)``, padded like its queries (spec §15, INV-53, INV-54).

    Its storage is made here and never moves, because captured graphs hold its address; its content is read at the first
    ``get``, when weights are loaded, and again whenever the parameter was written since. Where no head is padded or
    left out, the parameter itself serves. ``padded``: heads that the kernel takes, by default those of spec §15. Raises
    BadInput for a rank outside ``[0, tp)``, heads that tp does not divide, or a ``padded`` below the rank's heads.
    """

    def __init__(self, sink: Tensor, rank: int, tp: int, padded: int | None = None) -> None:
        if not 0 <= rank < tp:
            raise BadInput(f"rank {rank} does not exist among {tp} ranks; pass a rank from 0 to {tp - 1}.")
        self._count = local_heads(sink.shape[0], tp)
        self._padded = padded_heads(sink.shape[0], tp) if padded is None else padded
        if self._padded < self._count:
            raise BadInput(f"{self._count} local heads do not fit into {self._padded}; pad to at least as many.")
        self._parameter, self._first = sink, rank * self._count
        self._copied: int | None = None
        self._local = sink if tp == 1 and self._padded == self._count else sink.new_zeros(self._padded)

    def get(self) -> Tensor:
        """This rank's sink, fp32 ``(padded,)``, zero beyond the rank's heads; the same storage on every call.

        Inside a CUDA-graph capture a slice that is not up to date is copied by the graph itself, at every replay.
        """
        if self._copied is None or self._copied != _version(self._parameter):
            self.refresh()
        return self._local

    def refresh(self) -> None:
        """Copy the slice again, in place: what a weight update must be followed by where graphs are replayed."""
        if self._local is self._parameter:
            return
        self._local[: self._count] = self._parameter[self._first : self._first + self._count]
        capturing = self._local.is_cuda and torch.cuda.is_current_stream_capturing()
        self._copied = None if capturing else _version(self._parameter)

    def follow(self, sink: Tensor) -> None:
        """Take another parameter tensor of the same shape as the source and refresh; the storage stays."""
        if sink is not self._parameter:
            if self._local is self._parameter:
                self._local = sink
            self._parameter = sink
            self.refresh()


def _version(tensor: Tensor) -> int:
    """How often ``tensor`` was written in place, as torch counts; inference tensors are not counted."""
    return 0 if tensor.is_inference() else tensor._version
