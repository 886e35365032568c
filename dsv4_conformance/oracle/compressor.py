"""Compressed entries of one sequence in float64: a function of the whole token stream, without state (spec §5)."""

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.oracle.linear import project, rms_norm, turned
from dsv4_conformance.spec.weights import CompressorSpec

_SCRATCH = 1 << 23
"""Scores that one pass of the pooling holds."""


def visible(positions: Tensor, ratio: int) -> Tensor:
    """``n(t) = floor((t + 1) / ratio)``: entries that a query at each position sees (spec §0)."""
    return (positions + 1) // ratio


def projected(spec: CompressorSpec, x: Tensor) -> tuple[Tensor, Tensor]:
    """Values ``u`` and scores ``g`` without ape, float64 ``(S, coff * dim)``, of x ``(S, hidden)`` (spec §5)."""
    return project(x, spec.weights.wkv), project(x, spec.weights.wgate)


def slots(spec: CompressorSpec, u: Tensor, g: Tensor, channels: slice = slice(None)) -> tuple[Tensor, Tensor]:
    """What each finished entry pools: values and gated scores ``(S // ratio, slots, channels)``.

    Ratio 128: the window's 128 tokens. Ratio 4: the A halves of the window before, then the B halves of its own; entry
    0 has no window before it (score -inf, value 0) (spec §5.1, §5.2).
    """
    r, d = spec.ratio, spec.dim
    n = u.shape[0] // r
    values = u[: n * r].view(n, r, u.shape[-1])
    scores = g[: n * r].view(n, r, u.shape[-1])
    ape = spec.weights.ape.to(torch.float64)
    if r != 4:
        return values[..., channels], scores[..., channels] + ape[:, channels]
    overlap = [half[..., :d][..., channels] for half in (values, scores, ape)]
    normal = [half[..., d:][..., channels] for half in (values, scores, ape)]
    return (
        torch.cat((_window_before(overlap[0], 0.0), normal[0]), 1),
        torch.cat((_window_before(overlap[1] + overlap[2], -torch.inf), normal[1] + normal[2]), 1),
    )


def pooled(spec: CompressorSpec, u: Tensor, g: Tensor) -> Tensor:
    """Entries before their norm, ``(S // ratio, dim)``: per channel, the softmax of the scores over the slots weighs
    the values (spec §5.1, §5.2). u and g are ``projected``'s."""
    out = u.new_empty(u.shape[0] // spec.ratio, spec.dim)
    step = max(1, _SCRATCH // max(1, 2 * u.shape[0]))
    for start in range(0, spec.dim, step):
        channels = slice(start, min(start + step, spec.dim))
        values, scores = slots(spec, u, g, channels)
        out[:, channels] = (scores.softmax(1) * values).sum(1)
    return out


def finished(spec: CompressorSpec, before_norm: Tensor) -> Tensor:
    """Entries ``(n, dim)`` normed, and roped at the first position of their window, ``ratio * i`` (spec §5.3)."""
    first = torch.arange(before_norm.shape[0], device=before_norm.device) * spec.ratio
    return turned(rms_norm(before_norm, spec.weights.norm, spec.eps), spec.table, first)


def entries(spec: CompressorSpec, x: Tensor) -> Tensor:
    """All finished entries of one sequence, float64 ``(S // ratio, dim)``, of x ``(S, hidden)`` (spec §5).

    Normed and roped, neither Hadamard-rotated nor rounded. Tokens of a window that is not full make none. Raises
    BadInput for weights that do not fit the ratio and dim.
    """
    width = (2 if spec.ratio == 4 else 1) * spec.dim
    for name, rows in (("wkv", width), ("wgate", width), ("ape", spec.ratio), ("norm", spec.dim)):
        weight: Tensor = getattr(spec.weights, name)
        if weight.shape[0] != rows:
            raise BadInput(
                f"{name} of a compressor with ratio {spec.ratio} and dim {spec.dim} has {weight.shape[0]} rows; "
                f"pass {rows}."
            )
    whole = x.shape[0] // spec.ratio * spec.ratio
    return finished(spec, pooled(spec, *projected(spec, x[:whole])))


def _window_before(windows: Tensor, none: float) -> Tensor:
    """Row i becomes row i - 1 of ``(n, 4, channels)``; row 0 becomes ``none``."""
    return torch.cat((torch.full_like(windows[:1], none), windows[:-1]))
