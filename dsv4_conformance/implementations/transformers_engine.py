"""The released DeepSeek-V4 modules of transformers, built from what a surface is opened with (spec §1.1, §2).

Every module is the installed class. Stood in for: the rotary tables, which the case gives (``TableRope``), since the
engine's own float32 angles differ from them by more than attention may err. Watched, not replaced: the query and keys
that its eager attention is given, the input of its grouped projection, the scores and picks of its indexer.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dsv4_conformance.errors import BadInput
from dsv4_conformance.spec.geometry import TINY, Geometry
from dsv4_conformance.spec.weights import CompressorSpec, CompressorWeights, IndexerSpec, IndexerWeights, LayerSpec

LAYER_TYPES = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
WATCHED = "dsv4_conformance_watched"
"""Name under which the engine's eager attention is registered once more, with its arguments noted down."""


class Engine(NamedTuple):
    """What is used of the installed package: the model's module, its config class, its cache and its masks."""

    model: Any
    config: Any
    cache: Any
    masks: Any


def load_engine() -> Engine:
    """Import the engine. Raises BadInput, in one sentence, if the installed release lacks what is driven."""
    try:
        model = import_module("transformers.models.deepseek_v4.modeling_deepseek_v4")
        masks = import_module("transformers.masking_utils")
        attention = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
        eager: Any = model.eager_attention_forward
        found = Engine(model, model.DeepseekV4Config, import_module("transformers.cache_utils").DynamicCache, masks)
        for name in ("Attention", "Indexer", "HCACompressor", "CSACompressor"):
            getattr(model, f"DeepseekV4{name}")

        def watched(module: nn.Module, query: Tensor, key: Tensor, *rest: Any, **named: Any) -> Any:
            module.watched = (query, key)  # type: ignore[assignment]
            return eager(module, query, key, *rest, **named)

        attention.register(WATCHED, watched)
        masks.ALL_MASK_ATTENTION_FUNCTIONS.register(WATCHED, masks.eager_mask)
    except (ImportError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(
            f"implementation 'transformers' does not fit the installed transformers ({reason}); install a release "
            "that docs/engines.md names, with `pip install 'dsv4-conformance[transformers]'`."
        ) from None
    return found


class TableRope(nn.Module):
    """Stands in for the engine's rotary embedding: same call, cos and sin from tables float32 ``(max_pos, 64)``.

    Positions beyond the table get its last row. Only entries that no row can see ask for them: those of padding.
    """

    def __init__(self, tables: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.tables = tables

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str) -> tuple[Tensor, Tensor]:
        """cos and sin ``(B, S, 32)`` in the dtype of ``x``, as the engine's module gives them."""
        table = self.tables[layer_type]
        rows = table[position_ids.clamp(max=len(table) - 1)].to(x.dtype)
        return rows[..., ::2], rows[..., 1::2]


def config_of(engine: Engine, geometry: Geometry, ratio: int, **changes: Any) -> Any:
    """The engine's config of a model with one layer of this ratio; ``changes`` override fields."""
    scaling = geometry.rope_scaling
    fields: dict[str, Any] = {
        "num_hidden_layers": 1,
        "layer_types": [LAYER_TYPES[ratio]],
        "mlp_layer_types": ["moe"],
        "partial_rotary_factor": geometry.qk_rope_head_dim / geometry.head_dim,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.original_max_position_embeddings,
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
        },
    }
    names = (
        *("hidden_size", "num_attention_heads", "head_dim", "q_lora_rank", "o_groups", "o_lora_rank"),
        *("sliding_window", "index_n_heads", "index_head_dim", "index_topk", "max_position_embeddings"),
        *("rope_theta", "compress_rope_theta", "rms_norm_eps"),
    )
    config = engine.config(**(fields | {name: getattr(geometry, name) for name in names} | changes))
    config._attn_implementation = WATCHED
    return config


def compressor_state(weights: CompressorWeights, prefix: str = "") -> dict[str, Tensor]:
    """A compressor's weights under the engine's names."""
    named = {"kv_proj.weight": weights.wkv, "gate_proj.weight": weights.wgate}
    named |= {"position_bias": weights.ape, "kv_norm.weight": weights.norm}
    return {prefix + name: tensor for name, tensor in named.items()}


def indexer_state(weights: IndexerWeights, prefix: str = "") -> dict[str, Tensor]:
    """An indexer's weights under the engine's names."""
    own = {f"{prefix}q_b_proj.weight": weights.wq_b, f"{prefix}scorer.weights_proj.weight": weights.weights_proj}
    return own | compressor_state(weights.compressor, prefix)


def layer_state(spec: LayerSpec) -> dict[str, Tensor]:
    """A layer's weights under the engine's names."""
    w = spec.weights
    state = {
        "q_a_proj.weight": w.wq_a,
        "q_a_norm.weight": w.q_norm,
        "q_b_proj.weight": w.wq_b,
        "kv_proj.weight": w.wkv,
        "kv_norm.weight": w.kv_norm,
        "o_a_proj.weight": w.wo_a,
        "o_b_proj.weight": w.wo_b,
        "sinks": w.attn_sink,
    }
    if w.compressor is not None:
        state |= compressor_state(w.compressor, "compressor.")
    if w.indexer is not None:
        state |= indexer_state(w.indexer, "compressor.indexer.")
    return state


def ready(module: nn.Module, state: Mapping[str, Tensor], rope: TableRope, dtype: torch.dtype) -> nn.Module:
    """The module with these weights, all of them and no others, in ``dtype``, turning by the given tables."""
    for part in list(module.modules()):
        if hasattr(part, "rotary_emb"):
            part.rotary_emb = rope
    some = next(iter(state.values()))
    module.to(some.device, dtype).load_state_dict(dict(state))
    return module.eval().requires_grad_(False)


class Compressor:
    """The engine's compressor of a ratio and dim; at ratio 4 and dim 128 the one inside its indexer."""

    def __init__(self, engine: Engine, spec: CompressorSpec, dtype: torch.dtype) -> None:
        hidden = spec.weights.wkv.shape[1]
        geometry = TINY
        changes = {"hidden_size": hidden, "rms_norm_eps": spec.eps, "index_n_heads": 1}
        inside = spec.ratio == 4 and spec.dim == geometry.index_head_dim
        if not inside:
            changes |= {"head_dim": spec.dim, "partial_rotary_factor": geometry.qk_rope_head_dim / spec.dim}
        self.config, self.dtype = config_of(engine, geometry, spec.ratio, **changes), dtype
        self.name = "indexer" if inside else "compressor"
        made = {"indexer": "Indexer", "compressor": "HCACompressor" if spec.ratio == 128 else "CSACompressor"}
        module = getattr(engine.model, f"DeepseekV4{made[self.name]}")(self.config)
        # Whoever selects entries has no part in making them: no query, no weight.
        state = {name: torch.zeros_like(value) for name, value in module.state_dict().items()}
        device = spec.weights.wkv.device
        state = {name: value.to(device) for name, value in state.items()} | compressor_state(spec.weights)
        self.module = ready(module, state, TableRope({"compress": spec.table}), dtype)
        self._no_query = torch.zeros(1, 1, self.config.q_lora_rank, device=device, dtype=dtype)

    def push(self, x: Tensor, start: int, cache: Any) -> Tensor:
        """Entries ``(m, dim)`` that tokens ``x (n, hidden)`` from position ``start`` on complete."""
        stored = cache.layers[0].compressed_kv
        before = 0 if stored[self.name] is None else stored[self.name].shape[1]
        positions = torch.arange(start, start + len(x), device=x.device)[None]
        self.module(x[None].to(self.dtype), self._no_query.expand(1, len(x), -1), positions, cache, 0)
        entries: Tensor = stored[self.name][0, before:]
        return entries


class Indexer:
    """The engine's indexer."""

    def __init__(self, engine: Engine, spec: IndexerSpec, dtype: torch.dtype) -> None:
        self.config, self.dtype = config_of(engine, spec.geometry, 4), dtype
        module = engine.model.DeepseekV4Indexer(self.config)
        self.module = ready(module, indexer_state(spec.weights), TableRope({"compress": spec.table}), dtype)
        self.topk = spec.geometry.index_topk
        self._scores: list[Tensor] = []
        module.scorer.register_forward_hook(lambda _module, _given, scores: self._scores.append(scores))

    def push(self, x: Tensor, qr: Tensor, start: int, cache: Any) -> tuple[Tensor, Tensor]:
        """Picks int32 ``(n, index_topk)``, -1 = none, and scores ``(n, entries)``."""
        positions = torch.arange(start, start + len(x), device=x.device)[None]
        self._scores.clear()
        picks = self.module(x[None].to(self.dtype), qr[None].to(self.dtype), positions, cache, 0)
        return widened(picks[0], self.topk), self._scores[-1][0]


def widened(picks: Tensor, topk: int) -> Tensor:
    """Picks ``(n, k <= topk)`` as int32 ``(n, topk)``, -1 behind: the engine's rows end with the entries."""
    return nn.functional.pad(picks, (0, topk - picks.shape[-1]), value=-1).to(torch.int32)


def select_topk(engine: Engine, scores: Tensor, lengths: Tensor, topk: int) -> Tensor:
    """Picks int32 ``(T, topk)`` of the engine's indexer where its scorer gives ``scores (T, N)``.

    Each row is one decoding sequence of a batch, whose cache holds N entries and whose position sees ``lengths`` of
    them. Stood in for: the scorer.
    """
    config = config_of(engine, TINY, 4, index_topk=topk, hidden_size=8, index_n_heads=1)
    indexer = engine.model.DeepseekV4Indexer(config).to(scores.device).requires_grad_(False)
    indexer.scorer = _Given(scores[:, None])
    cache = engine.cache(config=config)
    rows, entries = scores.shape
    cache.layers[0].compressed_kv["indexer"] = scores.new_zeros(1).expand(rows, entries, config.index_head_dim)
    cache.layers[0].entry_count["indexer"] = entries
    nothing = scores.new_zeros(rows, 1, config.hidden_size), scores.new_zeros(rows, 1, config.q_lora_rank)
    positions = (4 * lengths.long() - 1).clamp(min=0)[:, None]
    picks: Tensor = indexer(*nothing, positions, cache, 0)
    return widened(picks[:, 0], topk)


class _Given(nn.Module):
    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, *_given: Tensor) -> Tensor:
        return self.scores
