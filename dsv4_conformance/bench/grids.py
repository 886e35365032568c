"""Grids on which the harness's rate is measured: the shapes of FlashMLA's own sparse tests. Torch-free."""

from collections.abc import Iterator
from itertools import product

from dsv4_conformance.cases.case import AttentionCase, ScopeShape

DECODE_SCOPES = (
    (512, 64, 2),
    (512, 64, 64),
    (512, 64, 69),
    (1024, 576, 2),
    (1024, 576, 61),
    (2046, 2048, 2),
    (2046, 2048, 64),
    (2046, 2048, 576),
)
"""(stored tokens per row, topk, page size) of either scope."""

PREFILL_SHAPES = (
    (128, 128),
    (256, 256),
    (512, 512),
    (592, 128),
    (1840, 256),
    (1592, 384),
    (1521, 512),
    (95, 128),
    (153, 256),
    (114, 384),
)
"""(s_kv, topk)."""


def decode_grid() -> Iterator[AttentionCase]:
    """1,536 decode cases: b, s_q, h_q, both scopes' shapes, with and without topk_length."""
    for b, s_q, h_q in product((4, 74, 321), (1, 3), (64, 128)):
        for window, extra, lengths in product(DECODE_SCOPES, DECODE_SCOPES, ("none", "mixed")):
            yield AttentionCase(
                "SparseDecode",
                b,
                s_q,
                h_q,
                ScopeShape(*window, lengths),  # type: ignore[arg-type]
                ScopeShape(*extra, lengths),  # type: ignore[arg-type]
            )


def prefill_grid() -> Iterator[AttentionCase]:
    """240 prefill cases: queries, heads, shapes, with and without sink and topk_length."""
    for s_q, h_q, (s_kv, topk) in product((1, 62, 213), (64, 128), PREFILL_SHAPES):
        for sink, lengths in product(("none", "special"), ("none", "mixed")):
            shape = ScopeShape(s_kv, topk, 64, lengths)  # type: ignore[arg-type]
            yield AttentionCase("SparsePrefill", 1, s_q, h_q, shape, sink=sink)  # type: ignore[arg-type]


GRIDS = {"decode": decode_grid, "prefill": prefill_grid}
PUBLISHED_RATE = {"decode": 19.7, "prefill": 117.0}
"""Cases per second of FlashMLA's own tests of these grids on one H200, against a float32 reference."""
EVERY = 7
"""The stage breakdown is taken on every EVERY-th case; prime, so that it meets every part of a grid."""
