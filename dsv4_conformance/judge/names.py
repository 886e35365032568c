"""The names of a dump: what each tensor is called, its dtypes and its shapes. docs/judge.md shows the same table."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dsv4_conformance.spec.kv_layout import PageLayout

Dim = str | int
Shape = tuple[Dim, ...]

_BF16 = (torch.bfloat16,)
_FP32 = (torch.float32,)
_INTS = (torch.int32, torch.int64)
_BYTES = (torch.uint8, torch.int8, torch.float8_e4m3fn)
_NUMBERS = (torch.float32, torch.float64)
_SCALAR: tuple[Shape, ...] = ((), (1,))


@dataclass(frozen=True)
class Entry:
    """One tensor of a dump. ``shapes``: accepted shapes, in which equal words stand for equal sizes across the dump."""

    name: str
    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[Shape, ...]
    required: bool = False


def _scope(name: str, required: bool) -> tuple[Entry, ...]:
    """The entries of one decode scope. Of pages and kv rows, exactly one is given (load.py)."""
    pages = f"{name} num_pages"
    kernel_view: Shape = (pages, f"{name} P", 1, PageLayout.TOKEN_BYTES)
    return (
        Entry(f"{name}_pages", _BYTES, ((pages, f"{name} page_bytes"), kernel_view)),
        Entry(f"{name}_page_size", _INTS, _SCALAR),
        Entry(f"{name}_page_ids", _INTS, ((pages,),)),
        Entry(f"{name}_kv", _BF16, ((f"{name} n", 512), (f"{name} n", 1, 512))),
        Entry(f"{name}_indices", _INTS, (("b", "s_q", f"{name} topk"),), required),
        Entry(f"{name}_topk_length", _INTS, (("b",),)),
    )


_COMMON = (
    Entry("sink", _FP32, (("h_q",),)),
    Entry("all_sinks", _FP32, (("n_heads",),)),
    Entry("scale", _NUMBERS, _SCALAR),
)

DECODE = (
    Entry("q", _BF16, (("b", "s_q", "h_q", 512),), required=True),
    *_scope("window", required=True),
    *_scope("extra", required=False),
    *_COMMON,
    Entry("out", _BF16, (("b", "s_q", "h_q", 512),), required=True),
    Entry("lse", _FP32, (("b", "h_q", "s_q"),)),
    Entry("row_numbers", _INTS, (("b",),)),
)
PREFILL = (
    Entry("q", _BF16, (("s_q", "h_q", 512),), required=True),
    Entry("kv", _BF16, (("s_kv", 512), ("s_kv", 1, 512)), required=True),
    Entry("indices", _INTS, (("s_q", "topk"), ("s_q", 1, "topk")), required=True),
    Entry("topk_length", _INTS, (("s_q",),)),
    *_COMMON,
    Entry("out", _BF16, (("s_q", "h_q", 512),), required=True),
    Entry("lse", _FP32, (("s_q", "h_q"),)),
    Entry("max_logits", _FP32, (("s_q", "h_q"),)),
    Entry("row_numbers", _INTS, (("s_q",),)),
)
ENTRIES = {"decode": DECODE, "prefill": PREFILL}

METADATA = {
    "kind": ("decode", "prefill"),
    "lse_base": ("e", "2"),
    "lonely_lse": ("+inf", "-inf"),
    "scale": None,
    "window_page_size": None,
    "extra_page_size": None,
}
"""String metadata that means something, with its values where there are few. Any other is shown as a note."""


def shape_text(shape: Shape) -> str:
    """A shape as messages and the documentation write it: ``(b, s_q, h_q, 512)``."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def dtype_text(dtype: torch.dtype) -> str:
    """``bfloat16`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")
