"""Index lists: picks, duplicates, holes, lengths and what stands beyond them (spec §8, §10, §11)."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from dsv4_conformance.cases.case import AttentionCase, ScopeShape
from dsv4_conformance.cases.generator import host_words, words

INT_MAX, INT_MIN = 2**31 - 1, -(2**31)
_EDGES = (0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 192, 255, 256, 257, 384, 512, 640, 1024)
"""Lengths at which kernels take another path: around multiples of their key blocks."""
_BLOCK = 64
_STEPS = (1, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""Candidate strides of the pick progression; one that shares no factor with the slot count gives distinct picks."""


@dataclass(frozen=True)
class Picks:
    """Token numbers ``(R, topk)`` int32 within the row's own tokens (-1 = hole), lengths ``(groups,)`` or None, whether
    an entry lies inside the length, and the random word of each entry."""

    local: Tensor
    length: Tensor | None
    inside: Tensor
    word: Tensor

    def code(self, bound: int) -> Tensor:
        """A number in ``[0, bound)`` per entry, from bits of its word that the picks do not use."""
        return (self.word >> 8).bitwise_and_(0xFFFF).remainder_(bound)


@cache
def _table(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Constants on the device, copied there once."""
    return torch.tensor(values, dtype=torch.int32, device=device)


def _to(device: torch.device, values: list[int] | list[list[int]]) -> Tensor:
    """int32 values on the device; from pinned memory, so that the host need not wait for what the device is doing."""
    host = torch.tensor(values, dtype=torch.int32)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def _lengths(case: AttentionCase, shape: ScopeShape, name: str, groups: int) -> list[int] | None:
    """topk_length per group: a few-key first row, the rest anywhere, the last long (lonely case: 0)."""
    topk = shape.topk
    if shape.lengths == "none":
        return None
    if shape.lengths == "zero":
        return [0] * groups
    length = [topk] * groups
    if shape.lengths == "mixed":
        drawn = host_words(case.digest(), f"{name}/length", groups)
        edges = [edge for edge in _EDGES if edge < topk] + [topk - 1, topk]
        length = [edges[int(w // 2) % len(edges)] if w % 2 else int(w // 2) % (topk + 1) for w in drawn]
        length[-1] = topk - length[-1] // 4 if drawn[-1] % 4 else topk
        if groups > 1:
            length[0] = 1 + int(drawn[0] // 8) % min(7, topk)
    if case.lonely:
        length[-1] = 0
    return length


def draw_picks(case: AttentionCase, shape: ScopeShape, name: str, per_group: int, device: torch.device) -> Picks:
    """Lists of scope ``name`` for every query row; ``per_group`` query rows share one topk_length.

    Inside the length: distinct tokens (an arithmetic progression modulo the slot count), then duplicates and holes as
    the case says. The first entry is no hole; with "many" holes that holds in the first row only, and whole blocks go.
    """
    root, topk, slots = case.digest(), shape.topk, shape.slots
    groups = case.s_q if case.surface == "SparsePrefill" else case.b
    rows = groups * per_group
    steps = [s for s in _STEPS if slots % s or s == 1]
    drawn = host_words(root, f"{name}/row", 2 * rows)
    lines = [
        [int(word) % slots, steps[int(other) % len(steps)]] for word, other in zip(drawn[::2], drawn[1::2], strict=True)
    ]
    start, step = _to(device, lines).t()
    place = torch.arange(topk, dtype=torch.int32, device=device)
    local = torch.addcmul(start[:, None], step[:, None], place).remainder_(slots)
    local[:, slots:] = -1
    word = words(root, f"{name}/entry", (rows, topk), device)
    if case.duplicates and topk > 1:
        again = (word[:, 1:] & 0x18) == 0
        local[:, 1:] = torch.where(again, local[:, :-1], local[:, 1:])
    if case.holes != "none":
        hole = (word & (7 if case.holes == "some" else 1)) == 0
        if case.holes == "many":
            # Whole blocks of holes, first blocks among them, in about one row of three; the last entry stays.
            block = (word[:, ::_BLOCK] & 0x60) == 0
            block[:per_group] = False  # the sinks are drawn around the first row's lse
            hole |= block.repeat_interleave(_BLOCK, dim=1)[:, :topk]
            hole[:, -1] = hole[:per_group, 0] = False
        else:
            hole[:, 0] = False
        local.masked_fill_(hole, -1)
    length = _lengths(case, shape, name, groups)
    if length is None:
        if groups > 1:
            local[:per_group, 7:] = -1
        if case.lonely:
            local[-per_group:] = -1
        return Picks(local, None, torch.ones_like(local, dtype=torch.bool), word)
    counts = _to(device, length)
    inside = place < (counts if per_group == 1 else counts.repeat_interleave(per_group))[:, None]
    return Picks(local, counts, inside, word)


def beyond_decode(picks: Picks, indices: Tensor) -> Tensor:
    """Decode: anything may stand beyond topk_length. Some entries keep their live slot, the others are garbage."""
    code = picks.code(8)
    garbage = _table((INT_MAX, INT_MIN, -1, -7, 2**24 + 3, 0, 0, 0), indices.device)[code]
    return torch.where((code > 4).logical_or_(picks.inside), indices, garbage)


def forms_prefill(picks: Picks, s_kv: int) -> Tensor:
    """Prefill: every value < 0 or >= s_kv is a hole (INV-14), so holes take all such forms. Beyond the length stand -1,
    such values, or indices of finite rows; never of NaN rows (spec §11)."""
    code = picks.code(8)
    device = code.device
    holes = _table((-1, INT_MIN, -123456, s_kv, s_kv + 5, INT_MAX, -1, -1), device)[code]
    beyond = _table((-1, s_kv, INT_MAX, INT_MIN, -1, 0, 0, 0), device)[code]
    inside = torch.where(picks.local < 0, holes, picks.local)
    return torch.where((code > 4).logical_or_(picks.inside), inside, beyond)
