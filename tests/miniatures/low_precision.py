"""Right compressors and indexers that compute in bfloat16 and declare it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from dsv4_conformance.implementations.api import Convention
from dsv4_conformance.implementations.state_api import StateConvention
from dsv4_conformance.spec.weights import IndexerSpec
from tests.miniatures.compressor import Compressing, Ring, roped
from tests.miniatures.indexer import Indexing, Small, through_fp8


def rounded(x: Tensor) -> Tensor:
    """x through bf16."""
    return x.bfloat16().float()


class RoundedRing(Ring):
    """Rounds projections, pooled vectors, normed ones and entries."""

    def stored(self, ug: Tensor) -> Tensor:
        return rounded(ug)

    def pooled(self, values: Tensor, scores: Tensor) -> Tensor:
        return rounded(super().pooled(values, scores))

    def finished(self, pooled: Tensor, last: int) -> Tensor:
        normed = rounded(pooled * torch.rsqrt(pooled.square().mean() + self.spec.eps) * self.spec.weights.norm)
        return rounded(roped(normed, self.spec.table[self.position(last)]))


class RoundedSmall(Small):
    """Rounds keys, head weights, and queries after every stage."""

    def __init__(self, spec: IndexerSpec, sequences: int, max_tokens: int) -> None:
        super().__init__(spec, sequences, max_tokens)
        self.compressor = RoundedRing(self.compressor.spec, sequences)

    def rotated_keys(self, entries: Tensor) -> Tensor:
        return rounded(super().rotated_keys(entries))

    def rotated_queries(self, iq: Tensor) -> Tensor:
        return rounded(super().rotated_queries(rounded(iq)))

    def queries(self, qr: Tensor, positions: Tensor) -> Tensor:
        iq = rounded(qr @ self.spec.weights.wq_b.T).view(len(qr), self.heads, 128)
        turned = [roped(one, self.spec.table[position]) for one, position in zip(iq, positions.tolist(), strict=True)]
        iq = self.rotated_queries(torch.stack(turned))
        return through_fp8(iq) if self.spec.quantised else iq

    def head_weights(self, x: Tensor) -> Tensor:
        return rounded(x @ self.spec.weights.weights_proj.T) * self.spec.geometry.index_weight_scale


class RoundedCompressing(Compressing):
    """Declares bfloat16."""

    surfaces: ClassVar[dict[str, Convention]] = {"Compressor": StateConvention("bfloat16")}
    session = RoundedRing


class RoundedIndexing(Indexing):
    """Declares bfloat16."""

    surfaces: ClassVar[dict[str, Convention]] = {"Indexer": StateConvention("bfloat16")}
    session = RoundedSmall
