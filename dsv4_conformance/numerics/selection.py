"""What a top-k selection is judged by: exact scores over stored keys, and how far right scores may be off (spec §7)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.numerics import state_reference
from dsv4_conformance.numerics.state import FLOAT32
from dsv4_conformance.oracle import indexer
from dsv4_conformance.oracle.indexer import PUBLISHED, Form
from dsv4_conformance.spec.weights import IndexerSpec, Precision

E4M3_TOP_STEP = 32 / 448
"""Largest distance of neighbouring e4m3 values, in units of the vector's largest element."""

POWER_TOP_STEP = 32 / 256
"""The same under a power-of-two scale, where the largest element is anything above 224; steps are 32 from 256 on."""

FLIPS = 2
"""Query codes per token that may fall on the other side of a rounding boundary. A float32 query element is off by some
1e-7 of the largest one, against steps of 1e-2 to 7e-2: about 3e-5 of the 8192 elements flip, 0.3 per token."""

NOISE_DERIVATION = (
    "1e-5 x the row's largest |score|, quantised queries: + 2 flipped codes at their largest effect, 32/448 max |iq| x "
    "max |ik| x |w| (32/256 under power-of-two scales); bfloat16: + 2 x the error of a reference that rounds "
    "activations to bf16"
)


@dataclass(frozen=True)
class Exact:
    """Scores float64 ``(T, n)`` of every entry, and the error ``(T,)`` that right ones may have (NOISE_DERIVATION)."""

    scores: Tensor
    noise: Tensor

    @property
    def band(self) -> Tensor:
        """How much less an entry that was chosen may score than one that was not: both may be off."""
        return 2 * self.noise


def exact_scores(
    spec: IndexerSpec,
    x: Tensor,
    qr: Tensor,
    positions: Tensor,
    keys: Tensor,
    precision: Precision,
    form: Form = PUBLISHED,
) -> Exact:
    """Scores of the queries at ``positions`` (x and qr are their rows) over the adapter's stored keys ``(n, 128)``.

    The stored keys, rotated, are read, so that their quantisation is no part of the error (spec §20). ``form``: how the
    adapter declares that it rounds.
    """
    iq = indexer.queries(spec, qr, positions, form=form)
    w = indexer.head_weights(spec, x)
    stored = keys.to(torch.float64)
    scores = indexer.scores(iq, w, stored)
    noise = FLOAT32 * scores.abs().amax(1)
    if spec.quantised:
        rounded = (iq, stored) if form.rotated else (indexer.hadamard(iq), indexer.hadamard(stored))
        step = POWER_TOP_STEP if form.power_of_two else E4M3_TOP_STEP
        noise += FLIPS * step * (w.abs() * rounded[0].abs().amax(-1)).amax(1) * rounded[1].abs().max()
    if precision == "bfloat16":
        noise += 2 * (state_reference.scores(spec, x, qr, positions, keys) - scores).abs().amax(1)
    return Exact(scores, noise)


def trailing_fill(raw: Tensor, seen: Tensor, topk: int) -> Tensor:
    """Whether each row holds its min(n(t), topk) entries first and -1 in every place after them: bool ``(T,)``."""
    place = torch.arange(raw.shape[1], device=raw.device)
    return ((raw >= 0) == (place < seen.clamp(max=topk)[:, None])).all(1) & (raw >= -1).all(1)
