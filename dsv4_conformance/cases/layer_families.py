"""Families of whole-layer cases: schedules at the edges of windows, groups and pages, then seeded draws. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dsv4_conformance.cases.case import Case
from dsv4_conformance.cases.draws import Draws
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.profiles import Size
from dsv4_conformance.spec.weights import Precision

RATIOS = (4, 128, 0)
SCHEDULES = (
    # Prefixes, a chunk longer than the window and cut at its end, eight drafts rejected before the last token of a
    # group of 4, decode joined by a new sequence, reuse of freed pages, a number that comes back on other pages.
    "p0:70+1:5~3 p0:12+1:130 k1:130 d0+1~1 v0:8+1:3 k0:83 x d0+1 r1 p2:3+1:36 d1+0",
    # A prefill cut across a group of 128, eight drafts rejected before its last token, an idle step, all pages in use.
    "p0:130+1:255 k0:126 d0 v0:8+1:4 k0:127 k1:256 v0:3+1:3 k0:128 d0+1 i d0~2 p0:130",
    # Every chunk ends inside a group of 4 or next to its edge; the window fills up; the last slot of all pools is in
    # use while tokens that complete nothing, and rows of nobody, have none to write to.
    "p0:1+1:252 p0:2 p0:1 p0:124 d0 d0 p0:120+1:4 d0~2 d0 d0",
    # More entries than index_topk (64 of the tiny model), a page whose last token is decoded, a page given back by a
    # rejection, a prefix that is shared, a sequence that starts on the pages of a released one.
    "p0:300+1:3~3 x p0:1+1:252 d0+1~1 v0:4+1:3 k0:303 k1:256 d0+1 f1>2:256 r0 x p2:5+3:60 d2+1",
)
PREFILLS = (
    # Two batches of as many rows, with other lengths.
    "p0:70+1:5 p0:9+1:66 p0:9+1:130+2:1",
    "p0:300 p0:3+1:128 p0:129+1:2",
    "p0:127+1:4+2:259 p0:2+1:1+2:1",
    "p0:1 p0:600",
)
DECODES = (
    # Captured with rows of nobody, replayed longer, shorter, with fewer rows while another sequence takes the pages of
    # the row that is gone, then with other sequences; one holds more entries than index_topk.
    "p0:130+1:3+2:262 d0+1+2 d1 d2+0 r0 p3:140 d1 d3+1 d3 d1+2+3",
    "p0:127+1:511 d0+1 d0+1 k0:126 p0:1 d0 d1+0",
    "p0:5 d0 d0 d0 p1:300 d1+0 d1 r1 p1:1 d1+0",
)
PREFILL_REPLAYS = (
    # Chunks that end around groups of 128 and around a page, 65 entries of 4 in the end, a prefix that is shared,
    # an entry whose window was begun before a replay of two tokens.
    "p0:127 p0:2+1:3 p0:126 p0:1+1:125 p0:5+1:1 v0:3 k0:262 p0:2 f0>2:256 p2:5 p0:5",
    # Captured with rows of nobody, replayed with more and fewer rows, other sequences, freed pages, an eager step.
    "p0:120+1:5 p0:9+1:66 p1:1 d0+1 r0 p2:129 p2:3+1:2",
)
PREFIXES = (
    # The source has gone on far beyond the cut, and is gone before the target goes on.
    "p0:300 f0>1:256 r0 x p1:5 d1",
    "p0:256 f0>1:256 d0+1 d1+0 p1:3 v1:2 d0",
    "p0:513+2:3 f0>1:512 f0>3:256 x p1:2+3:129+0:1 d1+3+2",
)
STEPS = (
    # At once, in odd chunks, and token by token: through the window, through more entries than index_topk (64).
    "p0:300",
    "p0:1 p0:2 p0:125 p0:1 p0:130 p0:3 p0:64",
    "p0:1" + " d0" * 134,
    "p0:250 p0:7 p0:1" + " d0" * 9,
    # Sequences of different lengths that start together: in step from then on, then each at its own pace.
    "p0:70+1:5+2:131 d0+1+2 d0+1+2 p0:4+1:4+2:4",
    "p0:259+1:3 p1:130+0:2 d1 d0+1 p2:66+0:5",
)
"""Neither take-backs nor shared pages: what an engine with the simplest cache can do."""
DRAWN_TOKENS = {"laptop": 420, "gpu": 1500}
_FLAVOURS: tuple[tuple[Precision, bool], ...] = (("float32", False), ("bfloat16", True), ("float32", True))
"""Exact; what a kernel runs; what shows a fault of the cache without a kernel's rounding."""


def draw_schedule(draws: Draws, budget: int) -> str:
    """A random schedule of about ``budget`` tokens: batches that sequences join and leave, drafts kept in part."""
    lengths: dict[int, int] = {}
    words: list[str] = []
    left = budget
    while left > 0:
        kind = draws.pick(("p", "p", "d", "d", "v", "r", "x")) if lengths else "p"
        padding = f"~{1 + draws.integer(3)}" if draws.chance(1, 3) else ""
        chosen = sorted(s for s in lengths if draws.chance(2, 3)) or sorted(lengths)[:1]
        if kind == "p":
            if len(lengths) < 4 and (not lengths or draws.chance(1, 2)):
                chosen = sorted({*chosen, next(s for s in range(4) if s not in lengths)})
            counts = {s: min(left, draws.pick((1, 3, 4, 5, 64, 127, 128, 129, 1 + draws.integer(200)))) for s in chosen}
            words.append("p" + "+".join(f"{s}:{n}" for s, n in counts.items()) + padding)
        elif kind == "d":
            counts = dict.fromkeys(chosen, 1)
            words.append("d" + "+".join(map(str, chosen)) + padding)
        elif kind == "v":
            counts = {s: 2 + draws.integer(4) for s in chosen}
            words.append("v" + "+".join(f"{s}:{n}" for s, n in counts.items()) + padding)
            kept = {s: lengths[s] + draws.integer(n + 1) for s, n in counts.items()}
            words += [f"k{s}:{n}" for s, n in kept.items() if n < lengths[s] + counts[s]]
            counts = {s: kept[s] - lengths[s] for s in chosen}
            left -= 4
        elif kind == "r":
            words.append(f"r{chosen[0]}")
            del lengths[chosen[0]]
            continue
        else:
            words.append("x")
            left -= 1
            continue
        for sequence, count in counts.items():
            lengths[sequence] = lengths.get(sequence, 0) + count
            left -= count
    return " ".join(words)


def _varied(schedules: tuple[str, ...], name: str) -> Callable[[str, Size, int], Iterator[Case]]:
    """Each schedule at each ratio, then drawn ones; the first cases differ in schedule, ratio, flavour and path."""

    def stream(surface: str, size: Size, seed: int) -> Iterator[Case]:
        flavours = _FLAVOURS if size == "laptop" else (_FLAVOURS[1], _FLAVOURS[0], _FLAVOURS[1], _FLAVOURS[2])
        index = 0
        while True:
            turn, place = divmod(index, len(schedules))
            known = turn < len(RATIOS)
            text = schedules[place] if known else draw_schedule(Draws(name, size, seed, index), DRAWN_TOKENS[size])
            precision, quantised = flavours[(place + place // 3 - turn) % len(flavours)]
            yield LayerCase(
                surface,
                RATIOS[(place + turn) % len(RATIOS)],
                text,
                precision=precision,
                quantised=quantised,
                path=("sparse", "paged")[(place + turn // 2) % 2],
                seed=seed * 1_000_003 + index,
            )
            index += 1

    return stream


def _exact(schedules: tuple[str, ...]) -> Callable[[str, Size, int], Iterator[Case]]:
    """Float32 and exact rows, each ratio in turn: for relations between two runs."""

    def stream(surface: str, size: Size, seed: int) -> Iterator[Case]:
        for case in _varied(schedules, "exact")(surface, size, seed):
            yield case.with_(precision="float32", quantised=False)

    return stream


def _of_ratio(ratio: int, schedules: tuple[str, ...]) -> Callable[[str, Size, int], Iterator[Case]]:
    def stream(surface: str, size: Size, seed: int) -> Iterator[Case]:
        for index, text in enumerate(schedules):
            precision, quantised = _FLAVOURS[index % 3]
            yield LayerCase(surface, ratio, text, precision=precision, quantised=quantised, seed=seed + index)

    return stream


def _steps(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Each of STEPS at each ratio, float32 and exact."""
    for index in range(len(STEPS) * len(RATIOS)):
        turn, place = divmod(index, len(STEPS))
        yield LayerCase(surface, RATIOS[(place + turn) % len(RATIOS)], STEPS[place], seed=seed * 1_000_003 + index)


def _first_tokens(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Sequences of one token: each sees itself alone."""
    for index in range(12):
        yield LayerCase(surface, RATIOS[index % 3], "p0:1+1:1+2:1 p3:1", seed=seed * 1_000_003 + index)


def _long(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """What takes long to come about: a 5th page, groups made of decoded tokens alone, sequences that idle, many at
    once, numbers with gaps, drafts behind the first pages. Float32 on exact rows."""
    decodes = " ".join(["d0"] * 140)
    shapes = (
        (128, f"p0:120+1:5 {decodes} d1"),
        (4, "p0:1030+1:3 d0 p0:130 v0:3 d1+0"),
        (0, "p0:5+1:5+2:5+3:5+4:5+5:5 d5+0+4+1+3+2 r2 p6:130 d6+5+4+3+1+0"),
        (4, f"p7:70+100:5 {' '.join(['d100'] * 13)} d7+100 v7:4 k7:72 d7"),
        (128, "p0:1030 d0 p0:130 d0"),
    )
    for index, (ratio, text) in enumerate(shapes):
        yield LayerCase(surface, ratio, text, seed=seed * 1_000_003 + index)


def _layer_ranks(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Rank sets of 64 and 128 heads: tp 2, 4, 8 and 16; the case is that of rank 0, the test opens the others."""
    shapes = (("tiny", 2), ("tiny64", 8), ("tiny128", 2), ("tiny64", 2), ("tiny128", 16), ("tiny64", 4))
    for index in range(3 * len(shapes)):
        geometry, tp = shapes[index % len(shapes)]
        precision, quantised = _FLAVOURS[index % 3]
        yield LayerCase(
            surface,
            RATIOS[index % 3],
            "p0:9+1:130 d0+1 p0:3+1:2",
            geometry=geometry,
            precision=precision,
            quantised=quantised,
            tp=tp,
            path=("sparse", "paged")[index // 3 % 2],
            seed=seed + index,
        )


LAYER_FAMILIES: dict[str, Callable[[str, Size, int], Iterator[Case]]] = {
    "layer_schedules": _varied(SCHEDULES, "layer_schedules"),
    "layer_steps": _steps,
    "layer_prefills": _varied(PREFILLS, "layer_prefills"),
    "layer_decodes": _varied(DECODES, "layer_decodes"),
    "layer_prefixes": _varied(PREFIXES, "layer_prefixes"),
    "layer_prefill_replays": _varied(PREFILL_REPLAYS, "layer_prefill_replays"),
    "layer_exact": _exact(("p0:200+1:3 d0+1", "p0:131+1:4 p0:69+2:130 v0:2+1:3 d0", "p0:259+1:128 p0:5+1:2")),
    "layer_first_tokens": _first_tokens,
    "layer_long": _long,
    "layer_window": _of_ratio(0, ("p0:300 d0", "p0:129 p0:130 d0", "p0:200 v0:4")),
    "layer_indexed": _of_ratio(4, ("p0:255 d0", "p0:120 p0:90 v0:3", "p0:30+1:250 d0+1")),
    "layer_ranks": _layer_ranks,
}
