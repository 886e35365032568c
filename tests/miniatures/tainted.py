"""Adapters whose answers are right, and whose kernels do in some cases what only compute-sanitizer sees.

One class per tool; which cases are at fault is told as in :mod:`tests.miniatures.crashing`:
``python -m tests.miniatures.crashing JOURNAL``. Each fault leaves the process and its context alive if the tool does.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import torch

from tests.miniatures.crashing import EveryFault, Fault

SOURCE = r"""
extern "C" __global__ void beyond(float* block, int floats) { block[floats] = 1.0f; }
extern "C" __global__ void unread(const float* block, float* sum) { sum[threadIdx.x] = block[threadIdx.x] * 0.0f; }
extern "C" __global__ void race(float* out) {
    __shared__ float shared[64];
    shared[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = shared[63 - threadIdx.x];
}
extern "C" __global__ void diverge(float* out) {
    if (threadIdx.x < 16) __syncthreads();
    out[threadIdx.x] = 1.0f;
}
"""


@functools.cache
def _kernel(name: str) -> Any:
    return torch.cuda._compile_kernel(SOURCE, name)


def _beyond(call: Any, result: Any) -> Any:
    block = torch.zeros(1024, device="cuda")
    _kernel("beyond")(grid=(1, 1, 1), block=(1, 1, 1), args=[block, block.numel()])
    return result


def _unread(call: Any, result: Any) -> Any:
    block, out = torch.empty(32, device="cuda"), torch.zeros(32, device="cuda")
    _kernel("unread")(grid=(1, 1, 1), block=(32, 1, 1), args=[block, out])
    return result


def _race(call: Any, result: Any) -> Any:
    _kernel("race")(grid=(1, 1, 1), block=(64, 1, 1), args=[torch.zeros(64, device="cuda")])
    return result


def _diverge(call: Any, result: Any) -> Any:
    _kernel("diverge")(grid=(1, 1, 1), block=(32, 1, 1), args=[torch.zeros(32, device="cuda")])
    return result


class Memcheck(EveryFault):
    """Writes one element behind a block of device memory."""

    faults: ClassVar[dict[str, Fault]] = {"beyond": Fault(_beyond, ("FAIL",))}
    devices = ("cuda",)


class Initcheck(EveryFault):
    """Reads device memory that nobody wrote."""

    faults: ClassVar[dict[str, Fault]] = {"unread": Fault(_unread, ("FAIL",))}
    devices = ("cuda",)


class Racecheck(EveryFault):
    """Two warps exchange values in shared memory without a barrier."""

    faults: ClassVar[dict[str, Fault]] = {"race": Fault(_race, ("FAIL",))}
    devices = ("cuda",)


class Synccheck(EveryFault):
    """Half of a warp waits at a barrier."""

    faults: ClassVar[dict[str, Fault]] = {"diverge": Fault(_diverge, ("FAIL",))}
    devices = ("cuda",)
