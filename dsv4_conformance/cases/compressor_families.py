"""Families of compressor, indexer and selection cases. Torch-free.

Schedules start and stop at every residue of the ratio, in one call and token by token, around pages of 256 tokens and
around n(t) = index_topk: where public implementations went wrong (spec §6, §7).
"""

from collections.abc import Callable, Iterator

from dsv4_conformance.cases.case import Case
from dsv4_conformance.cases.compressor_case import CompressorCase, CompressorData, IndexerCase, Scores, TopkCase
from dsv4_conformance.cases.draws import Draws
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.profiles import Size
from dsv4_conformance.spec.geometry import GEOMETRIES

Schedule = Callable[[int, Draws], str]
Curated = dict[int, tuple[str, ...]]

KINDS = ((4, 512), (128, 512), (4, 128))
"""Ratio and dim of the three compressors: of C4 layers, of C128 layers, of the indexer."""

HIDDEN = {"laptop": (64, 64, 96, 256), "gpu": (4096, 7168, 4096, 4128)}

DRAFTS = 8
"""Tokens of the longest verify step, as many as an adapter can take back by default."""

# The first schedules of a family, per ratio; draws follow.
CUTS: Curated = {
    4: (
        "d0 " * 13,
        "p0:5 " + "d0 " * 8,
        "p0:23",
        "p0:1 p0:5 p0:5 p0:5 p0:5 p0:5",
        "p0:250 " + "d0 " * 12,
        "p0:4 p0:4 p0:3 p0:1 p0:8 p0:2",
        "p0:3 p0:1 p0:7 p0:254 p0:7",
    ),
    128: (
        "p0:127 d0 d0 p0:126 d0 d0",
        "p0:300",
        "p0:126 p0:131 p0:130",
        "p0:128 p0:128",
        "p0:100 p0:27 d0 p0:1 p0:128",
        "p0:5 p0:250 d0 p0:600",
        "p0:1 p0:255 p0:2 p0:131",
    ),
}
COUNTS: Curated = {
    4: ("d0 " * 10, "p0:3", "p0:7 k0:3 d0 d0 p0:6 k0:8 d0 d0 d0 d0", "p0:4 p0:1 p0:2 d0 p0:9", "p0:2 r0 p0:3 d0 d0"),
    128: (
        "p0:120 " + "d0 " * 16,
        "p0:127",
        "p0:130 k0:126 d0 d0 d0",
        "p0:255 d0 d0 p0:127 d0",
        "p0:127 r0 p0:127 d0",
    ),
}
TOGETHER: Curated = {
    4: (
        "p0:5+1:9+2:130",
        "p0:12+1:23 p1:1+0:3 d0+1",
        "p0:3+1:2 d1+0 d0+1 d1 d0 p2:6+0:5+1:1 d0+1+2",
        "p2:1 p1:2+2:3 p0:7+2:1+1:6 d2+0",
    ),
    128: (
        "p0:5+1:9+2:130",
        "p0:127+1:126 d0+1 d1+0 d0+1",
        "p0:250+1:129 p1:127+0:6 d1+0",
        "p1:300 p0:127+1:83 d1+0",
    ),
}
STALE: Curated = {
    4: ("x p0:9", "p0:14 r0 x p0:6 d0 d0", "x p0:3 d0 p1:5+0:3 r1 r0 x p1:11 d1", "x d0 d0 d0 d0 d0 r0 x d0 d0 d0 d0"),
    128: ("x p0:128", "p0:200 r0 x p0:127 d0", "x p0:130+1:100 r0 r1 x p1:129 p0:128", "x p0:256 r0 x p0:100 p0:30"),
}
REUSED: Curated = {
    4: ("p0:7 r0 p0:9", "p0:6 r0 d0 d0 d0 d0 d0", "p0:7+1:6 r0 p0:9 d1+0 r1 p1:4 d1", "p0:5 r0 p0:3 r0 p0:8 d0"),
    128: ("p0:200 r0 p0:128", "p0:255 r0 p0:127 d0", "p0:130+1:60 r0 p0:129 p1:70 r1 p1:128", "p0:127 r0 p0:256"),
}


def _turns(
    name: str, surface: str, size: Size, seed: int, curated: Curated, drawn: Schedule
) -> Iterator[CompressorCase]:
    """The three compressors in turn: each with its ratio's curated schedules, then with drawn ones."""
    index = 0
    while True:
        ratio, dim = KINDS[index % 3]
        turn = index // 3
        draws = Draws(name, surface, size, seed, index)
        known = curated[ratio]
        # The index compressor starts elsewhere in the list, so that few cases show more schedules.
        place = turn + (len(known) // 2 if dim == 128 else 0)
        schedule = known[place % len(known)] if turn < len(known) else drawn(ratio, draws)
        hidden = HIDDEN[size][turn % 4]
        number = seed * 1_000_003 + index
        yield CompressorCase(surface, ratio, " ".join(schedule.split()), dim, hidden, seed=number)
        index += 1


def _chunk(ratio: int, draws: Draws) -> int:
    sizes = (1, 1, 2, 3, 4, 5, 7, 8, 9, 11, 16, 251) if ratio == 4 else (1, 2, 3, 7, 31, 64, 100, 127, 128, 129, 200)
    return draws.pick(sizes)


def _drawn_cuts(ratio: int, draws: Draws) -> str:
    return " ".join(f"p0:{_chunk(ratio, draws)}" for _ in range(4 + draws.integer(6)))


def _drawn_counts(ratio: int, draws: Draws) -> str:
    start = draws.integer(ratio) + 1
    return f"p0:{start} " + "d0 " * 5 + f"k0:{start + draws.integer(5)} " + "d0 " * 5


def _drawn_together(ratio: int, draws: Draws) -> str:
    """Every step takes some of three sequences, in any order."""
    steps = []
    for _ in range(3 + draws.integer(4)):
        order = draws.pick(((0, 1, 2), (2, 0, 1), (1, 0), (2, 1), (0,), (1, 2, 0)))
        steps.append("p" + "+".join(f"{sequence}:{_chunk(ratio, draws)}" for sequence in order))
    return " ".join(steps)


def _drawn_lives(between: str) -> Schedule:
    """Two lives of sequence 0 with ``between`` after the first."""

    def drawn(ratio: int, draws: Draws) -> str:
        first = " ".join(f"p0:{_chunk(ratio, draws)}" for _ in range(1 + draws.integer(3)))
        second = f"p0:{draws.integer(ratio) + 1} p0:{ratio} d0"
        return f"{first} r0 {between} {second}"

    return drawn


def _verified(start: int, sequences: tuple[int, ...], rounds: int, draws: Draws) -> str:
    """Prefill, then verify steps of which any number of drafts is kept, none and all included, then decode."""
    lengths = {sequence: start + sequence for sequence in sequences}
    words = [f"p{sequence}:{length}" for sequence, length in lengths.items() if length]
    for _ in range(rounds):
        drafts = {sequence: draws.pick((1, 2, 3, 4, 5, 7, DRAFTS)) for sequence in sequences}
        words.append("v" + "+".join(f"{sequence}:{count}" for sequence, count in drafts.items()))
        for sequence, count in drafts.items():
            lengths[sequence] += draws.integer(count + 1)
            words.append(f"k{sequence}:{lengths[sequence]}")
    return " ".join([*words, *["d" + "+".join(map(str, sequences))] * 5])


def _cuts(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """One sequence, cut into calls in every way."""
    yield from _turns("cuts", surface, size, seed, CUTS, _drawn_cuts)


def _counts(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Around the tokens that finish an entry."""
    yield from _turns("entry_counts", surface, size, seed, COUNTS, _drawn_counts)


def _drafts(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Verify steps from every residue, with all numbers of accepted drafts; two sequences in every third."""
    index = 0
    while True:
        ratio, dim = KINDS[index % 3]
        turn = index // 3
        draws = Draws("drafts", surface, size, seed, index)
        start = turn % 9 if ratio == 4 else (121, 126, 127, 128, 250, 0)[turn % 6]
        together = (0, 1) if turn % 3 == 1 else (0,)
        schedule = _verified(start, together, 6 if ratio == 4 else 4, draws)
        yield CompressorCase(surface, ratio, schedule, dim, HIDDEN[size][turn % 4], seed=seed * 1_000_003 + index)
        index += 1


def _together(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Several sequences in one call, at different places of their windows."""
    yield from _turns("together", surface, size, seed, TOGETHER, _drawn_together)


def _stale(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """State filled with NaN before sequences start."""
    yield from _turns("stale_state", surface, size, seed, STALE, _drawn_lives("x"))


def _reused(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Sequences that start in the state of released ones."""
    yield from _turns("reused_state", surface, size, seed, REUSED, _drawn_lives(""))


def _pooling(data: tuple[CompressorData, ...], ratios: tuple[int, ...] = (4, 128)) -> Callable[..., Iterator[Case]]:
    """One sequence in one call or in chunks, for relations between values."""
    schedules = {
        4: ("p0:23", "p0:6 p0:9 d0 p0:7", "p0:2 p0:1 p0:16", "p0:258 p0:5"),
        128: ("p0:300", "p0:100 p0:171 d0", "p0:127 p0:5 p0:260", "p0:129 p0:127"),
    }
    kinds = tuple(kind for kind in KINDS if kind[0] in ratios)

    def family(surface: str, size: Size, seed: int) -> Iterator[Case]:
        index = 0
        while True:
            ratio, dim = kinds[index % len(kinds)]
            turn = index // len(kinds)
            hidden = HIDDEN[size][turn % 4]
            kind, number = data[(index % len(kinds) + turn) % len(data)], seed * 1_000_003 + index
            yield CompressorCase(surface, ratio, schedules[ratio][turn % 4], dim, hidden, kind, number)
            index += 1

    return family


def _prefixes(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Sequences of a layer that start from the first pages of another one."""
    tails = ("p1:9 d1 d0+1 d0+1", "r0 x d1 d1 d1 d1 d1", "p1:3 f0>2:256 p2:6 d1+2 d0+1+2 d0+1+2", "p1:131 d1+0")
    index = 0
    while True:
        draws = Draws("compressed_prefixes", surface, size, seed, index)
        prefix = 256 * (1 + (index // 2) % 2)
        head = prefix + draws.pick((0, 1, 2, 3, 44, 130))
        cut = draws.pick((1, 100, 255, head)) if head > 256 else head
        schedule = f"p0:{cut} " + (f"p0:{head - cut} " if head > cut else "") + f"f0>1:{prefix} "
        yield LayerCase(
            surface,
            (4, 128)[index % 2],
            schedule + tails[index // 2 % 4],
            quantised=index % 3 == 2,
            seed=seed * 1_000_003 + index,
        )
        index += 1


def _index_schedules(topk: int) -> tuple[str, ...]:
    """Around the token from which on there are more entries than are selected."""
    full = 4 * topk
    return (
        f"p0:{full - 2} " + "d0 " * 8,
        f"p0:{full + 37}",
        f"p0:{full + 6}+1:{full + 21} d0+1 d1 p1:3+0:6",
        f"p0:{full - 9} v0:7 k0:{full - 5} v0:8 k0:{full + 1} v0:5 k0:{full + 6} d0 d0 d0 d0",
        f"p0:101 p0:{full - 98} p0:5 d0 p0:30",
        f"p0:{full + 11} r0 p0:{full + 18} d0",
        f"p1:{full + 9} p0:{full + 5}+1:2 r1 d0 p1:{full + 4}",
    )


def _indexed(early: bool = False, opposite: bool = False) -> Callable[..., Iterator[Case]]:
    """Schedules of the indexer: past index_topk entries, or where all are selected."""

    def family(surface: str, size: Size, seed: int) -> Iterator[Case]:
        name = "tiny" if size == "laptop" else "flash"
        topk = GEOMETRIES[name].index_topk
        known = (
            ("d0 " * 9, f"p0:{4 * topk + 3}", "p0:30 d0 d0 p0:7+1:5 d0+1", f"p0:{2 * topk} v0:8 k0:{2 * topk + 3} d0")
            if early
            else _index_schedules(topk)
        )
        for index in range(10**9):
            draws = Draws("index", early, surface, size, seed, index)
            shift = draws.integer(40) if index >= 2 * len(known) else 0
            schedule = known[index % len(known)] if not shift else f"p0:{4 * topk * (not early) + shift} d0 d0 p0:9 d0"
            yield IndexerCase(
                surface,
                " ".join(schedule.split()),
                name,
                quantised=bool((index + index // len(known)) % 2),
                data="opposite" if opposite else "normal",
                seed=seed * 1_000_003 + index,
            )

    return family


def _selection(scores: tuple[Scores, ...], few: bool = False) -> Callable[..., Iterator[Case]]:
    """Score rows of the kinds named, over widths on both sides of topk and of the sizes of candidate buffers."""

    def family(surface: str, size: Size, seed: int) -> Iterator[Case]:
        shapes = [(12, 300, 64), (9, 513, 512), (7, 5000, 512), (5, 1025, 1024), (16, 129, 64), (3, 63, 64)]
        shapes += [(33, 16385, 512), (64, 8193, 1024)] if size == "gpu" else [(4, 16385, 512), (6, 2049, 1024)]
        for index in range(10**9):
            rows, width, topk = shapes[index % len(shapes)]
            kind = scores[(index + index // len(shapes)) % len(scores)]
            yield TopkCase(surface, rows, width, topk, kind, few, seed * 1_000_003 + index)

    return family


COMPRESSOR_FAMILIES: dict[str, Callable[[str, Size, int], Iterator[Case]]] = {
    "cut_streams": _cuts,
    "entry_counts": _counts,
    "rejected_drafts": _drafts,
    "sequences_together": _together,
    "stale_state": _stale,
    "reused_state": _reused,
    "pooling": _pooling(("normal",)),
    "pooling_halves": _pooling(("halves",), (4,)),
    "pooling_equal": _pooling(("equal",)),
    "pooling_peaks": _pooling(("ape_peak", "gate_peak")),
    "compressed_prefixes": _prefixes,
    "index_streams": _indexed(),
    "index_early": _indexed(early=True),
    "index_opposite": _indexed(opposite=True),
    "selection": _selection(("normal", "equal", "clustered", "few", "rising", "zeros", "falling", "infinite")),
    "selection_distinct": _selection(("normal", "rising", "falling")),
    "selection_few": _selection(("not_numbers", "normal", "infinite"), few=True),
    "selection_not_numbers": _selection(("not_numbers",)),
}
