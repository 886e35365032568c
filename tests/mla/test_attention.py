"""Sparse decode and prefill of the built-in implementation against plain loops in double precision."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from dsv4_conformance.implementations.api import KVScope
from dsv4_conformance.mla.kernels.torch import sparse_decode, sparse_prefill

INF = math.inf
SCALE = 512**-0.5
HEADS = 4
# Beside plain values: no effect, everything taken, and a sink near the lse of a few keys, where it halves the output.
SINKS = [-INF, INF, 1.5, -0.5]
GARBAGE = [-(2**31), 2**31 - 1, -7, 10**6]


def e4m3(code: int) -> float:
    exponent, mantissa = (code >> 3) & 15, code & 7
    magnitude = math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10)
    return -magnitude if code & 128 else magnitude


@dataclass
class Cache:
    """Pages in which every byte that no written slot owns is 0xFF."""

    page_size: int
    num_pages: int = 3
    buffer: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.page_bytes = -(-584 * self.page_size // 576) * 576
        self.buffer = torch.full((self.num_pages, self.page_bytes), 255, dtype=torch.uint8)

    def view(self) -> torch.Tensor:
        return self.buffer[:, : 584 * self.page_size].view(self.num_pages, self.page_size, 1, 584)

    def write(self, slot: int, generator: torch.Generator) -> None:
        page, i = divmod(slot, self.page_size)
        codes = torch.randint(0, 127, (448,), dtype=torch.uint8, generator=generator)
        codes += 128 * torch.randint(0, 2, (448,), dtype=torch.uint8, generator=generator)
        rope = torch.randn(64, generator=generator).bfloat16().view(torch.uint8)
        scales = torch.randint(118, 122, (7,), dtype=torch.uint8, generator=generator)
        self.buffer[page, 576 * i : 576 * i + 576] = torch.cat((codes, rope))
        start = 576 * self.page_size + 8 * i
        self.buffer[page, start : start + 7] = scales

    def read(self, slot: int) -> list[float]:
        page, i = divmod(slot, self.page_size)
        raw = self.buffer[page].tolist()
        data, scales = raw[576 * i : 576 * i + 576], raw[576 * self.page_size + 8 * i :]
        nope = [math.ldexp(e4m3(data[d]), scales[d // 64] - 127) for d in range(448)]
        return nope + [struct.unpack("<f", bytes([0, 0, *data[d : d + 2]]))[0] for d in range(448, 576, 2)]


def attend(
    q: Sequence[float], keys: Sequence[Sequence[float]], sink: float | None
) -> tuple[list[float], list[float], float, float]:
    """One head of one row: out, the error that rounding P and out to bf16 (2^-8 each) may cause, max logit, lse."""
    if not keys:
        return [0.0] * 512, [0.0] * 512, -INF, INF
    logits = [SCALE * sum(a * b for a, b in zip(q, key, strict=True)) for key in keys]
    lse = math.log(sum(math.exp(logit) for logit in logits))
    mass = 1.0 if sink is None else 0.0 if sink == INF else 1 / (1 + math.exp(sink - lse))
    weights = [mass * math.exp(logit - lse) for logit in logits]
    out = [sum(w * key[d] for w, key in zip(weights, keys, strict=True)) for d in range(512)]
    slack = [2.0**-7 * sum(w * abs(key[d]) for w, key in zip(weights, keys, strict=True)) for d in range(512)]
    return out, slack, max(logits), lse


def check(result: torch.Tensor, expected: Sequence[float], slack: Sequence[float]) -> None:
    for got, want, margin in zip(result.tolist(), expected, slack, strict=True):
        assert abs(got - want) <= margin * (1 + 1e-3), (got, want, margin)


@dataclass
class Lists:
    """Index lists of one scope, rows b x s_q, and the lengths per b."""

    rows: list[list[list[int]]]
    lengths: list[int] | None

    def scope(self, cache: Cache) -> KVScope:
        lengths = None if self.lengths is None else torch.tensor(self.lengths, dtype=torch.int32)
        return KVScope(cache.view(), torch.tensor(self.rows, dtype=torch.int32), lengths)

    def processed(self, b: int, s: int) -> list[int]:
        listed = self.rows[b][s]
        return [slot for slot in (listed if self.lengths is None else listed[: self.lengths[b]]) if slot != -1]


# Row (1, 1) has no key in either scope; (0, 0) repeats a slot; garbage stands beyond the lengths.
WINDOW = Lists(
    [[[5, 0, 5, -1, *GARBAGE], [1, 2, 3, 4, *GARBAGE]], [[-1, 4, -1, *GARBAGE, 0], [-1, -1, -1, *GARBAGE, 1]]], [4, 3]
)
EXTRA = Lists([[[3, 1, 1], [-1, 0, 5]], [[4, 99, 1], [-1, -1, 2]]], [3, 1])
FULL = Lists([[[5, 0, 5, -1, 2], [1, 2, 3, 4, 0]], [[-1, 4, -1, 1, 1], [-1, -1, -1, -1, -1]]], None)


# Kills: sink scaled or ignored or folded into lse, holes or duplicates counted once, lengths ignored or applied per
# s_q, extra scope read with the window's page size, page stride, scale lost, q rows of one b mixed, 0xFF leaking.
@pytest.mark.parametrize("sinks", [None, SINKS])
@pytest.mark.parametrize(
    ("window", "extra", "page_size", "extra_page_size"),
    [(WINDOW, EXTRA, 2, 53), (WINDOW, None, 64, 2), (FULL, None, 53, 2), (FULL, EXTRA, 64, 2)],
)
def test_decode_equals_the_loops(
    window: Lists, extra: Lists | None, page_size: int, extra_page_size: int, sinks: list[float] | None
) -> None:
    generator = torch.Generator().manual_seed(page_size)
    caches = [Cache(page_size), Cache(extra_page_size)]
    for cache in caches:
        for slot in range(6):
            cache.write(slot, generator)
    q = torch.randn(2, 2, HEADS, 512, generator=generator).bfloat16()
    sink = None if sinks is None else torch.tensor(sinks)
    scopes = [window.scope(caches[0]), None if extra is None else extra.scope(caches[1])]
    assert scopes[0] is not None
    out, lse = sparse_decode(q, scopes[0], scopes[1], sink, SCALE)
    assert (out.dtype, out.shape, lse.dtype, lse.shape) == (torch.bfloat16, q.shape, torch.float32, (2, HEADS, 2))
    for b in range(2):
        for s in range(2):
            keys = [caches[0].read(slot) for slot in window.processed(b, s)]
            keys += [] if extra is None else [caches[1].read(slot) for slot in extra.processed(b, s)]
            for h in range(HEADS):
                want, slack, _, want_lse = attend(q[b, s, h].tolist(), keys, None if sinks is None else sinks[h])
                check(out[b, s, h], want, slack)
                assert float(lse[b, h, s]) == pytest.approx(want_lse, abs=1e-5)


# Kills: >= s_kv or negative indices read, max logits with the sink, statistics in base 2, lengths off by one.
@pytest.mark.parametrize("sinks", [None, SINKS])
@pytest.mark.parametrize("with_lengths", [True, False])
def test_prefill_equals_the_loops(with_lengths: bool, sinks: list[float] | None) -> None:
    generator = torch.Generator().manual_seed(7)
    kv = torch.full((9, 1, 512), math.nan, dtype=torch.bfloat16)
    kv[1:7] = torch.randn(6, 1, 512, generator=generator).bfloat16() * 3  # row 0 is where a clamped hole would read
    q = torch.randn(4, HEADS, 512, generator=generator).bfloat16()
    rows = [[6, 5, 5, -1, 9], [3, -(2**31), 1, 2**31 - 1, 2], [-1, 9, -5, 40, -1], [4, 4, 4, 4, 3]]
    lengths = [3, 5, 5, 1] if with_lengths else None
    out, max_logits, lse = sparse_prefill(
        q,
        kv,
        torch.tensor(rows, dtype=torch.int32)[:, None],
        None if lengths is None else torch.tensor(lengths, dtype=torch.int32),
        None if sinks is None else torch.tensor(sinks),
        SCALE,
    )
    assert (max_logits.dtype, max_logits.shape, lse.shape) == (torch.float32, (4, HEADS), (4, HEADS))
    for t, row in enumerate(rows):
        listed = row if lengths is None else row[: lengths[t]]
        keys = [kv[index, 0].tolist() for index in listed if 0 <= index < 9]
        for h in range(HEADS):
            want, slack, want_max, want_lse = attend(q[t, h].tolist(), keys, None if sinks is None else sinks[h])
            check(out[t, h], want, slack)
            assert float(max_logits[t, h]) == pytest.approx(want_max, abs=1e-5)
            assert float(lse[t, h]) == pytest.approx(want_lse, abs=1e-5)


# Kills: exp without the maximum subtracted (overflow above 88, log of zero below -104).
@pytest.mark.parametrize("logit", [240.0, -240.0])
def test_large_logits_do_not_overflow(logit: float) -> None:
    q = torch.zeros(1, 1, 512, dtype=torch.bfloat16)
    kv = torch.zeros(2, 1, 512, dtype=torch.bfloat16)
    q[..., 0], kv[:, 0, 0] = logit, torch.tensor([1.0, 0.5])
    winner = max(logit, logit / 2)
    out, max_logits, lse = sparse_prefill(q, kv, torch.tensor([[[0, 1]]], dtype=torch.int32), None, None, 1.0)
    assert (float(out[0, 0, 0]), float(max_logits), float(lse)) == (winner / logit, winner, winner)
