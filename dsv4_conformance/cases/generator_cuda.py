"""The word stream of generator.py in one CUDA launch, written in Triton (which every CUDA build of torch brings).

Triton's uint32 arithmetic wraps and shifts logically, so the bits are those of the torch form.
"""

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit(do_not_specialize=["low", "high"])  # type: ignore[untyped-decorator]
def _mix(out, count, low, high, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = place.to(tl.uint32) * 0x9E3779B1 + low.to(tl.uint32)
    x ^= x >> 16
    x = (x * 0x7FEB352D) ^ high.to(tl.uint32)
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    tl.store(out + place, x.to(tl.int32, bitcast=True), mask=place < count)


def mix(out: Tensor, low: int, high: int) -> None:
    """Fill contiguous int32 ``out`` with the stream of keys ``low`` and ``high``."""
    signed = [key - (1 << 32) if key >> 31 else key for key in (low, high)]
    _mix[(triton.cdiv(out.numel(), _BLOCK),)](out, out.numel(), *signed, BLOCK=_BLOCK)
