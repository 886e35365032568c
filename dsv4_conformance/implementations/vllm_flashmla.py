"""Adapter of the FlashMLA build inside the ``vllm`` wheel, without vLLM's Python (spec §10, §11).

The operators are those that vLLM's DeepSeek-V4 layer calls through its wrapper. The one library they live in is found
in an installed ``vllm``, or where ``DSV4_VLLM_FLASHMLA`` says: of a wheel of 336 MB it is 3.9 MB.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.api import (
    AttentionConvention,
    Convention,
    DecodeCall,
    DecodeResult,
    Identity,
    Implementation,
    PrefillCall,
    PrefillResult,
)

if TYPE_CHECKING:
    from torch import Tensor

DISTRIBUTION = "vllm"
LIBRARY = "vllm/_flashmla_C.abi3.so"
VARIABLE = "DSV4_VLLM_FLASHMLA"
REMEDY = (
    f"install vllm 0.33.0, or unzip {LIBRARY} from its wheel (`pip download --no-deps vllm==0.33.0`) and set "
    f"{VARIABLE} to that file"
)
OPERATORS: Mapping[str, tuple[str, ...]] = {
    "sparse_decode_fwd": (
        *("q", "kv", "indices", "topk_length", "attn_sink", "tile_scheduler_metadata", "num_splits"),
        *("extra_kv", "extra_indices", "extra_topk_length", "d_v", "sm_scale", "out_", "enable_batch_invariant"),
    ),
    "sparse_prefill_fwd": ("q", "kv", "indices", "sm_scale", "d_v", "attn_sink", "topk_length", "out_"),
}
"""Operators that the adapter calls, with the arguments it gives them."""

HEAD_DIM = 512
DECODE_LISTS, PREFILL_LISTS = 64, 128
"""What list widths must be multiples of."""
DECODE_HEADS = (64, 128)
PREFILL_HEADS = {9: (8, 16, 32, 64, 128), 10: (64, 128)}
"""Head counts of the prefill kernels, by the major compute capability."""


def _library() -> Path | None:
    """The library's file, which need not exist; None if nothing names one."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    try:
        return Path(str(metadata.distribution(DISTRIBUTION).locate_file(LIBRARY)))
    except metadata.PackageNotFoundError:
        return None


def _version() -> str:
    """The installed vllm's version, or what tells one library file from another."""
    found = _library()
    if found is None:
        return "not installed"
    if not os.environ.get(VARIABLE):
        return metadata.version(DISTRIBUTION)
    try:
        return f"sha256:{hashlib.sha256(found.read_bytes()).hexdigest()[:12]}"
    except OSError:
        return "not readable"


class VllmFlashMLA(Implementation):
    """vLLM's build of FlashMLA's sparse decode and sparse prefill on SM90 and SM100.

    The decode operator plans for itself when it is given no plan, as in the first call of a step of vLLM's.
    """

    identity: ClassVar[Identity] = Identity(
        name="vllm_flashmla",
        version=_version(),
        homepage="https://github.com/vllm-project/FlashMLA",
        kind="kernel",
        notes=(
            "driven: sparse_decode_fwd and sparse_prefill_fwd of vllm/_flashmla_C.abi3.so, the 584-byte V4 cache",
            "other head counts are padded as vLLM's layer pads them (zero query, sink -inf) and sliced: decode to 64 "
            "or 128, prefill also to 8, 16 or 32 on SM90",
            "allocates its own outputs, so red zones around outputs are not checked",
        ),
    )
    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    compute_capabilities: ClassVar[tuple[tuple[int, int], ...]] = ((9, 0), (10, 0), (10, 3))
    surfaces: ClassVar[Mapping[str, Convention]] = {
        "SparseDecode": AttentionConvention(topk_multiple=DECODE_LISTS),
        "SparsePrefill": AttentionConvention(topk_multiple=PREFILL_LISTS),
    }

    @classmethod
    def check_available(cls) -> None:
        """Raise BadInput if there is no library file."""
        found = _library()
        if found is None:
            raise BadInput(f"implementation 'vllm_flashmla' needs {LIBRARY}, and no vllm is installed; {REMEDY}.")
        if not found.is_file():
            where = f"{VARIABLE} names" if os.environ.get(VARIABLE) else f"vllm {_version()} should have"
            raise BadInput(f"implementation 'vllm_flashmla': {where} {found}, which is no file; {REMEDY}.")

    def __init__(self, device: str) -> None:
        super().__init__(device)
        import torch

        try:
            torch.ops.load_library(str(_library()))  # type: ignore[no-untyped-call]
        except (OSError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise BadInput(f"implementation 'vllm_flashmla' cannot load {_library()} ({reason}); {REMEDY}.") from None
        self._ops: Any = torch.ops._flashmla_C
        for name, arguments in OPERATORS.items():
            operator = getattr(self._ops, name, None)
            found = operator and tuple(argument.name for argument in operator.default._schema.arguments)
            if found != arguments:
                takes = f"takes {', '.join(found)}" if found else "does not exist"
                raise BadInput(
                    f"implementation 'vllm_flashmla' gives {name} {', '.join(arguments)}; in {_library()} it {takes}; "
                    f"{REMEDY}."
                )
        major = torch.cuda.get_device_capability()[0] if device == "cuda" else 9
        self._prefill_heads = PREFILL_HEADS.get(major, DECODE_HEADS)

    def decode(self, call: DecodeCall) -> DecodeResult:
        """SparseDecode: spec §10, under a plan of its own."""
        heads, extra = call.q.shape[2], call.extra
        for scope in (call.window, extra):
            if scope is not None:
                _check_width(scope.indices, DECODE_LISTS)
        out, lse, _, _ = self._ops.sparse_decode_fwd(
            _pad_heads(call.q, DECODE_HEADS),
            call.window.pages,
            call.window.indices,
            call.window.topk_length,
            _pad_sink(call.sink, heads, DECODE_HEADS),
            None,
            None,
            extra and extra.pages,
            extra and extra.indices,
            extra and extra.topk_length,
            HEAD_DIM,
            call.scale,
            None,
            False,
        )
        return DecodeResult(out[:, :, :heads], lse[:, :heads])

    def prefill(self, call: PrefillCall) -> PrefillResult:
        """SparsePrefill: spec §11."""
        heads = call.q.shape[1]
        _check_width(call.indices, PREFILL_LISTS)
        out, max_logits, lse = self._ops.sparse_prefill_fwd(
            _pad_heads(call.q, self._prefill_heads),
            call.kv,
            call.indices,
            call.scale,
            HEAD_DIM,
            _pad_sink(call.sink, heads, self._prefill_heads),
            call.topk_length,
            None,
        )
        return PrefillResult(out[:, :heads], max_logits[:, :heads], lse[:, :heads])


def _width(heads: int, counts: tuple[int, ...]) -> int:
    return next((count for count in counts if heads <= count), heads)


def _pad_heads(q: Tensor, counts: tuple[int, ...]) -> Tensor:
    """q ``(..., h_q, 512)`` with zero heads appended up to one of ``counts``; q itself if it has one."""
    heads = q.shape[-2]
    padded = _width(heads, counts)
    if padded == heads:
        return q
    wide = q.new_zeros(*q.shape[:-2], padded, q.shape[-1])
    wide[..., :heads, :] = q
    return wide


def _pad_sink(sink: Tensor | None, heads: int, counts: tuple[int, ...]) -> Tensor | None:
    """Sink fp32 ``(heads,)`` with -inf appended as _pad_heads appends heads; None stays None. Raises BadInput for
    another number of sinks, which padding would hide from the kernel."""
    if sink is not None and tuple(sink.shape) != (heads,):
        raise BadInput(f"sinks are {tuple(sink.shape)} and the queries have {heads} heads; pass one for each.")
    if sink is None or _width(heads, counts) == heads:
        return sink
    wide = sink.new_full((_width(heads, counts),), float("-inf"))
    wide[:heads] = sink
    return wide


def _check_width(indices: Tensor, multiple: int) -> None:
    """Raise BadInput for lists that the kernels are not built for: what they assert ends the process."""
    if indices.shape[-1] % multiple:
        raise BadInput(f"lists are {indices.shape[-1]} wide; pad them with -1 to a multiple of {multiple}.")
