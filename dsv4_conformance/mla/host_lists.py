"""Host numbers to device tensors without a host sync: what metadata and chunk cache are built from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor


def on_device(values: Sequence[int], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """``values`` as a tensor ``(n,)``. On CUDA through pinned memory, since a copy from pageable memory waits."""
    host = torch.tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def offsets(counts: Sequence[int]) -> list[int]:
    """Exclusive running sums, the total last: ``[0, c_0, c_0 + c_1, ...]``."""
    return [0, *accumulate(counts)]


def owners(counts: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Of ragged lists laid end to end: int64 list number and place within its list of each element.

    The total is known on the host, so nothing waits for the device.
    """
    total, starts = sum(counts), offsets(counts)[:-1]
    lists = torch.arange(len(counts), device=device)
    owner = torch.repeat_interleave(lists, on_device(counts, device), output_size=total)
    return owner, torch.arange(total, device=device) - on_device(starts, device)[owner]
