"""Weights, rope tables, token streams and score rows of compressor, indexer and selection cases (spec §5 to §7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from dsv4_conformance.cases.compressor_case import CompressorCase, IndexerCase, TopkCase
from dsv4_conformance.cases.generator import below, words
from dsv4_conformance.cases.index_topk import geometry_of
from dsv4_conformance.cases.layer_inputs import PAGE, compressor_weights, indexer_weights, rope_tables, tokens
from dsv4_conformance.cases.schedule import longest
from dsv4_conformance.spec.geometry import TINY
from dsv4_conformance.spec.weights import CompressorSpec, CompressorWeights, IndexerSpec

PEAK = 64.0
"""Score of a slot that outweighs the others: exp(-64) is below float32's smallest step by 20 orders."""

PAGE_IDS = 2**25
"""Pages of 64 entries that int32 slots can name."""

Rows = Callable[[Tensor], Tensor]


class Streams:
    """The tokens of several sequences. What is written again after a rejected draft or a release is new."""

    def __init__(
        self, root: int, width: int, most: int, device: torch.device | str, change: Rows | None = None
    ) -> None:
        """``width``: dims of a token; ``most``: tokens of the longest sequence; ``change`` rewrites all its rows."""
        self._root, self._width, self._most, self._device, self._change = root, width, most, device, change
        self._held: dict[int, Tensor] = {}
        self._attempt: dict[int, int] = {}
        self._rows: dict[int, Tensor] = {}

    def take(self, sequence: int, count: int) -> Tensor:
        """The next ``count`` tokens of a sequence, float32 ``(count, width)``."""
        if sequence not in self._rows:
            rows = tokens(self._root, sequence, self._attempt.get(sequence, 0), self._most, self._width, self._device)
            self._rows[sequence] = rows if self._change is None else self._change(rows)
        held = self.held(sequence)
        new = self._rows[sequence][len(held) : len(held) + count]
        self._held[sequence] = torch.cat((held, new))
        return new

    def held(self, sequence: int) -> Tensor:
        """All tokens that a sequence holds, float32 ``(S, width)``."""
        return self._held.get(sequence, torch.zeros(0, self._width, device=self._device))

    def keep(self, sequence: int, length: int) -> None:
        """Drop all but the first ``length`` tokens."""
        self._held[sequence] = self.held(sequence)[:length]
        self._attempt[sequence] = self._attempt.get(sequence, 0) + 1
        self._rows.pop(sequence, None)

    def fork(self, source: int, target: int, length: int) -> None:
        """Let ``target`` hold the first ``length`` tokens of ``source``."""
        self._held[target] = self.held(source)[:length]


def token_streams(case: CompressorCase, device: torch.device | str) -> Streams:
    """The tokens of a case. Dim 0 is 1 in every token (kind equal), or in one of each window and else 0 (gate_peak)."""
    change = (lambda rows: _marked(case, rows)) if case.data in ("equal", "gate_peak") else None
    return Streams(case.digest(), case.hidden, longest(case.schedule), device, change)


def marks(case: CompressorCase, windows: int, device: torch.device | str) -> Tensor:
    """Place in its window of the token that outweighs the others, int64 ``(windows,)`` (kind gate_peak)."""
    return below(case.digest(), "marks", (windows,), case.ratio, device)


def peaks(case: CompressorCase, device: torch.device | str) -> Tensor:
    """Slot that outweighs the others in each channel, int64 ``(dim,)`` (kind ape_peak): of 128, or of A 4 and B 4."""
    return below(case.digest(), "peaks", (case.dim,), 128 if case.ratio == 128 else 8, device)


def _marked(case: CompressorCase, rows: Tensor) -> Tensor:
    windows = -(-len(rows) // case.ratio)
    place = torch.arange(windows, device=rows.device) * case.ratio + marks(case, windows, rows.device)
    marked = rows.clone()
    marked[:, 0] = case.data == "equal"
    marked[place[place < len(rows)], 0] = 1
    return marked


def compressor_spec(case: CompressorCase, device: torch.device | str) -> CompressorSpec:
    """What the session of ``case`` is opened with."""
    device = torch.device(device)
    given = compressor_weights(case.digest(), "compressor", case.ratio, case.dim, case.hidden, device)
    return CompressorSpec(
        ratio=case.ratio,
        dim=case.dim,
        weights=_special(case, given),
        table=rope_tables(TINY, -(-longest(case.schedule) // PAGE) * PAGE, device).compressed,
        eps=TINY.rms_norm_eps,
    )


def _special(case: CompressorCase, given: CompressorWeights) -> CompressorWeights:
    """The weights that a kind of data asks for."""
    flat = replace(given, wgate=torch.zeros_like(given.wgate), ape=torch.zeros_like(given.ape))
    if case.data == "equal":
        halves = given.ape.shape[1] // case.dim
        # One bias and one gate per channel, the same in both halves. Channels differ, and by their gate, so that slots
        # that should not exist weigh more in some than in others: a common factor the norm would hide.
        flat.wgate[:, 0] = given.ape[1, : case.dim].repeat(halves) * 4
        return replace(flat, ape=given.ape[:1, : case.dim].repeat(case.ratio, halves))
    if case.data == "ape_peak":
        slot, channel = peaks(case, given.ape.device), torch.arange(case.dim, device=given.ape.device)
        # Slots 0 to 3 of ratio 4 are the A halves of the window before, 4 to 7 the B halves of the own one.
        flat.ape[slot % case.ratio, channel + case.dim * (slot // case.ratio)] = PEAK
        return flat
    if case.data == "gate_peak":
        column = torch.full((len(given.wgate),), PEAK, device=given.wgate.device)
        if case.ratio == 4:  # odd channels listen to A, even ones to B
            column[: case.dim : 2] = 0
            column[case.dim + 1 :: 2] = 0
        flat.wgate[:, 0] = column
        return flat
    if case.data == "halves":
        wkv, wgate = given.wkv.clone(), given.wgate.clone()
        for weight in (wkv, wgate):
            weight[: case.dim, case.hidden // 2 :] = 0
            weight[case.dim :, : case.hidden // 2] = 0
        return replace(given, wkv=wkv, wgate=wgate)
    return given


def indexer_spec(case: IndexerCase, device: torch.device | str) -> IndexerSpec:
    """What the session of ``case`` is opened with."""
    device, geometry = torch.device(device), geometry_of(case)
    weights = indexer_weights(case.digest(), geometry, device)
    if case.data == "opposite":
        queries = weights.wq_b.view(geometry.index_n_heads, -1).clone()
        queries[1::2] = -queries[::2]
        weights = replace(weights, wq_b=queries.view_as(weights.wq_b))
    room = index_capacity(case)
    return IndexerSpec(geometry, weights, rope_tables(geometry, room, device).compressed, case.quantised)


def index_capacity(case: IndexerCase) -> int:
    """Tokens a sequence of the case may hold, in whole pages."""
    return -(-longest(case.schedule) // PAGE) * PAGE


def index_streams(case: IndexerCase, device: torch.device | str) -> tuple[Streams, Streams]:
    """The tokens of a case, and their query sources."""
    geometry, most = geometry_of(case), longest(case.schedule)
    sources = Streams(case.digest() ^ 1, geometry.q_lora_rank, most, device)
    return Streams(case.digest(), geometry.hidden_size, most, device), sources


def topk_lengths(case: TopkCase, device: torch.device | str) -> Tensor:
    """Entries each row sees, int32 ``(rows,)``: just below, at and above topk, none, all, then random."""
    top = min(case.topk, case.width) if case.few else case.width
    k = case.topk
    edges = [k - 1, 0, 1, k, k // 2] if case.few else [k + 1, k, case.width, k + 2, k - 1, 0, case.width - 1, 2 * k, 1]
    drawn = below(case.digest(), "lengths", (case.rows,), top + 1, "cpu").tolist()
    lengths = [min(edges[row], top) if row < len(edges) else drawn[row] for row in range(case.rows)]
    return torch.tensor(lengths, dtype=torch.int32, device=device)


def topk_scores(case: TopkCase, device: torch.device | str) -> Tensor:
    """Score rows float32 ``(rows, width)``; beyond a row's length NaN, +inf and large numbers stand in turn."""
    random = words(case.digest(), "scores", (case.rows, case.width), device)
    uniform = random.float() / 2.0**31
    entry = torch.arange(case.width, device=device)
    scores = {
        "normal": lambda: uniform * 8,
        "rising": lambda: uniform.sort(1).values,
        "falling": lambda: -uniform.sort(1).values,
        "equal": lambda: uniform[:, :1].expand(case.rows, case.width).clone(),
        "clustered": lambda: 1.1 + uniform * 0.1,  # one bin of a coarse histogram
        "few": lambda: (random & 7).float() - 4,
        "zeros": lambda: torch.where(random % 3 == 0, 0.0, -0.0).masked_fill(random % 11 == 0, 1e-30),
        "infinite": lambda: uniform.masked_fill(random % 5 == 0, -torch.inf).masked_fill(random % 7 == 0, torch.inf),
        "not_numbers": lambda: uniform.masked_fill(random % 3 == 0, torch.nan),
    }[case.scores]()
    beyond = torch.tensor((torch.nan, torch.inf, 3e38), device=device)[entry % 3].expand_as(scores)
    return torch.where(entry < topk_lengths(case, device)[:, None], scores, beyond).contiguous()


def topk_pages(case: TopkCase, device: torch.device | str, layout: int = 0) -> Tensor:
    """Page table int32 ``(rows, pages)`` with two columns that no entry needs; ``layout`` numbers independent ones.

    Page 0 and the last page that int32 slots can name occur."""
    columns = -(-case.width // 64) + 2
    pages = below(case.digest(), f"pages{layout}", (case.rows, columns), PAGE_IDS, device)
    pages[0, 0], pages[-1, 0] = 0, PAGE_IDS - 1
    return pages.to(torch.int32)
