"""Every tensor of a process under compute-sanitizer gets a block of memory of its own.

Inside one cached block the tool could not tell tensors apart. Torch's own switch for this, the variable
PYTORCH_NO_CUDA_MEMORY_CACHING, holds for the life of the process, also while a CUDA graph is captured; but the driver
refuses to allocate then, and every capture would be an error of ours. So the cache is switched off in the process, and
on again for as long as a capture lasts.
"""

from __future__ import annotations

import os
from typing import Any

VARIABLE = "PYTORCH_NO_CUDA_MEMORY_CACHING"
RELAXED = "relaxed"
"""During a capture in this mode a tensor from before it can be freed, which is a call to the driver without a cache."""


def keep_apart() -> None:
    """Switch torch's cache of CUDA memory off, captures of graphs excepted. Starts CUDA in this process.

    The variable of torch decides where it is set: 0 keeps the cache, anything else does without it, captures included.
    """
    said = os.environ.get(VARIABLE)
    if said is not None:
        if said == "0":
            del os.environ[VARIABLE]  # torch reads any value as 1
        return
    import torch

    if not torch.cuda.is_available():
        return
    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.cuda.memory.caching_allocator_enable(False)
    excepting_captures(torch.cuda.CUDAGraph, torch.cuda.memory.caching_allocator_enable)


def excepting_captures(graph: Any, enable: Any) -> None:
    """Have the class ``graph`` call ``enable(True)`` before each capture and ``enable(False)`` after it, once only."""
    if hasattr(graph, "dsv4_begins"):
        return
    begins, ends = graph.capture_begin, graph.capture_end

    def capture_begin(self: Any, pool: Any = None, capture_error_mode: str = RELAXED, **rest: Any) -> None:
        enable(True)
        try:
            begins(self, pool=pool, capture_error_mode=RELAXED, **rest)
        except BaseException:
            enable(False)
            raise

    def capture_end(self: Any) -> None:
        try:
            ends(self)
        finally:
            enable(False)

    graph.dsv4_begins, graph.capture_begin, graph.capture_end = begins, capture_begin, capture_end
