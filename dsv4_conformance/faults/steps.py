"""The built-in metadata, chunk cache and workspace with parts that can be exchanged (spec §13, §14)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.state_api import ExtendBatch, StepBatch
from dsv4_conformance.mla.chunk_cache import SparsePrefillChunkCache
from dsv4_conformance.mla.metadata import DSV4Metadata
from dsv4_conformance.mla.workspace import SparsePrefillWorkspace


class Stepped(Builtin):
    """The built-in metadata, right; subclasses change what is built, or name a class whose events differ."""

    touches: ClassVar[tuple[str, ...]] = ("GraphMetadata",)
    made: ClassVar[type[DSV4Metadata]] = DSV4Metadata

    def built(self, metadata: DSV4Metadata, batch: StepBatch) -> None:
        """Change what was built."""

    def build_metadata(self, batch: StepBatch) -> DSV4Metadata:
        """GraphMetadata, changed."""
        metadata = self.made(**vars(super().build_metadata(batch)))
        self.built(metadata, batch)
        return metadata


class Workspaced(Builtin):
    """The built-in workspace, right; subclasses name another class."""

    touches: ClassVar[tuple[str, ...]] = ("SparsePrefillWorkspace",)
    workspace: ClassVar[type[SparsePrefillWorkspace]] = SparsePrefillWorkspace

    def open_workspace(self) -> SparsePrefillWorkspace:
        """SparsePrefillWorkspace of the other class."""
        return self.workspace(self.device)


class Chunked(Builtin):
    """The built-in chunk cache, right; subclasses name another class."""

    touches: ClassVar[tuple[str, ...]] = ("SparsePrefillChunkCache",)
    cache: ClassVar[type[SparsePrefillChunkCache]] = SparsePrefillChunkCache

    def open_chunk_cache(self, batch: ExtendBatch) -> SparsePrefillChunkCache:
        """SparsePrefillChunkCache of the other class."""
        return self.cache.build(batch.seq_lens, batch.extend_lens, batch.window_slots, batch.query_rows)


class CombinedRows(SparsePrefillChunkCache):
    """Index rows that are changed before they are returned."""

    def changed(self, rows: Tensor, lengths: Tensor, ratio: int, raw: Tensor | None) -> None:
        """Change copies of the right rows in place."""

    def combined(self, ratio: int, raw: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The rows, changed."""
        rows, lengths = (x.clone() for x in super().combined(ratio, raw))
        self.changed(rows, lengths, ratio, raw)
        return rows, lengths
