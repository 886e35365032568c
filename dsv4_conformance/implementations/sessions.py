"""Sessions of the stateful surfaces: the protocols that what an adapter opens must answer (spec §5 to §7, §13 to §15).

A session is any object with the methods of its protocol; it need not derive from it. No torch at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from dsv4_conformance.implementations.state_api import (
        Change,
        IndexSegment,
        LayerResult,
        Mode,
        Path,
        Segment,
        Selection,
    )


class CompressorSession(Protocol):
    """Compressor state of several sequences (spec §5, §6)."""

    def push(self, segments: Sequence[Segment]) -> list[Tensor]:
        """Take new tokens; per segment the entries they completed, float32 ``(m, dim)``, normed and roped."""

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first ``length`` tokens: the others were drafts that were rejected."""

    def release(self, sequence: int) -> None:
        """Forget a sequence; its state rows may serve another one, and are not cleared."""

    def state(self) -> Sequence[Tensor]:
        """All state storage, live: a suite may overwrite it while no sequence lives."""


class IndexerSession(Protocol):
    """Indexer with its key cache (spec §7)."""

    def push(self, segments: Sequence[IndexSegment]) -> list[Selection]:
        """Take new tokens; per segment the selection of each of its tokens."""

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first ``length`` tokens."""

    def release(self, sequence: int) -> None:
        """Forget a sequence."""

    def keys(self, sequence: int) -> Tensor:
        """Stored index keys, dequantised, Hadamard-rotated unless declared otherwise: float32 ``(entries, 128)``."""

    def page_table(self, sequence: int) -> Tensor | None:
        """int32 ``(pages,)`` of 256-token pages that paged selections refer to, or None."""


class WorkspaceSession(Protocol):
    """The grow-only bf16 buffer of sparse prefill (spec §13.1)."""

    def get(self, rows: int) -> Tensor:
        """A bf16 ``(rows, 1, 512)`` view of the buffer, which grows to exactly ``rows`` if it holds fewer; its content
        is anything. Raises for rows < 1."""


class ChunkCacheSession(Protocol):
    """Gather lists and combined index rows of one forward, shared by its layers (spec §13.2 to §13.4).

    Workspace rows: compressed rows of request 0, of request 1, ..., then window rows of request 0, of request 1, ...
    """

    def ensure_c4(self, page_table: Tensor, page_size: int = 64) -> None:
        """Build the C4 gather from page_table int32 ``(rows, pages)``, one row per query row; a second call keeps what
        the first built. Raises if the pages hold fewer entries than the live extent."""

    def ensure_c128(self, page_indices: Tensor) -> None:
        """Build the C128 gather from the compressed slots int32 ``(rows, width)`` each query row sees, -1 = none."""

    def token_ids(self, ratio: int) -> Tensor:
        """Flat compressed slots to gather, int ``(n,)``, for ratio 4 or 128."""

    def window_token_ids(self) -> Tensor:
        """Flat window slots to gather, int ``(m,)``: per request its last min(S, E + 127) positions, oldest first."""

    def compressed_base(self, ratio: int) -> Tensor:
        """int ``(R,)``: workspace row where each request's compressed rows start."""

    def window_base(self, ratio: int) -> Tensor:
        """int ``(R,)``: workspace row where each request's window rows start, in a layer of this ratio (0, 4, 128)."""

    def combined(self, ratio: int, raw: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Index rows int32 ``(rows, width)`` and their lengths int32 ``(rows,)`` for a layer of this ratio; ``raw``
        int32 ``(rows, topk)`` is the indexer's selection at ratio 4."""


class MetadataSession(Protocol):
    """Attention metadata of one batch (spec §14)."""

    def fields(self) -> Mapping[str, Any]:
        """Every field by name, nested ones flattened with dots; tensors are the live ones."""

    def classes(self, event: Literal["copy", "refresh"]) -> Mapping[str, Change]:
        """What ``copy_`` or ``refresh_`` does to each field; exactly the names of ``fields``."""

    def copy_(self, other: Any) -> None:
        """Take another batch's metadata for a full-graph replay (spec §14.3)."""

    def refresh_(self, static: Any) -> None:
        """Take another batch's metadata for a replay broken at attention (spec §14.4)."""

    def chunk_cache(self) -> Any | None:
        """The sparse-prefill chunk cache attached to this metadata, or None."""

    def attach_chunk_cache(self, cache: Any) -> None:
        """Attach one, as the first sparse-prefill layer of a forward does."""

    def lists(self, ratio: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Window slots ``(rows, 128)`` and lengths, and for ratio 128 compressed slots and lengths: what a decode call
        of a layer of this ratio is given (for ratio 4 the indexer's selection takes their place: None, lengths)."""


class GraphSession(Protocol):
    """A captured step. On a CPU the same protocol runs on static buffers."""

    def replay(self, segments: Sequence[Segment]) -> LayerResult:
        """One step of the captured mode: one token per segment in decode, any number in prefill; rows that the segments
        leave over are padding."""

    def addresses(self) -> Mapping[str, int]:
        """Storage addresses that captured kernels hold, by name; none may ever change."""


class LayerSession(Protocol):
    """One attention layer on one rank, with its caches (spec §2, §15)."""

    def step(
        self, segments: Sequence[Segment], mode: Mode = "prefill", padded_rows: int = 0, path: Path = "auto"
    ) -> LayerResult:
        """Run new tokens of some sequences; ``padded_rows`` more rows belong to nobody and hold anything.

        Mode decode takes one token per sequence; verify several, of which ``truncate`` may take back some.
        """

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first ``length`` tokens of a sequence: later ones were drafts that were rejected."""

    def fork(self, source: int, target: int, length: int) -> None:
        """Start ``target`` from the first ``length`` tokens of ``source`` (a multiple of 256), sharing cached pages."""

    def release(self, sequence: int) -> None:
        """Forget a sequence; its pages and state serve others, uncleared."""

    def window_rows(self, sequence: int, positions: Tensor) -> Tensor:
        """Stored keys at positions int64 ``(n,)``, dequantised: float32 ``(n, 512)``.

        Which positions are asked for, LayerConvention.window_history says.
        """

    def compressed_rows(self, sequence: int) -> Tensor:
        """Stored compressed entries, dequantised: float32 ``(S // ratio, 512)``."""

    def poison(self) -> None:
        """Fill with NaN every byte of every pool, state and scratch buffer that no live sequence owns."""

    def sink(self) -> Tensor:
        """The sink tensor that the kernel is given: built at the first step, then at one address."""

    def load_sink(self, sink: Tensor) -> None:
        """An online weight update of attn_sink float32 ``(H,)``, the engine's refresh included."""

    def capture(self, rows: int, mode: Mode = "decode") -> GraphSession:
        """Capture a step of ``rows`` rows in mode decode, or in mode prefill: broken at attention (spec §14.4)."""
