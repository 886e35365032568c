"""The released DeepseekV4Attention of transformers on one batch, with what it computes on the way (spec §2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.implementations.transformers_engine import (
    Engine,
    TableRope,
    config_of,
    layer_state,
    ready,
    widened,
)
from dsv4_conformance.spec.weights import LayerSpec


@dataclass(frozen=True)
class Batch:
    """What one call returned for ``B`` rows of ``S`` columns: o and q ``(B, S, H, 512)``, out ``(B, S, hidden)``,
    selected int32 ``(B, S, index_topk)`` at ratio 4, and keys ``(B, K, 512)`` as attended: window keys, then entries.
    """

    o: Tensor
    out: Tensor
    q: Tensor
    selected: Tensor | None
    keys: Tensor


class Layer:
    """DeepseekV4Attention with the weights and tables of ``spec``, computing in ``dtype``."""

    def __init__(self, engine: Engine, spec: LayerSpec, dtype: torch.dtype) -> None:
        self.engine, self.spec, self.dtype = engine, spec, dtype
        self.config = config_of(engine, spec.geometry, spec.ratio)
        self.rope = TableRope({"main": spec.rope.plain, "compress": spec.rope.compressed})
        module: Any = engine.model.DeepseekV4Attention(self.config, 0)
        self.module: Any = ready(module, layer_state(spec), self.rope, dtype)
        self._seen: dict[str, Tensor] = {}
        module.o_a_proj.register_forward_pre_hook(lambda _module, given: self._seen.update(o=given[0]))
        if spec.ratio == 4:
            module.compressor.indexer.register_forward_hook(
                lambda _module, _given, picks: self._seen.update(selected=picks)
            )

    def new_cache(self) -> Any:
        """A cache of this layer's type, as the engine makes it for a model."""
        return self.engine.cache(config=self.config)

    def run(self, x: Tensor, positions: Tensor, mask: Tensor | None, cache: Any | None) -> Batch:
        """One call, prepared as the engine's model does: x ``(B, S, hidden)``, positions int64 ``(B, S)``, ``mask``
        ``(B, tokens so far)`` with 0 for padding, or None."""
        x = x.to(self.dtype)
        causal = self.engine.masks.create_sliding_window_causal_mask(self.config, x, mask, cache, positions)
        turned = {kind: self.rope(x, positions, kind) for kind in ("main", "compress")}
        out, _ = self.module(x, turned, positions, causal, cache)
        q, keys = self.module.watched
        picks = self._seen.get("selected")
        return Batch(
            o=self._seen["o"].reshape(*x.shape[:2], self.config.num_attention_heads, -1),
            out=out,
            q=q.transpose(1, 2),
            selected=None if picks is None else widened(picks, self.config.index_topk),
            keys=keys[:, 0],
        )
