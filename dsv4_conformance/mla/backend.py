"""Kernel sets behind one interface: which head counts they take, and the two ways to attend (spec §10, §11, §15).

The paged way reads the cache through slot lists; the row way reads a flat buffer of keys: the workspace of sparse
prefill, or the pools themselves where they hold exact rows (unified KV). Every way is given the same local sink.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.heads import local_heads, padded_heads
from dsv4_conformance.mla.kernels import exact, flash_mla
from dsv4_conformance.mla.kernels import torch as torch_kernels
from dsv4_conformance.mla.pools import KVPool


class Listed(NamedTuple):
    """A pool and, per query row, slots int32 ``(T, n)`` and how many leftmost ones count, int32 ``(T,)``."""

    pool: KVPool
    slots: Tensor
    lengths: Tensor


class Kernels(Protocol):
    """A set of attention kernels."""

    name: str

    def heads(self, n_heads: int, tp: int) -> int:
        """Query heads a call of one rank has: the padding rule is the kernel's own."""

    def plan(self) -> Any:
        """A new scheduler object for one forward; None where the kernels need none."""

    def paged(self, q: Tensor, window: Listed, extra: Listed | None, sink: Tensor, scale: float, plan: Any) -> Tensor:
        """out ``(T, h_q, 512)`` of q over listed slots of one or two pools."""

    def rows(
        self, q: Tensor, rows: Tensor, indices: Tensor, lengths: Tensor | None, sink: Tensor, scale: float
    ) -> Tensor:
        """out ``(T, h_q, 512)`` of q over rows ``(s, 1, 512)``; indices int32 ``(T, n)``, negative = hole."""


def _fit(heads: int, n_heads: int, tp: int) -> int:
    """The padding rule of FlashMLA (spec §15), raised to a head count it is built for."""
    wanted = padded_heads(n_heads, tp)
    fitting = [count for count in flash_mla.HEADS if count >= wanted]
    if not fitting:
        raise BadInput(f"{heads} heads per rank exceed the {flash_mla.HEADS[-1]} that FlashMLA takes; use a larger tp.")
    return fitting[0]


class FlashKernels:
    """FlashMLA on CUDA: fp8 pages in decode, bf16 rows in prefill, 64 or 128 query heads."""

    name = "flash_mla"

    def __init__(self) -> None:
        self.engine = flash_mla.engine()

    def heads(self, n_heads: int, tp: int) -> int:
        """64 or 128."""
        return _fit(local_heads(n_heads, tp), n_heads, tp)

    def plan(self) -> Any:
        """An empty ``FlashMLASchedMeta``: the first call that uses it plans, inside a graph if one is captured."""
        return self.engine.get_mla_metadata()[0]

    def paged(self, q: Tensor, window: Listed, extra: Listed | None, sink: Tensor, scale: float, plan: Any) -> Tensor:
        """Spec §10. Lists must be multiples of 64 wide."""
        more = None if extra is None else (extra.pool.pages, extra.slots, extra.lengths)
        first = (window.pool.pages, window.slots, window.lengths)
        return flash_mla.decode(self.engine, q, first, more, sink, scale, plan)

    def rows(
        self, q: Tensor, rows: Tensor, indices: Tensor, lengths: Tensor | None, sink: Tensor, scale: float
    ) -> Tensor:
        """Spec §11. Lists must be multiples of 128 wide."""
        return flash_mla.prefill(self.engine, q, rows, indices, lengths, sink, scale)


@dataclass(frozen=True)
class _Scope:
    pages: Tensor
    indices: Tensor
    topk_length: Tensor | None


class TorchKernels:
    """The torch kernels of this package, which round where FlashMLA rounds; tp > 1 pads as FlashMLA needs it."""

    name = "torch"

    def heads(self, n_heads: int, tp: int) -> int:
        """Spec §15; any count is accepted, so nothing is padded without tensor parallelism."""
        return padded_heads(n_heads, tp)

    def plan(self) -> None:
        """No scheduler."""

    def paged(self, q: Tensor, window: Listed, extra: Listed | None, sink: Tensor, scale: float, plan: Any) -> Tensor:
        """Spec §10."""
        scopes = [None if s is None else _Scope(s.pool.pages, s.slots[:, None], s.lengths) for s in (window, extra)]
        assert scopes[0] is not None
        return torch_kernels.sparse_decode(q[:, None], scopes[0], scopes[1], sink, scale).out[:, 0]

    def rows(
        self, q: Tensor, rows: Tensor, indices: Tensor, lengths: Tensor | None, sink: Tensor, scale: float
    ) -> Tensor:
        """Spec §11."""
        return torch_kernels.sparse_prefill(q, rows, indices[:, None], lengths, sink, scale).out


class ExactKernels:
    """Float32 attention without any rounding on the way; pads heads as spec §15 says."""

    name = "exact"

    def heads(self, n_heads: int, tp: int) -> int:
        """Spec §15, so that a float32 layer on a laptop has padded heads as well."""
        return padded_heads(n_heads, tp)

    def plan(self) -> None:
        """No scheduler."""

    def paged(self, q: Tensor, window: Listed, extra: Listed | None, sink: Tensor, scale: float, plan: Any) -> Tensor:
        """Dequantised rows, gathered per query."""
        out = torch.empty_like(q)
        scopes = [scope for scope in (window, extra) if scope is not None]
        lists = [masked(scope.slots, scope.lengths) for scope in scopes]
        row_bytes = sum(slots.shape[1] for slots in lists) * q.shape[2] * q.element_size()
        step = max(1, exact.SCRATCH_BYTES // max(1, row_bytes))
        for start in range(0, len(q), step):
            part = slice(start, start + step)
            keys = torch.cat([scope.pool.load(slots[part]) for scope, slots in zip(scopes, lists, strict=True)], 1)
            valid = torch.cat([slots[part] for slots in lists], 1) >= 0
            out[part] = exact.attend(q[part], keys.to(q.dtype), valid, sink, scale)
        return out

    def rows(
        self, q: Tensor, rows: Tensor, indices: Tensor, lengths: Tensor | None, sink: Tensor, scale: float
    ) -> Tensor:
        """Float32 rows."""
        return exact.attend_rows(q, rows[:, 0], masked(indices, lengths), sink, scale)


def masked(slots: Tensor, lengths: Tensor | None) -> Tensor:
    """slots int ``(T, n)`` with -1 from each row's length int ``(T,)`` on."""
    if lengths is None:
        return slots
    return slots.masked_fill(torch.arange(slots.shape[1], device=slots.device) >= lengths[:, None], -1)


def kernels_for(device: torch.device, precision: str, name: str = "auto") -> Kernels:
    """The kernel set of a layer: exact for float32; for bfloat16 FlashMLA where it runs (sm_90, sm_100), else torch.

    ``name`` forces "flash_mla" or "torch". Raises BadInput if FlashMLA is forced and cannot serve.
    """
    if precision == "float32":
        return ExactKernels()
    if name == "torch":
        return TorchKernels()
    fits = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in (9, 10)
    if name == "flash_mla":
        if not fits:
            raise BadInput(
                f"FlashMLA runs on sm_90 and sm_100 only, not on {device}; open the layer with torch kernels."
            )
        return FlashKernels()
    try:
        return FlashKernels() if fits else TorchKernels()
    except BadInput:
        return TorchKernels()
