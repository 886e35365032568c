"""Families of formulas, plans and shared prefixes: curated cases at every edge, then seeded draws. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dsv4_conformance.cases.case import AttentionCase, Case, FormatCase, ScopeShape
from dsv4_conformance.cases.draws import Draws
from dsv4_conformance.cases.extent_case import FormulaCase, PlannerCase, PrefixCase
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.profiles import Size
from dsv4_conformance.cases.schedule import steps
from dsv4_conformance.oracle.formulas import workspace_rows
from dsv4_conformance.spec.formulas import OFFSETS, SIZES
from dsv4_conformance.spec.weights import Precision

_CURATED: tuple[PlannerCase, ...] = (
    # Long cached prefixes with one new token each: few tokens, many rows.
    PlannerCase("", (4096,) * 48, (1,) * 48, 4, (4,)),
    PlannerCase("", (4095, 4097, 4096, 257) * 50, (1, 2, 1, 3) * 50, 7),
    # One prompt that is cut: anywhere in its window and groups.
    PlannerCase("", (3000,), (3000,), 3, (4,)),
    PlannerCase("", (3000, 5, 1029, 1), (512, 5, 1029, 1), 2, (0,)),
    PlannerCase("", (700, 130, 3), (300, 130, 3), 1),
    PlannerCase("", (7500, 7499), (512, 511), 7, (128,)),
)
_PROMPTS = (
    # Ratio, tokens of both prompts, shared ones, ids that agree again, first one alive: around groups, window, pages.
    (4, 420, 400, 256, False, False),
    (128, 304, 300, 60, True, True),
    (0, 304, 300, 257, False, True),
    (4, 304, 301, 255, True, False),
    (128, 300, 400, 259, False, False),
    (0, 304, 260, 128, True, False),
    (4, 257, 258, 257, False, True),
    (128, 256, 300, 256, False, False),
    (4, 304, 300, 1, True, True),
    (0, 260, 300, 127, False, False),
    (128, 304, 140, 129, False, True),
    (4, 130, 290, 0, True, False),
)
_LONG_PROMPTS = (
    (4, 900, 700, 512, False, False),
    (128, 900, 800, 511, True, True),
    (0, 700, 900, 513, False, False),
    (4, 1030, 1030, 768, True, False),
    (128, 1030, 900, 384, False, True),
)
PROMPT = {"laptop": 304, "gpu": 900}
FLAVOURS: tuple[tuple[Precision, bool], ...] = (("float32", False), ("float32", True), ("bfloat16", True))


def _formulas(names: tuple[str, ...]) -> Callable[[str, Size, int], Iterator[Case]]:
    def stream(surface: str, size: Size, seed: int) -> Iterator[Case]:
        for index in range(10**9):
            yield FormulaCase(surface, names[index % len(names)], seed * 1_000_003 + index // len(names))

    return stream


def _plans_of(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Curated batches, then drawn ones: many short requests, few long ones, budgets for 1 to 9 chunks."""
    for case in _CURATED:
        yield case.with_(surface=surface, seed=seed)
    for index in range(10**9):
        draws = Draws("planned_batches", size, seed, index)
        longest = draws.pick((40, 700, 5000, 60000 if size == "gpu" else 9000))
        lens = tuple(1 + draws.integer(longest) for _ in range(1 + draws.integer(draws.pick((1, 4, 60)))))
        new = tuple(min(n, draws.pick((1, 1, 1 + draws.integer(n), 127, 128, 129, n))) for n in lens)
        ratios = draws.pick(((0, 4, 128), (4,), (128,), (0,), (0, 128)))
        yield PlannerCase(surface, lens, new, 1 + draws.integer(9), ratios, seed * 1_000_003 + index)


def _prefixes(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Every edge at some ratio; the first sequence alive and gone; ids that agree again; then drawn prompts."""
    known = _PROMPTS if size == "laptop" else (*_PROMPTS[:3], *_LONG_PROMPTS, *_PROMPTS[3:])
    for index in range(10**9):
        draws = Draws("shared_prefixes", size, seed, index)
        if index < len(known):
            ratio, first, second, shared, again, alive = known[index]
        else:
            first, shared = 1 + draws.integer(PROMPT[size]), draws.integer(PROMPT[size])
            first, second = max(first, shared), max(shared, 1) + 1 + draws.integer(140)
            ratio, again, alive = (4, 128, 0)[index % 3], draws.chance(1, 2), draws.chance(1, 3)
        precision, quantised = FLAVOURS[(index + index // 3) % 3]
        yield PrefixCase(
            surface,
            ratio,
            first,
            second,
            shared,
            again=again,
            alive=alive,
            precision=precision,
            quantised=quantised,
            seed=seed * 1_000_003 + index,
        )


def _pieced(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Two prompts of three pages and a token that have nothing in common, at each ratio."""
    for index in range(10**9):
        tokens = 3 * 256 + 1
        yield PrefixCase(surface, (4, 128, 0)[index % 3], tokens, tokens, 0, seed=seed * 1_000_003 + index)


def _far(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Pages of each size, for pools in which they lie beyond 2^31 bytes."""
    for index in range(10**9):
        page = (64, 256, 2, 61)[index % 4]
        if surface == "SparseDecode":
            shape = ScopeShape(3 * page if page < 64 else 128, 64, page)
            yield AttentionCase(surface, 2 + index % 3, 1, 64, shape, data="marker", seed=seed * 1_000_003 + index)
        else:
            yield FormatCase(surface, 64, page, seed=seed * 1_000_003 + index)


def _slots(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Pools of which every slot is read by a query of its own."""
    for index in range(10**9):
        draws = Draws("slots", surface, size, seed, index)
        page = (64, 256, 2, 61, 16, 1)[index % 6]
        shape = ScopeShape(draws.pick((130, 257, 96)), 64, page)
        extra = ScopeShape(64, 64, draws.pick((2, 64, 53))) if surface == "SparseDecode" and index % 2 else None
        yield AttentionCase(
            surface,
            1,
            draws.pick((1, 3)),
            draws.pick((8, 8, 16) if size == "laptop" else (64, 128)),
            shape,
            extra,
            data="marker",
            seed=seed * 1_000_003 + index,
        )


def _combinations(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Head counts, list widths and numbers of query tokens at which engines dispatch to other kernels."""
    widths, heads, rows = (128, 192, 256, 512, 640, 1152, 64), (64, 128, 8, 16, 32), (1, 7, 64, 65)
    for index in range(10**9):
        width = widths[index % len(widths)]
        count = rows[(index + index // 7) % len(rows)]
        window = ScopeShape(max(width, 256), width, 64, ("mixed", "none", "full")[index % 3])
        h_q = heads[(index + index // 5) % len(heads)]
        number = seed * 1_000_003 + index
        if surface == "SparsePrefill":
            yield AttentionCase(surface, 1, count, h_q, window, seed=number)
        else:
            one = count if size == "gpu" else min(count, 7)
            second = ScopeShape(256, widths[(index // 7 + 2) % len(widths)], 64) if index % 2 else None
            yield AttentionCase(surface, one, 1 + index % 2, h_q, window, second, seed=number)


_BUDGETED = (
    # A prompt alone; a prefix and short ones; a chunk longer than the window behind one; several batches.
    "p0:300 d0",
    "p0:140+1:3 p0:9+1:70 d0+1",
    "p0:200 p0:150+1:130 p1:1 d1+0",
    "p0:64+1:5+2:129 p0:2+1:130+2:4 d2+0+1",
)
_PARTS = (2, 10**6, 7, 1)
"""Chunks that the largest batch is cut into; a million: one token at a time where the rows allow no more."""


def smallest_rows(schedule: str, ratio: int, parts: int) -> int:
    """Rows that hold 1 / ``parts`` of the largest prefill of a schedule, and each of its tokens alone."""
    held: dict[int, int] = {}
    most = 1
    for step in steps(schedule):
        pieces = []
        for sequence, count in step.parts:
            held[sequence] = held.get(sequence, 0) + count
            pieces.append((held[sequence], count))
        if step.kind == "prefill":
            alone = max(workspace_rows(ratio, [(end, 1)]) for end, _ in pieces)
            most = max(most, alone, -(-workspace_rows(ratio, pieces) // parts))
    return most


def _budgets(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Prefills that make do with half, a seventh or the least of the rows that they would take."""
    for index in range(10**9):
        draws = Draws("layer_budgets", size, seed, index)
        text = _BUDGETED[index % len(_BUDGETED)]
        if index >= 3 * len(_BUDGETED):
            text = f"p0:{1 + draws.integer(300)}+1:{1 + draws.integer(90)} p1:{1 + draws.integer(150)} p0:3+1:4 d0"
        ratio = (4, 128, 0)[(index + index // len(_BUDGETED)) % 3]
        precision, quantised = FLAVOURS[index % 3]
        rows = smallest_rows(text, ratio, _PARTS[(index + index // 4) % 4])
        yield LayerCase(
            surface,
            ratio,
            text,
            precision=precision,
            quantised=quantised,
            path="sparse",
            workspace_rows=rows,
            seed=seed * 1_000_003 + index,
        )


def _counts(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Every length from 1 on, through the window and through index_topk entries, on every path; one schedule in three
    is what any engine can do."""
    texts = (
        "p0:1 p0:134 d0 d0 p0:190 d0",
        "p0:135+1:3 d0 v0:4+1:2 k0:138 p0:190+1:1 d1+0",
        "p0:1 p0:126 d0 d0 d0 p0:130+1:258 d0+1 v1:8 k1:261 d1",
    )
    for index in range(10**9):
        precision, quantised = FLAVOURS[(index + 2) % 3]
        path = ("sparse", "paged")[(index + index // 2) % 2]
        yield LayerCase(
            surface,
            (4, 128, 0)[index % 3],
            texts[(index + index // 3) % 3],
            precision=precision,
            quantised=quantised,
            sinks="finite",
            path=path,  # type: ignore[arg-type]
            seed=seed * 1_000_003 + index,
        )


def _drafts(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Eight drafts, of which 0 to 8 are kept, again and again, from starts around groups, the window and pages."""
    starts = (126, 120, 252, 3, 127, 250, 124, 7)
    for index in range(10**9):
        held, words = starts[index % len(starts)], [f"p0:{starts[index % len(starts)]}+1:5"]
        for turn in range(4):
            kept = held + (index + 5 * turn) % 9
            words += [f"v0:8{'+1:2' if turn % 2 else ''}", f"k0:{kept}"]
            held = kept
        yield LayerCase(
            surface,
            (4, 0, 128)[(index + index // 8) % 3],
            " ".join([*words, "x d0+1"]),
            seed=seed * 1_000_003 + index,
        )


EXTENT_FAMILIES: dict[str, Callable[[str, Size, int], Iterator[Case]]] = {
    "formula_offsets": _formulas(OFFSETS),
    "formula_sizes": _formulas(SIZES),
    "planned_batches": _plans_of,
    "shared_prefixes": _prefixes,
    "pieced_prompts": _pieced,
    "kv_far": _far,
    "slots": _slots,
    "combinations": _combinations,
    "layer_budgets": _budgets,
    "layer_counts": _counts,
    "layer_drafts": _drafts,
}
"""Name of a family -> its stream for (surface, size, seed)."""
