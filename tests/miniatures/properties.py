"""Layers that are right while every step is the plain one, each with one mistake about what happens between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from dsv4_conformance.faults import kv_pages
from dsv4_conformance.implementations.sessions import LayerSession
from dsv4_conformance.mla.compressor import Compressor
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.pools import KVPool
from dsv4_conformance.mla.step import LayerOutput, NewTokens
from dsv4_conformance.spec.weights import LayerSpec
from tests.miniatures.base import Miniature


class Between(Miniature):
    """The built-in layer, right; subclasses name the classes that its parts become."""

    layers: ClassVar[type[AttentionLayer]] = AttentionLayer
    pools: ClassVar[type[KVPool]] = KVPool
    compressors: ClassVar[type[Compressor]] = Compressor

    def open_layer(self, spec: LayerSpec) -> LayerSession:
        layer: Any = super().open_layer(spec)
        layer.__class__ = self.layers
        if spec.ratio:
            layer.caches.compressed.__class__ = self.pools
            layer.caches.compressor.__class__ = self.compressors
        opened: LayerSession = layer
        return opened


class RejectedEntriesStay(Miniature, kv_pages.RejectedEntriesStay):
    """Compressed entries that a rejected draft completed are not made again from the tokens that replace it."""


class _FirstTokenLost(Compressor):
    def _write(self, state_row: int, start: int, chunk: Tensor) -> None:
        if (start + len(chunk)) % self.ratio:
            chunk = torch.cat((torch.zeros_like(chunk[:1]), chunk[1:]))
        super()._write(state_row, start, chunk)


class ChunkLosesItsFirstToken(Between):
    """State of a prefill chunk that ends inside a group lacks the chunk's first token."""

    compressors = _FirstTokenLost


class _Joined(AttentionLayer):
    def step(
        self, segments: Sequence[NewTokens], mode: str = "prefill", padded_rows: int = 0, path: str = "auto"
    ) -> LayerOutput:
        before = sorted(self.sequences._alive)
        done = super().step(segments, mode, padded_rows, path)
        if before and len(self.sequences._alive) > len(before):
            last = torch.tensor([self.sequences[before[0]].length - 1])
            self.caches.window.store(torch.ones(1, 512), self._slots(before[0], last, 1))
        return done


class JoiningDisturbsAnother(Between):
    """A sequence that joins the batch writes over the newest window row of one that is there."""

    layers = _Joined
