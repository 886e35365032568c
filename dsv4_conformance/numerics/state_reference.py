"""The independent low-precision reference that bfloat16 compressors and indexers are allowed twice the error of.

The definition in float64, rounded to bf16 where an engine that works in bf16 stores a tensor (spec §2.1).
"""

import torch
from torch import Tensor

from dsv4_conformance.oracle import compressor, indexer
from dsv4_conformance.oracle.linear import project, turned
from dsv4_conformance.oracle.rounding import Rounding, bf16, scaled_fp8
from dsv4_conformance.spec.weights import CompressorSpec, IndexerSpec

ROUNDED = Rounding(activations=True)


def entries(spec: CompressorSpec, x: Tensor) -> Tensor:
    """Compressed entries float64 ``(S // ratio, dim)``: projections, pooled and finished entries rounded to bf16."""
    u, g = compressor.projected(spec, x)
    return bf16(compressor.finished(spec, bf16(compressor.pooled(spec, bf16(u), bf16(g)))))


def scores(spec: IndexerSpec, x: Tensor, qr: Tensor, positions: Tensor, keys: Tensor) -> Tensor:
    """Scores float64 ``(T, n)`` of queries at ``positions`` over ``keys (n, 128)``. Bf16 are the head weights, and the
    queries after their projection, after rope and after the Hadamard rotation."""
    iq = bf16(project(qr, spec.weights.wq_b)).view(len(qr), spec.geometry.index_n_heads, -1)
    iq = bf16(indexer.hadamard(bf16(turned(iq, spec.table, positions))))
    w = indexer.head_weights(spec, x, ROUNDED)
    return indexer.scores(scaled_fp8(iq) if spec.quantised else iq, w, keys.to(torch.float64))
