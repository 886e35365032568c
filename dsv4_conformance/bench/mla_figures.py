"""The figures of ``dsv4-conformance bench mla``: cost of the layer's core, of padding, of sparse prefill, and bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.bench.mla import (
    Ratio,
    Sizes,
    at_decode,
    bare,
    compare,
    core,
    core_layer,
    queries,
    select,
)
from dsv4_conformance.mla.backend import FlashKernels, TorchKernels, kernels_for
from dsv4_conformance.mla.chunk_cache import SparsePrefillChunkCache
from dsv4_conformance.mla.layer import AttentionLayer
from dsv4_conformance.mla.step import Run

CAPACITY = 1 << 20
"""Tokens that a captured page table can name."""
ROW_BYTES = 2 * 512
"""One gathered row in bf16."""


def core_against_bare(device: torch.device, sizes: Sizes) -> dict[int, Ratio]:
    """Per batch size: the layer's captured core on 32 local heads padded to 64 against the bare call at 64 heads."""
    found = {}
    for rows in sizes.batches:
        layer = core_layer(device, 4, 2, rows, sizes.live)
        q, meta = queries(layer, rows), at_decode(layer, rows, sizes.live)
        ours, other = core(layer, q, meta), bare(layer, q, meta)
        if not torch.equal(ours.run()[0], other.run()[0]):
            raise RuntimeError(f"the layer's core and the bare call differ at {rows} rows; neither time means anything")
        found[rows] = compare(ours.run, other.run, device, sizes)
    return found


class _PaddedTo128(FlashKernels):
    def heads(self, n_heads: int, tp: int) -> int:
        """Every rank pads to 128 heads."""
        return 128


class _TorchPaddedTo128(TorchKernels):
    def heads(self, n_heads: int, tp: int) -> int:
        """Every rank pads to 128 heads."""
        return 128


def padding_64_against_128(device: torch.device, sizes: Sizes) -> dict[int, Ratio]:
    """Per batch size: decode of 32 local heads padded to 128 against padded to 64; above 1, padding to 64 pays."""
    flash = isinstance(kernels_for(device, "bfloat16"), FlashKernels)
    found = {}
    for rows in sizes.batches:
        narrow = core_layer(device, 4, 2, rows, sizes.live)
        wide = core_layer(device, 4, 2, rows, sizes.live, _PaddedTo128() if flash else _TorchPaddedTo128())
        pieces = [core(layer, queries(layer, rows), at_decode(layer, rows, sizes.live)) for layer in (wide, narrow)]
        found[rows] = compare(pieces[0].run, pieces[1].run, device, sizes)
    return found


def sparse_against_paged(device: torch.device, sizes: Sizes, ratio: int) -> dict[int, Ratio]:
    """Per prefill length, in chunks: attention of one layer over pages against that over the gathered workspace.

    Above 1, sparse prefill pays. The chunk cache is built before the clock starts: all layers of a forward share it.
    """
    found = {}
    for tokens in sizes.prefills:
        layer = core_layer(device, ratio, 1, 1, tokens)
        parts = []
        for start in range(0, tokens, sizes.chunk):
            count = min(sizes.chunk, tokens - start)
            layer.sequences.grow(0, count)
            runs = [Run(0, layer.sequences[0].state_row, start, count)]
            parts.append((queries(layer, count), select(layer, layer.metadata(runs, 0)), runs))

        def attend(path: str, layer: AttentionLayer = layer, parts: list[Any] = parts) -> list[Tensor]:
            return [layer.attention.attend(q, meta, path, runs) for q, meta, runs in parts]

        apart = max(float((a - b).abs().max()) for a, b in zip(attend("paged"), attend("sparse"), strict=True))
        if apart > 0.1:
            raise RuntimeError(f"the two paths differ by {apart} at {tokens} tokens; neither time means anything")
        fewer = 2 if tokens > 32768 else 5
        found[tokens] = compare(lambda: attend("paged"), lambda: attend("sparse"), device, sizes, fewer)
    return found


def gathered_bytes(device: torch.device, live: int) -> dict[str, int]:
    """Bytes that a C4 layer gathers for one request of ``live`` tokens under a page table of 1M tokens, by part, and
    what a gather sized by the table's capacity would take."""
    slots = torch.zeros(1, live, dtype=torch.int32, device=device)
    cache = SparsePrefillChunkCache.build((live,), (live,), slots, live)
    table = torch.zeros(1, CAPACITY // 256, dtype=torch.int32, device=device).expand(live, -1)
    cache.ensure_c4(table)
    return {
        "compressed": cache.token_ids(4).numel() * ROW_BYTES,
        "window": cache.window_token_ids().numel() * ROW_BYTES,
        "compressed by capacity": CAPACITY // 4 * ROW_BYTES,
    }


def replay_trace(device: torch.device, rows: int, live: int) -> dict[str, Any]:
    """One replay of the core and one of a whole decode step: device kernels by name, and allocations made meanwhile."""
    from torch.profiler import ProfilerActivity, profile

    layer = core_layer(device, 4, 2, max(rows, 1), live + 256)
    piece = core(layer, queries(layer, rows), at_decode(layer, rows, live))
    graph = layer.capture(rows)
    traced: dict[str, Any] = {}
    for name, run in (("core", piece.run), ("step", graph.replay_only)):
        run()
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            run()
            torch.cuda.synchronize()
        made = torch.cuda.memory_stats()["allocation.all.allocated"] - before
        names = [event.name for event in found.events() if str(event.device_type).endswith("CUDA")]
        traced[name] = {"allocations": made, "kernels": names}
    return traced
