"""The independent low-precision reference that bfloat16 compressors and indexers are allowed twice the error of.

The definition in float64, rounded to bf16 where an engine that works in bf16 stores a tensor (spec §2.1).
"""

import torch
from torch import Tensor

from dsv4_conformance.oracle import compressor, indexer
from dsv4_conformance.oracle.rounding import Rounding, bf16
from dsv4_conformance.spec.weights import CompressorSpec, IndexerSpec

ROUNDED = Rounding(activations=True)


def entries(spec: CompressorSpec, x: Tensor) -> Tensor:
    """Compressed entries float64 ``(S // ratio, dim)``: projections, pooled and finished entries rounded to bf16."""
    u, g = compressor.projected(spec, x)
    return bf16(compressor.finished(spec, bf16(compressor.pooled(spec, bf16(u), bf16(g)))))


def scores(spec: IndexerSpec, x: Tensor, qr: Tensor, positions: Tensor, keys: Tensor) -> Tensor:
    """Scores float64 ``(T, n)`` of queries at ``positions`` over ``keys (n, 128)``: queries and weights in bf16."""
    iq = indexer.queries(spec, qr, positions, ROUNDED)
    return indexer.scores(iq, indexer.head_weights(spec, x, ROUNDED), keys.to(torch.float64))
