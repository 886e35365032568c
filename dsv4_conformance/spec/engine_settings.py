"""Names under which an engine tells its effective settings (surface EngineConfig), and the switch of sparse prefill.

Sizes are bytes on one rank, of the whole model unless a name says otherwise. A pool is "window" (every layer), "c4",
"c128" (compressed entries of layers with that ratio) or "index" (index keys of C4 layers). Source: spec §17.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SPARSE_PREFILL_SWITCH = "DSV4_SPARSE_PREFILL"
"""Environment variable; an adapter translates it to its engine's own switch. Unset means on."""

ON_WORDS = ("true", "1", "yes", "y")
OFF_WORDS = ("false", "0", "no", "n")
"""Words a switch takes, in any case; anything else is bad input."""

POOLS = ("window", "c4", "c128", "index")

REQUIRED: Mapping[str, str] = MappingProxyType(
    {
        "attention_tp": "ranks that share out the heads of one request: tp / dp / cp",
        "local_heads": "query heads of one rank",
        "padded_heads": "query heads the kernel is called with",
        "sparse_prefill": "whether extends run on the sparse prefill path",
        "page_size": "tokens per page of the cache: 256",
        "index_topk": "compressed entries a query of a C4 layer selects at most",
        "compress_ratios": "ratio of every layer, draft layers last; 0 = uncompressed",
        "rope_bases": "rope base of every layer",
        "yarn": "per layer, whether YaRN scales its rope",
    }
)
"""What every engine can tell: a missing one breaks the surface."""

OPTIONAL: Mapping[str, str] = MappingProxyType(
    {
        "sparse_prefill_reason": "one line: why it is on or off",
        "decode_kernel": "kernel that decodes",
        "prefill_kernel": "kernel that extends",
        "max_paged_rows": "query rows of one paged call at most (longer batches are cut or run sparse), or None",
        "prefill_topk_multiple": "widths of sparse prefill's index lists are a multiple of this",
        "yarn_parameters": "factor, original_max_position_embeddings, beta_fast, beta_slow of the scaled layers",
        "softmax_scale": "factor on dot products",
        "sliding_window": "window positions a query sees, itself included",
        "draft_layers": "draft (MTP) layers with a cache of their own",
        "context": "tokens a request may reach",
        "pool_page_sizes": "per pool, entries of one page",
        "page_bytes": "per pool, bytes of one page of one layer",
        "layer_bytes_per_token": "per pool, bytes of one layer per token of context",
        "cache_bytes_per_request": "per pool, bytes of one request at full context, whole pages; window: after prefill",
        "window_bytes_in_prefill": "window pages of one request while a chunk of it is in flight",
        "state_bytes_per_request": "compressor state of one request",
        "prefill_chunk": "tokens of one prefill step",
        "workspace_bytes": "sparse prefill workspace of the largest step: every request at full context; 0 = not used",
        "padding_bytes_per_row": "bytes that padded heads add to query and output, per query row",
        "index_score_bytes_per_row": "index scores of one query row at full context, one C4 layer",
    }
)
"""What an engine may tell as well; a requirement about one that is not told does not apply."""
