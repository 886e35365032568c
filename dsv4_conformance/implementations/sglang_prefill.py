"""The engine's workspace and chunk cache of sparse prefill, opened as sessions (spec §13).

``SparsePrefillChunkCache`` is built as the backend builds it, from tensors of the batch alone; its Triton kernels run
as they are. Watched: the bases with which it combines the rows of ratio 128, which some releases do not keep.
"""

from __future__ import annotations

import inspect
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from dsv4_conformance.implementations import sglang_engine as engine
from dsv4_conformance.implementations import sglang_release as release
from dsv4_conformance.implementations.state_api import ExtendBatch

WINDOW = 128
PAGE = 256
WORKSPACES = ("SparsePrefillKVBuffer", "SparsePrefillWorkspace")
"""Newest name first; releases up to 0.5.14 allocate per chunk instead."""


def open_workspace(device: str) -> Any:
    """The engine's own grow-only buffer: it has the session's one method."""
    return engine.attribute(release.CHUNKS, *WORKSPACES)(torch.device(device))


class ChunkCacheSession:
    """The engine's chunk cache of one batch."""

    def __init__(self, batch: ExtendBatch, device: str) -> None:
        self.module = engine.module(release.CHUNKS)
        self.requests = len(batch.seq_lens)
        self.bases: dict[int, tuple[Tensor, Tensor]] = {}
        build = engine.attribute(release.CHUNKS, "SparsePrefillChunkCache").build
        given = _arguments(batch, device)
        wanted = inspect.signature(build).parameters
        missing = [name for name, p in wanted.items() if p.default is p.empty and name not in given]
        if missing:
            raise engine.misfit(f"SparsePrefillChunkCache.build asks for {missing[0]}")
        self.cache = build(**{name: value for name, value in given.items() if name in wanted})

    def ensure_c4(self, page_table: Tensor, page_size: int = 64) -> None:
        """Spec §13.2."""
        if hasattr(self.cache, "ensure_compressed"):
            self.cache.ensure_compressed(4, page_table, page_size)
        else:
            self.cache.ensure_c4(page_table, page_size)

    def ensure_c128(self, page_indices: Tensor) -> None:
        """Spec §13.2; notes the bases of a gather that is built."""
        combine = self.module.combine_topk_swa_indices

        def watched(**given: Any) -> Any:
            self.bases[128] = (given["compressed_base"], given["swa_base"])
            return combine(**given)

        with mock.patch.object(self.module, "combine_topk_swa_indices", watched):
            self.cache.ensure_c128(page_indices)

    def token_ids(self, ratio: int) -> Tensor:
        """Spec §13.2."""
        return self._held(ratio, "flat_token_ids")

    def window_token_ids(self) -> Tensor:
        """Spec §13.2."""
        ids: Tensor = self.cache.swa_token_ids
        return ids

    def compressed_base(self, ratio: int) -> Tensor:
        """Spec §13.2."""
        return self.bases[128][0] if ratio == 128 else self._held(ratio, "compressed_base")

    def window_base(self, ratio: int) -> Tensor:
        """Spec §13.2. In a layer of ratio 0 window rows begin where their offsets say."""
        if ratio == 0:
            offsets: Tensor = self.cache.swa_offsets[: self.requests]
            return offsets
        return self.bases[128][1] if ratio == 128 else self._held(ratio, "swa_base")

    def combined(self, ratio: int, raw: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Spec §13.3."""
        if ratio == 0:
            return self.cache.c0_combined_indices, self.cache.c0_combined_lens
        if ratio == 128:
            return self._held(128, "combined_indices"), self._held(128, "combined_lens")
        assert raw is not None
        done: tuple[Tensor, Tensor]
        if hasattr(self.cache, "combine_compressed"):
            done = self.cache.combine_compressed(4, raw)
        else:
            done = self.cache.combine_c4_layer(raw)
        return done

    def _held(self, ratio: int, name: str) -> Tensor:
        """A field of one ratio's gather: kept by ratio, or in fields with the ratio in their names."""
        gathers = getattr(self.cache, "compressed", None)
        held: Tensor = getattr(self.cache, f"c{ratio}_{name}") if gathers is None else getattr(gathers[ratio], name)
        return held


def _arguments(batch: ExtendBatch, device: str) -> dict[str, Any]:
    """What the backend gives to ``build``, under every name that a release has for it.

    Token ``p`` of request ``r`` has the full-pool slot ``r * width + p``, and the map from there has the window slots.
    """
    lens, new = batch.seq_lens, batch.extend_lens
    width = batch.window_slots.shape[1]
    positions = [p for s, e in zip(lens, new, strict=True) for p in range(s - e, s)]
    positions += [0] * (batch.query_rows - len(positions))

    def int32(values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return {
        "seq_lens": int32(lens),
        "extend_seq_lens": int32(new),
        "query_lens": int32(new),
        "query_pos": int32(positions),
        "req_pool_indices": int32(range(len(lens))),
        "req_to_token": torch.arange(len(lens) * width, dtype=torch.int32, device=device).view(len(lens), width),
        "full_to_swa": batch.window_slots.reshape(-1).to(torch.int64),
        "swa_window_size": WINDOW,
        "swa_page_size": PAGE,
        "num_qo_tokens": batch.query_rows,
        "max_seq_len": max(lens),
        "seq_lens_cpu": list(lens),
        "total_swa": sum(min(s, e + WINDOW - 1) for s, e in zip(lens, new, strict=True)),
    }
