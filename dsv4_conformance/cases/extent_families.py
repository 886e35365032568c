"""Families of formulas, plans and shared prefixes: curated cases at every edge, then seeded draws. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dsv4_conformance.cases.case import Case
from dsv4_conformance.cases.draws import Draws
from dsv4_conformance.cases.extent_case import FormulaCase, PlannerCase, PrefixCase
from dsv4_conformance.cases.profiles import Size
from dsv4_conformance.spec.formulas import OFFSETS, SIZES

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
_SHARED = {
    "laptop": (256, 257, 255, 260, 128, 300, 129, 1, 259, 127, 4, 0),
    "gpu": (256, 512, 255, 257, 511, 128, 300, 129, 513, 384, 1, 260, 768, 4, 0),
}
"""Tokens in common, around groups, the window and pages."""
PROMPT = {"laptop": 304, "gpu": 900}
FLAVOURS = (("float32", False), ("float32", True), ("bfloat16", True))


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
    """Every number of shared tokens at every ratio; the first sequence alive and gone; ids that agree again."""
    for index in range(10**9):
        draws = Draws("shared_prefixes", size, seed, index)
        shares, prompt = _SHARED[size], PROMPT[size]
        known = index < 3 * len(shares)
        shared = shares[index % len(shares)] if known else draws.integer(prompt)
        second = max(shared, 1) + (1 + draws.integer(140))
        precision, quantised = FLAVOURS[(index + index // 3) % 3]
        yield PrefixCase(
            surface,
            (4, 128, 0)[(index + index // len(shares)) % 3],
            max(prompt if known else 1 + draws.integer(prompt), shared),
            max(second, 300) if index % 2 else second,
            shared,
            again=draws.chance(1, 2),
            alive=index % 3 == 1,
            precision=precision,  # type: ignore[arg-type]
            quantised=quantised,
            seed=seed * 1_000_003 + index,
        )


EXTENT_FAMILIES: dict[str, Callable[[str, Size, int], Iterator[Case]]] = {
    "formula_offsets": _formulas(OFFSETS),
    "formula_sizes": _formulas(SIZES),
    "planned_batches": _plans_of,
    "shared_prefixes": _prefixes,
}
"""Name of a family -> its stream for (surface, size, seed)."""
