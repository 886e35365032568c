"""Compressor of C4 and C128 layers, and of the indexer, with state across chunks and decode steps (spec §5, §6).

A token's state is one float32 row ``[u | g]``: the projections of wkv and wgate, the gate without its ``ape``. The
token at position p of state row s lives at ``s * ring + p % ring``. State row 0 belongs to padding. Rows are never
cleared: what a sequence did not write itself is not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from dsv4_conformance.errors import BadInput
from dsv4_conformance.mla.norm import rms_norm
from dsv4_conformance.mla.rope import apply_rope
from dsv4_conformance.spec.kv_layout import WINDOW_PAGE
from dsv4_conformance.spec.weights import CompressorWeights

RINGS = {4: 16, 128: 256}
"""Ring by ratio: the tokens one window pools, and as many again, so that drafts can be taken back."""

OVERLAPPING_RATIO = 4
WINDOWS_AT_ONCE = 4096  # bounds the scratch of a long prefill


class Compressor:
    """One compressor of ``dim`` 512 (main) or 128 (index) for ``rows - 1`` sequences, in float32.

    ``table``: the layer's rope table float32 ``(max_pos, 64)``. ``ring``: tokens kept per state row; steps of up to
    ``ring - window + 1`` drafts are possible, window = 8 at ratio 4 and 128 at 128. ``tail_pages``: pages of 256
    tokens, counted from a sequence's start, at whose ends a prefix may be cut for reuse (``export_tail``). Raises
    BadInput for another ratio, or a ring that does not hold one window.
    """

    def __init__(
        self,
        weights: CompressorWeights,
        ratio: int,
        dim: int,
        table: Tensor,
        eps: float,
        rows: int,
        ring: int | None = None,
        device: torch.device | str = "cpu",
        tail_pages: int = 0,
    ) -> None:
        if ratio not in RINGS:
            raise BadInput(f"ratio {ratio} has no compressor; use 4 or 128.")
        self.ratio, self.dim, self.rows = ratio, dim, rows
        self.overlapping = ratio == OVERLAPPING_RATIO
        self.window = 2 * ratio if self.overlapping else ratio
        self.ring = RINGS[ratio] if ring is None else ring
        if self.ring < self.window:
            raise BadInput(f"ring is {self.ring} and one window pools {self.window} tokens; use {RINGS[ratio]}.")
        self.width = 2 * dim if self.overlapping else dim
        self.tail_pages = tail_pages if self.overlapping else 0
        self._projection = torch.cat((weights.wkv, weights.wgate)).to(device, torch.float32)
        self._ape = weights.ape.to(device, torch.float32)
        self._norm = weights.norm.to(device, torch.float32)
        self._table, self._eps = table.to(device), eps
        self._back = torch.arange(1 - self.window, 1, device=device)
        # A token before the sequence's first: value 0, score minus infinity.
        self.nothing = torch.zeros(2 * self.width, device=device)
        self.nothing[self.width :] = -math.inf
        self.state = torch.zeros(rows * self.ring, 2 * self.width, device=device)
        self.tails = torch.zeros(rows, self.tail_pages, OVERLAPPING_RATIO, 2 * self.width, device=device)

    def project(self, x: Tensor) -> Tensor:
        """x ``(T, hidden)`` -> ``[u | g]`` float32 ``(T, 2 * coff * dim)``, coff = 2 at ratio 4, else 1."""
        return linear(x.float(), self._projection)

    def extend(self, ug: Tensor, rows: Sequence[tuple[int, int, int]]) -> tuple[Tensor, Tensor]:
        """Take chunks of any length: per chunk (state row, position of its first token, tokens); ug holds them in turn.

        Returns the completed entries float32 ``(m, dim)``, normed and roped, and for each the row of ug that completed
        it, int64 ``(m,)``. Raises BadInput if the chunks do not make up ug.
        """
        if sum(n for *_, n in rows) != len(ug):
            raise BadInput(f"the chunks hold {sum(n for *_, n in rows)} tokens and ug {len(ug)}; pass each token once.")
        entries, closing, offset = [ug.new_empty(0, self.dim)], [self._back.new_empty(0)], 0
        for state_row, start, n in rows:
            chunk = ug[offset : offset + n]
            first, stop = start // self.ratio, (start + n) // self.ratio
            if stop > first:
                starts = torch.arange(first, stop, device=ug.device) * self.ratio
                windows = self._tokens(state_row, start, chunk).unfold(0, self.window, self.ratio).transpose(1, 2)
                entries.append(self.pool(windows, starts))
                closing.append(starts + (offset - start + self.ratio - 1))
            self._write(state_row, start, chunk)
            offset += n
        return torch.cat(entries), torch.cat(closing)

    def advance(self, ug: Tensor, state_rows: Tensor, positions: Tensor) -> Tensor:
        """One decode or verify step, of static shapes and without waiting for the device: all tokens' state is written,
        then the window that ends at each token is pooled.

        state_rows, positions: int64 ``(T,)``; a sequence's rows are consecutive tokens, padding rows have state row 0.
        Returns float32 ``(T, dim)``; row t is an entry where ``(position + 1) % ratio == 0``, else anything.
        """
        self.state.index_copy_(0, state_rows * self.ring + positions % self.ring, ug)
        if self.tail_pages:
            page = positions // WINDOW_PAGE
            kept = (positions % WINDOW_PAGE >= WINDOW_PAGE - OVERLAPPING_RATIO) & (page >= 0) & (page < self.tail_pages)
            place = (state_rows * self.tail_pages + page) * OVERLAPPING_RATIO + positions % OVERLAPPING_RATIO
            self.tails.view(-1, 2 * self.width).index_copy_(0, torch.where(kept, place, 0), ug)
        tokens = positions[:, None] + self._back
        windows = self.state[state_rows[:, None] * self.ring + tokens % self.ring]
        if self.overlapping:
            windows = torch.where((tokens >= 0)[..., None], windows, self.nothing)
        return self.pool(windows, (positions + 1 - self.ratio).clamp(min=0))

    def can_resume(self, length: int, reached: int) -> bool:
        """Whether a sequence whose longest length so far was ``reached`` can go on from its first ``length`` tokens."""
        first = self._first_needed(length)
        return first == length or reached - first <= self.ring

    def export_tail(self, state_row: int, length: int) -> Tensor:
        """What a prefix of ``length`` tokens, a multiple of 256, leaves for ``import_tail``; empty at ratio 128.

        Float32 ``(length / 256, 4, 2 * coff * dim)``: the last four tokens of each of its pages. Raises BadInput for
        another length, or one beyond ``tail_pages``.
        """
        return self.tails[state_row, : self._pages(length)].clone()

    def import_tail(self, state_row: int, length: int, tail: Tensor) -> None:
        """Let a new sequence go on from a cached prefix of ``length`` tokens; BadInput as ``export_tail``."""
        pages = self._pages(length)
        if pages:
            self.tails[state_row, :pages] = tail
            positions = torch.arange(length - OVERLAPPING_RATIO, length, device=self.state.device)
            self.state[state_row * self.ring + positions % self.ring] = tail[-1]

    def poison(self, live_rows: Iterable[int]) -> None:
        """Fill with NaN the state of all rows but ``live_rows``."""
        live = set(live_rows)
        dead = [row for row in range(self.rows) if row not in live]
        self.state.view(self.rows, -1)[dead] = math.nan
        self.tails[dead] = math.nan

    def _first_needed(self, position: int) -> int:
        """First token that the window of the token at ``position`` pools."""
        return max(position // self.ratio * self.ratio - (self.window - self.ratio), 0)

    def _tokens(self, state_row: int, start: int, chunk: Tensor) -> Tensor:
        """The tokens that the windows of a chunk pool, oldest first, the chunk's own included."""
        positions = torch.arange(self._first_needed(start), start, device=chunk.device)
        history = self.state[state_row * self.ring + positions % self.ring]
        missing = self.window - self.ratio if start < self.ratio else 0
        return torch.cat((self.nothing.expand(missing, -1), history, chunk))

    def pool(self, windows: Tensor, positions: Tensor) -> Tensor:
        """Windows ``(m, window, 2 * coff * dim)`` -> entries ``(m, dim)``, roped to positions ``(m,)`` (spec §5.3)."""
        pooled = torch.cat([self._weighted(block) for block in torch.split(windows, WINDOWS_AT_ONCE)])
        return apply_rope(rms_norm(pooled, self._norm, self._eps), self._table, positions)

    def _weighted(self, windows: Tensor) -> Tensor:
        """Per channel, values weighted by the softmax of their gated scores (spec §5.1, §5.2)."""
        values, scores = windows[..., : self.width], windows[..., self.width :]
        if not self.overlapping:
            return ((scores + self._ape).softmax(1) * values).sum(1)
        r, d = self.ratio, self.dim
        # Tokens of the previous window give their A halves, those of the own window their B halves.
        values = torch.cat((values[:, :r, :d], values[:, r:, d:]), 1)
        scores = torch.cat((scores[:, :r, :d] + self._ape[:, :d], scores[:, r:, d:] + self._ape[:, d:]), 1)
        return (scores.softmax(1) * values).sum(1)

    def _write(self, state_row: int, start: int, chunk: Tensor) -> None:
        """Keep what later chunks may need: the last ring of tokens, and the ends of pages."""
        stop = start + len(chunk)
        kept = torch.arange(max(start, stop - self.ring), stop, device=chunk.device)
        self.state[state_row * self.ring + kept % self.ring] = chunk[len(chunk) - len(kept) :]
        ends = torch.arange(start, min(stop, max(start, self.tail_pages * WINDOW_PAGE)))
        ends = ends[ends % WINDOW_PAGE >= WINDOW_PAGE - OVERLAPPING_RATIO].to(chunk.device)
        self.tails[state_row, ends // WINDOW_PAGE, ends % OVERLAPPING_RATIO] = chunk[ends - start]

    def _pages(self, length: int) -> int:
        """Pages of a prefix whose tails are kept."""
        pages, rest = divmod(length, WINDOW_PAGE)
        if rest or length < 0:
            raise BadInput(f"a prefix of {length} tokens cannot be shared; cut it at a multiple of {WINDOW_PAGE}.")
        if not self.overlapping:
            return 0
        if pages > self.tail_pages:
            raise BadInput(
                f"a prefix of {length} tokens has {pages} pages and the compressor keeps the ends of "
                f"{self.tail_pages}; open it with tail_pages of at least {pages}."
            )
        return pages
