"""Sessions on the cache of transformers: every sequence has a cache of its own, as one call of ``generate`` has.

What such a cache cannot do is declared by the adapter: a token taken back (its compressor keeps no past), a prefix that
is shorter than the sequence, rows that belong to nobody.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.errors import BadInput
from dsv4_conformance.implementations.state_api import IndexSegment, LayerResult, Segment, Selection
from dsv4_conformance.implementations.transformers_engine import Compressor, Engine, Indexer
from dsv4_conformance.implementations.transformers_layer import Batch, Layer

PATH = "eager"
"""The one attention path there is."""


class Caches:
    """A cache per sequence, and the tokens that went into it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._caches: dict[int, Any] = {}
        self.lengths: dict[int, int] = {}

    def grow(self, sequence: int, count: int) -> tuple[Any, int]:
        """The cache of a sequence and the position of the first of ``count`` new tokens."""
        if sequence not in self._caches:
            self._caches[sequence], self.lengths[sequence] = self._make(), 0
        start = self.lengths[sequence]
        self.lengths[sequence] += count
        return self._caches[sequence], start

    def layer(self, sequence: int) -> Any:
        """The cache layer of a sequence."""
        return self._caches[sequence].layers[0]

    def truncate(self, sequence: int, length: int) -> None:
        """Keep all tokens. Raises BadInput if some are to go."""
        if length != self.lengths[sequence]:
            raise BadInput(f"sequence {sequence} holds {self.lengths[sequence]} tokens and cannot go back to {length}.")

    def fork(self, source: int, target: int, length: int) -> None:
        """Copy a whole cache, as the engine's users do to go on from one prompt twice. Raises BadInput for a part."""
        self.truncate(source, length)
        self._caches[target], self.lengths[target] = copy.deepcopy(self._caches[source]), length

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        del self._caches[sequence], self.lengths[sequence]

    def state(self) -> list[Tensor]:
        """Every tensor of the caches, live; none outlives its sequence."""
        return [tensor for sequence in self._caches for tensor in _tensors(vars(self.layer(sequence)))]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(inner)


class CompressorSession(Caches):
    """A Compressor session (spec §5, §6)."""

    def __init__(self, engine: Engine, compressor: Compressor) -> None:
        super().__init__(lambda: engine.cache(config=compressor.config))
        self._compressor = compressor

    def push(self, segments: Sequence[Segment]) -> list[Tensor]:
        """Each segment in a call of its own; the entries it completed, float32 ``(m, dim)``."""
        entries = []
        for segment in segments:
            cache, start = self.grow(segment.sequence, len(segment.x))
            entries.append(self._compressor.push(segment.x, start, cache).float())
        return entries


class IndexerSession(Caches):
    """An Indexer session (spec §7)."""

    def __init__(self, engine: Engine, indexer: Indexer) -> None:
        super().__init__(lambda: engine.cache(config=indexer.config))
        self._indexer = indexer

    def push(self, segments: Sequence[IndexSegment]) -> list[Selection]:
        """Each segment in a call of its own; there are no pages, so selections are raw."""
        made = []
        for segment in segments:
            cache, start = self.grow(segment.sequence, len(segment.x))
            raw, scores = self._indexer.push(segment.x, segment.qr, start, cache)
            made.append(Selection(raw, None, scores.float()))
        return made

    def keys(self, sequence: int) -> Tensor:
        """Stored index keys float32 ``(entries, 128)``, as they are: not Hadamard-rotated."""
        keys: Tensor = self.layer(sequence).compressed_kv["indexer"][0]
        return keys.float()

    def page_table(self, sequence: int) -> None:
        """There are no pages."""


class LayerRows:
    """What layer sessions have in common: the layer, its sink and the form of their results."""

    def __init__(self, layer: Layer) -> None:
        self.layer_of = layer

    def joined(self, parts: Sequence[tuple[Batch, int, slice]]) -> LayerResult:
        """One result of parts: a batch, its row and the columns that count."""
        geometry, like = self.layer_of.spec.geometry, self.layer_of.module.sinks
        if not parts:
            heads = like.new_zeros(0, geometry.num_attention_heads, geometry.head_dim)
            none = torch.zeros(0, geometry.index_topk, dtype=torch.int32, device=like.device)
            selected = none if self.layer_of.spec.ratio == 4 else None
            return LayerResult(heads, like.new_zeros(0, geometry.hidden_size), heads, selected, PATH)
        o, out, q = (
            torch.cat([getattr(batch, name)[row, columns] for batch, row, columns in parts])
            for name in ("o", "out", "q")
        )
        picks = [batch.selected[row, columns] for batch, row, columns in parts if batch.selected is not None]
        return LayerResult(o, out, q, torch.cat(picks) if picks else None, PATH)

    def poison(self) -> None:
        """Nothing to fill: the engine keeps no byte that no sequence owns."""

    def sink(self) -> Tensor:
        """The layer's own parameter."""
        sinks: Tensor = self.layer_of.module.sinks
        return sinks

    def load_sink(self, sink: Tensor) -> None:
        """Write the parameter in place."""
        self.layer_of.module.sinks.copy_(sink)


class LayerSession(LayerRows, Caches):
    """An AttentionLayer session in which each sequence runs alone on its cache."""

    def __init__(self, layer: Layer) -> None:
        LayerRows.__init__(self, layer)
        Caches.__init__(self, layer.new_cache)

    def step(
        self, segments: Sequence[Segment], mode: str = "prefill", padded_rows: int = 0, path: str = "auto"
    ) -> LayerResult:
        """Each segment in a call of its own. Modes are one code path here: a call of one token or of several."""
        parts = []
        for segment in segments:
            count = len(segment.x)
            cache, start = self.grow(segment.sequence, count)
            positions = torch.arange(start, start + count, device=segment.x.device)[None]
            parts.append((self.layer_of.run(segment.x[None], positions, None, cache), 0, slice(count)))
        return self.joined(parts)

    def window_rows(self, sequence: int, positions: Tensor) -> Tensor:
        """Stored keys float32 ``(n, 512)`` at positions among the last 127."""
        kept = self.layer(sequence).keys[0, 0]
        rows: Tensor = kept[positions - (self.lengths[sequence] - len(kept))]
        return rows.float()

    def compressed_rows(self, sequence: int) -> Tensor:
        """Stored entries float32 ``(S // ratio, 512)``."""
        entries: Tensor = self.layer(sequence).compressed_kv["compressor"][0]
        return entries.float()
