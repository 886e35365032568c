"""Adapters of SGLang's kernels for the unified cache: window and compressed rows of a layer in one bf16 buffer.

Both take packed lists, a row's entries behind the last row's, instead of a rectangle with lengths, and return the
output alone. What they compute is a sparse prefill over such a buffer (spec §8, §11), so SparsePrefill is offered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations import sglang_engine as engine
from dsv4_conformance.implementations import sglang_release as release
from dsv4_conformance.implementations import sglang_standins, triton_interpreter
from dsv4_conformance.implementations.api import (
    AttentionConvention,
    Convention,
    Identity,
    Implementation,
    PrefillCall,
    PrefillResult,
)

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor

DECODE, PREFILL = "sparse_attn_v4_paged_decode", "sparse_attn_v4_paged_prefill"
PLACES = ("sglang.kernels.ops.attention.dsv4.unified_kv_kernels", "sglang.srt.layers.attention.dsv4.unified_kv_kernels")
ROCM = "aiter"
"""A package for ROCm that releases up to 0.5.18 import with these kernels, whatever the device."""
CPU_UNITS = 4
"""Compute units told on a CPU: few, so that calls of few rows are split over keys and others are not."""


class _Unified(Implementation):
    """What both kernels share; ``kernel`` is the function, in the module of its name."""

    kernel: ClassVar[str]
    surfaces: ClassVar[Mapping[str, Convention]] = {
        "SparsePrefill": AttentionConvention(topk_multiple=1, returns_lse=False, returns_max_logits=False)
    }

    @classmethod
    def check_available(cls) -> None:
        """Raise BadInput, in one sentence, if SGLang is missing or has no kernels for a unified cache."""
        engine.check_available(cls.identity.name)
        if _module(cls.kernel) is None:
            raise BadInput(
                f"implementation '{cls.identity.name}' finds no {cls.kernel} in sglang {release.version()}; "
                f"{engine.REMEDY}."
            )

    def __init__(self, device: str) -> None:
        super().__init__(device)
        import torch

        engine.load(device)
        found = _module(self.kernel)
        assert found is not None
        with sglang_standins.while_importing(ROCM):  # for its number of compute units and its own kernels
            self._module: ModuleType = engine.module(found)
        if hasattr(self._module, "_cu_count"):
            units = torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else CPU_UNITS
            self._module._cu_count = lambda: units  # type: ignore[attr-defined]

    def call(self, q: Tensor, *given: Any) -> Tensor:
        """The kernel's wrapper, which refuses tensors that do not say that they are on a GPU."""
        from torch import Tensor

        function = getattr(self._module, self.kernel)
        if self.device == "cpu":
            q = q.as_subclass(_says_cuda())
        out: Tensor = function(q, *given)
        return out.as_subclass(Tensor)


def _notes(kernel: str, lists: str) -> tuple[str, ...]:
    return (
        f"driven: {kernel}, the bf16 cache",
        lists,
        "stood in for: the number of compute units, which is asked from a package for ROCm; a missing sink is -inf",
        sglang_standins.NOTES,
        f"on a CPU: {triton_interpreter.NOTE}; the query says that it is on a GPU",
    )


class UnifiedDecode(_Unified):
    """``sparse_attn_v4_paged_decode``: one row per token, split over keys where there are few rows."""

    kernel = DECODE
    identity: ClassVar[Identity] = Identity(
        name="sglang_unified_decode",
        version=release.version(),
        homepage="https://github.com/sgl-project/sglang",
        kind="engine",
        notes=_notes(DECODE, "entries that name no row are left out, as the engine's own lists have none"),
    )

    def prefill(self, call: PrefillCall) -> PrefillResult:
        """SparsePrefill: spec §8, §11; the buffer is ``call.kv``."""
        rows = call.kv.shape[0]
        slots, starts = _packed(call, lambda index: (index >= 0) & (index < rows))
        return _result(self.call(call.q, call.kv[:, 0], slots, starts, _sink(call), call.scale))


class UnifiedPrefill(_Unified):
    """``sparse_attn_v4_paged_prefill``: keys of the past in the unified buffer, those of this chunk in one of their
    own. The first half of a call's rows stands for the past."""

    kernel = PREFILL
    identity: ClassVar[Identity] = Identity(
        name="sglang_unified_prefill",
        version=release.version(),
        homepage="https://github.com/sgl-project/sglang",
        kind="engine",
        notes=_notes(
            PREFILL,
            "rows of the first half are given as the past, the others as the chunk's; what names no row is -1 among "
            "the past's",
        ),
    )

    def prefill(self, call: PrefillCall) -> PrefillResult:
        """SparsePrefill: spec §8, §11."""
        rows, half = call.kv.shape[0], (call.kv.shape[0] + 1) // 2
        kv = call.kv[:, 0]
        past, past_starts = _packed(call, lambda index: (index < half) | (index >= rows))
        past = past.masked_fill((past < 0) | (past >= rows), -1)
        new, new_starts = _packed(call, lambda index: (index >= half) & (index < rows))
        chunk = kv[half:] if rows > half else kv[:1]
        given = (kv[:half], past, past_starts, chunk, new - half, new_starts, _sink(call), call.scale)
        return _result(self.call(call.q, *given))


@cache
def _says_cuda() -> Any:
    """The class of tensors of the CPU that pass for ones of a GPU."""
    from torch import Tensor

    return type("SaysCuda", (Tensor,), {"is_cuda": True})


def _module(kernel: str) -> str | None:
    """The release's module with this kernel: ``paged_decode`` or ``paged_prefill`` in one of PLACES."""
    name = kernel.removeprefix("sparse_attn_v4_")
    return release.first(tuple(f"{place}.{name}" for place in PLACES), kernel)


def _packed(call: PrefillCall, wanted: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Entries within their row's length that are ``wanted``, int32 behind each other, and where rows begin, int32
    ``(s_q + 1,)``."""
    import torch

    lists = call.indices[:, 0]
    kept = wanted(lists)
    if call.topk_length is not None:
        kept &= torch.arange(lists.shape[1], device=lists.device) < call.topk_length[:, None]
    starts = torch.zeros(len(lists) + 1, dtype=torch.int32, device=lists.device)
    starts[1:] = kept.sum(1).cumsum(0)
    found = lists[kept]
    # An empty tensor has no address that a kernel could be given.
    return (found if len(found) else lists.new_zeros(1)).contiguous(), starts


def _sink(call: PrefillCall) -> Tensor:
    import torch

    return (
        call.sink if call.sink is not None else call.q.new_full((call.q.shape[1],), float("-inf"), dtype=torch.float32)
    )


def _result(out: Tensor) -> PrefillResult:
    import torch

    nothing = out.new_zeros(out.shape[:2], dtype=torch.float32)
    return PrefillResult(out, None, nothing)
