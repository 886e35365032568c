"""The rotation that index queries and keys share (spec §7)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def hadamard(size: int, device: torch.device | str) -> Tensor:
    """Sylvester's matrix over the root of its size, float32 ``(size, size)``; symmetric and its own inverse.

    ``size`` is a power of two. Plain: no sign is flipped at random (spec §7).
    """
    matrix = torch.ones(1, 1, device=device)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / math.sqrt(size)
