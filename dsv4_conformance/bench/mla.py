"""What the built-in layer adds to the bare kernels, and what its choices cost: ratios, measured side by side.

The layers have the heads, window, index_topk and page sizes of DeepSeek-V4-Flash and a small hidden size: the core of
attention does not depend on it. Pools hold random rows, selections are random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.cases.layer_inputs import layer_weights, rope_tables
from dsv4_conformance.mla.backend import FlashKernels, Kernels
from dsv4_conformance.mla.cuda_graph import Piece
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.metadata import DSV4Metadata
from dsv4_conformance.mla.step import Run
from dsv4_conformance.mla.topk import paged
from dsv4_conformance.runner.timing import milliseconds
from dsv4_conformance.spec.geometry import FLASH
from dsv4_conformance.spec.weights import LayerSpec

CORE = replace(FLASH, name="flash, small hidden", hidden_size=256, q_lora_rank=64, o_lora_rank=32)
LIVE = 4096
"""Tokens that each sequence of a decode measurement holds: 512 of 1,024 C4 entries are selected."""
CHUNK = 8192
"""Query rows of one prefill chunk."""


@dataclass(frozen=True)
class Sizes:
    """What is measured on a device: decode batch sizes, prefill lengths, rounds per figure and calls per round."""

    batches: tuple[int, ...]
    prefills: tuple[int, ...]
    rounds: int
    calls: int
    live: int = LIVE
    chunk: int = CHUNK


SIZES = {
    "cuda": Sizes((1, 8, 64, 128, 256), (1024, 8192, 16384, 131072), 30, 20),
    "cpu": Sizes((1, 4), (300,), 3, 1, 300, 128),
}


@dataclass(frozen=True)
class Ratio:
    """Median milliseconds of two ways, run alternately, and the quartiles of the ratio of their rounds."""

    ours: float
    other: float
    low: float
    high: float

    @property
    def ratio(self) -> float:
        """ours / other."""
        return self.ours / self.other


def compare(
    ours: Callable[[], Any], other: Callable[[], Any], device: torch.device, sizes: Sizes, calls: int = 0
) -> Ratio:
    """Time both ways in alternate rounds, after one round of each that does not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for place in range(sizes.rounds + 1):
        for kept, run in zip(times, (ours, other), strict=True):
            took = milliseconds(run, device, calls or sizes.calls)
            if place:
                kept.append(took)
    ratios = [a / b for a, b in zip(*times, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return Ratio(median(times[0]), median(times[1]), low, high)


def core_layer(
    device: torch.device, ratio: int, tp: int, sequences: int, tokens: int, kernels: Kernels | None = None
) -> AttentionLayer:
    """A bfloat16 layer on fp8 pages with room for ``sequences`` of ``tokens``, every stored row random."""
    spec = LayerSpec(
        geometry=CORE,
        ratio=ratio,
        weights=layer_weights(7, CORE, ratio, "finite", device),
        rope=rope_tables(CORE, -(-tokens // 256) * 256, device),
        precision="bfloat16",
        tp=tp,
        max_sequences=sequences,
        max_tokens=tokens,
    )
    layer = AttentionLayer(spec, device, kernels)
    for pool in (layer.caches.window, layer.caches.compressed):
        if pool is None:
            continue
        slots = torch.arange(pool.page_size, pool.num_pages * pool.page_size, device=device)
        for part in torch.split(slots, 1 << 18):
            pool.store(torch.randn(len(part), 512, device=device), part)
    return layer


def at_decode(layer: AttentionLayer, rows: int, length: int) -> DSV4Metadata:
    """Metadata of one decode step of ``rows`` sequences of ``length`` tokens, with random selections."""
    runs = []
    for number in range(rows):
        layer.sequences.grow(number, length)
        runs.append(Run(number, layer.sequences[number].state_row, length - 1, 1))
    return select(layer, layer.metadata(runs, 0))


def select(layer: AttentionLayer, meta: DSV4Metadata) -> DSV4Metadata:
    """Fill in random selections of a C4 layer: every entry while they fit, else index_topk drawn ones."""
    if layer.spec.ratio != 4:
        return meta
    seen, topk = meta.c4_topk_lengths_raw.long()[:, None], meta.index_topk
    place = torch.arange(topk, device=layer.device)
    drawn = (torch.rand(len(seen), topk, device=layer.device) * seen).long()
    raw = torch.where(seen > topk, drawn, torch.where(place < seen, place, -1)).to(torch.int32)
    meta.c4_sparse_raw_indices.copy_(raw)
    meta.c4_sparse_page_indices.copy_(paged(raw, meta.page_table))
    return meta


def queries(layer: AttentionLayer, rows: int) -> Tensor:
    """Random padded queries bf16 ``(rows, padded, 512)``."""
    return torch.randn(rows, layer.padded, 512, device=layer.device, dtype=torch.bfloat16)


def core(layer: AttentionLayer, q: Tensor, meta: DSV4Metadata) -> Piece:
    """The attention of a decode step, captured: planning, split kernel and combination, with the local sink."""
    layer.sink()
    return Piece(lambda: (layer.attention.attend(q, meta, "paged", ()),), layer.device)


def bare(layer: AttentionLayer, q: Tensor, meta: DSV4Metadata) -> Piece:
    """The kernels' own call on the same tensors, captured; on a CPU the torch kernel."""
    window, sink, scale = layer.caches.window, layer.sink(), CORE.softmax_scale
    extra = layer.caches.compressed
    kernels = layer.kernels
    if not isinstance(kernels, FlashKernels):
        from dsv4_conformance.mla.backend import Listed

        assert extra is not None
        lists = Listed(window, meta.swa_page_indices, meta.swa_topk_lengths)
        more = Listed(extra, meta.c4_sparse_page_indices, meta.c4_sparse_topk_lengths)
        return Piece(lambda: (kernels.paged(q, lists, more, sink, scale, None),), layer.device)
    assert extra is not None
    flash = kernels.engine

    def call() -> tuple[Tensor, ...]:
        out, _ = flash.flash_mla_with_kvcache(
            q=q[:, None],
            k_cache=window.pages,
            block_table=None,
            cache_seqlens=None,
            head_dim_v=512,
            tile_scheduler_metadata=flash.get_mla_metadata()[0],
            softmax_scale=scale,
            is_fp8_kvcache=True,
            indices=meta.swa_page_indices[:, None],
            attn_sink=sink,
            extra_k_cache=extra.pages,
            extra_indices_in_kvcache=meta.c4_sparse_page_indices[:, None],
            topk_length=meta.swa_topk_lengths,
            extra_topk_length=meta.c4_sparse_topk_lengths,
            use_legacy=True,
        )
        return (out[:, 0],)

    return Piece(call, layer.device)
