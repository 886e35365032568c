"""From a golden's case to its inputs as bytes: what an implementation is called with, views made contiguous.

Attention inputs have the names of a dump that ``dsv4-conformance judge`` reads.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase, Case, FormatCase, HeadCase
from dsv4_conformance.cases.format_inputs import page_tables, placement, rows
from dsv4_conformance.cases.generator import below
from dsv4_conformance.errors import HarnessError
from dsv4_conformance.golden.stored import Stored, Tensors
from dsv4_conformance.implementations.api import DecodeCall, KVScope
from dsv4_conformance.spec.kv_layout import INDEX_KEY_FP8, WINDOW_PAGE

CPU = torch.device("cpu")
REQUESTS = 3
RATIOS = (4, 128)

_NAMES = {
    torch.uint8: "U8",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.float64: "F64",
}


def stored(tensor: Tensor) -> Stored:
    """A torch tensor's logical content."""
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return Stored(_NAMES[tensor.dtype], tuple(tensor.shape), raw.numpy().tobytes())


def inputs_of(cases: Sequence[Case]) -> Tensors:
    """The inputs of a golden: of its one case, or of the table of head layouts. docs/golden.md lists the names."""
    first = cases[0]
    if isinstance(first, AttentionCase):
        return _attention(first)
    if isinstance(first, FormatCase):
        return {"KVPageFormat": _kv_pages, "IndexKeyFormat": _index_keys, "SlotMapping": _slots}[first.surface](first)
    if isinstance(first, HeadCase):
        heads = [case for case in cases if isinstance(case, HeadCase)]
        names = ("n_heads", "tp", "rank")
        return {name: Stored.of("I64", (len(heads),), [getattr(case, name) for case in heads]) for name in names}
    raise HarnessError(f"There is no golden for a {type(first).__name__}.")


def page_bytes(pages: Tensor) -> Tensor:
    """Every byte of a kernel view ``(num_pages, P, 1, 584)``, page tails too: uint8 ``(num_pages, page_bytes)``."""
    return pages.as_strided((pages.shape[0], pages.stride(0)), (pages.stride(0), 1), pages.storage_offset())


def _attention(case: AttentionCase) -> Tensors:
    call = build(case, CPU)
    tensors = {"q": call.q, "sink": call.sink, "scale": torch.tensor(call.scale, dtype=torch.float64)}
    if isinstance(call, DecodeCall):
        tensors |= _scope("window", call.window) | ({} if call.extra is None else _scope("extra", call.extra))
    else:
        tensors |= {"kv": call.kv, "indices": call.indices, "topk_length": call.topk_length}
    return {name: stored(tensor) for name, tensor in tensors.items() if tensor is not None}


def _scope(name: str, scope: KVScope) -> dict[str, Tensor | None]:
    size = torch.tensor(scope.page_size)
    parts = {"pages": page_bytes(scope.pages), "indices": scope.indices, "topk_length": scope.topk_length}
    return {f"{name}_{part}": tensor for part, tensor in parts.items()} | {f"{name}_page_size": size}


def _kv_pages(case: FormatCase) -> Tensors:
    place = placement(case, CPU)
    slots = place.slots.clone()
    slots[0] = -1  # skips its token
    return {
        "tokens": stored(rows(case, 512, CPU)),
        "slots": stored(slots),
        "unpack_slots": stored(place.slots[1:]),
        "pages": stored(page_bytes(place.pages)),
        "page_size": stored(torch.tensor(case.page_size)),
    }


def _index_keys(case: FormatCase) -> Tensors:
    size = INDEX_KEY_FP8.page_size
    pages = torch.full((-(-case.tokens // size) + 2, INDEX_KEY_FP8.page_bytes), 0xFF, dtype=torch.uint8)
    places = below(case.digest(), "index", ((pages.shape[0] - 1) * size,), 2**31, CPU)
    return {
        "keys": stored(rows(case, INDEX_KEY_FP8.DIM, CPU).to(torch.float32)),
        "slots": stored(torch.argsort(places, stable=True)[: case.tokens] + size),
        "pages": stored(pages),
    }


def _slots(case: FormatCase) -> Tensors:
    tables = page_tables(case, REQUESTS, CPU)
    tensors = {"page_table": stored(tables)}
    for ratio in RATIOS:
        count = tables.shape[1] * WINDOW_PAGE // ratio
        entries = torch.arange(count).expand(REQUESTS, count).clone()
        entries[:, 5::7] = -1
        tensors[f"entries_{ratio}"] = stored(entries)
    return tensors
