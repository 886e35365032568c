"""Families of the sparse-prefill machinery and of graph metadata: curated cases, then seeded draws. Torch-free."""

from collections.abc import Callable, Iterator

from dsv4_conformance.cases.case import Case
from dsv4_conformance.cases.draws import Draws
from dsv4_conformance.cases.profiles import Size
from dsv4_conformance.cases.state_case import ChunkCase, ExtentCase, MetadataCase, WorkspaceCase

_LONGEST = {"laptop": 700, "gpu": 9000}
"""Tokens of a drawn request, at most."""
_NEAR = (1, 3, 4, 5, 127, 128, 129, 130, 255, 256, 257, 259, 260, 511, 512, 513)
"""Lengths around groups of 4 and 128, the window and the page."""
_ROWS = {"laptop": (4, 40), "gpu": (64, 4000)}
_BATCHES: tuple[tuple[tuple[int, ...], tuple[int, ...], int, int, bool], ...] = (
    ((300, 5, 260), (3, 5, 130), 2, 64, True),  # prefix, fresh, and a chunk longer than the window; holes
    ((129, 256, 512), (2, 256, 1), 1, 40, False),  # entries cut by topk; whole groups of 128
    ((1, 3, 4), (1, 3, 1), 3, 64, False),  # no entries, then the first
    ((130, 131), (130, 4), 0, 512, True),
    ((257,), (257,), 5, 16, False),  # one fresh prompt over a page boundary
    ((8, 128, 127, 384), (1, 1, 127, 128), 1, 1024, False),
)
"""Lengths, new tokens, rows of nobody, topk, holes."""
_STEPS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((130, 5, 700), (700, 128, 3)),  # longer and shorter
    ((300, 4, 257, 128), (256, 129, 0, 0)),  # rows that become padding
    ((1, 0, 0), (127, 512, 3)),  # rows that were padding
    ((1024, 1023), (1, 2)),
    ((3, 3), (1024, 897)),
)


def _workspaces(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Growth, reuse and equal sizes in turn."""
    curated: tuple[tuple[int, ...], ...] = ((3, 2, 7), (5, 5, 6, 4, 6), (1, 129, 128, 130, 2, 131), (1,))
    for rows in curated:
        yield WorkspaceCase(surface, rows, seed)
    low, high = _ROWS[size]
    index = 0
    while True:
        draws = Draws("workspaces", size, seed, index)
        rows = tuple(low + draws.integer(high) for _ in range(3 + draws.integer(5)))
        yield WorkspaceCase(surface, rows, seed * 1_000_003 + index)
        index += 1


def _extents(lengths: tuple[int, ...], ratio: int) -> Callable[[str, Size, int], Iterator[Case]]:
    """The seeds' lengths under a table captured for a million tokens, then drawn ones."""

    def stream(surface: str, size: Size, seed: int) -> Iterator[Case]:
        for seq_len in lengths:
            yield ExtentCase(surface, seq_len, seed=seed)
        index = 0
        while True:
            draws = Draws("extents", ratio, size, seed, index)
            seq_len = 1 + draws.integer(_LONGEST[size])
            yield ExtentCase(
                surface, seq_len, 1 + draws.integer(4), draws.pick((64, 1024, 4096)), seed * 1_000_003 + index
            )
            index += 1

    return stream


def _batch(draws: Draws, size: Size) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """1 to 5 requests: decode-like, fresh and chunked, with lengths near a boundary or anywhere."""
    lens, new = [], []
    for _ in range(1 + draws.integer(5)):
        seq_len = draws.pick(_NEAR) if draws.chance(1, 2) else 1 + draws.integer(_LONGEST[size])
        extend = draws.pick((1, 2, 1 + draws.integer(200), 127, 128, 129, seq_len if seq_len <= 300 else 4))
        lens.append(seq_len)
        new.append(min(extend, seq_len))
    return tuple(lens), tuple(new)


def _chunks(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Mixed prefix and extend lengths, rows of nobody, every topk."""
    for lens, new, padded, topk, holes in _BATCHES:
        yield ChunkCase(surface, lens, new, padded, topk, holes, seed=seed)
    index = 0
    while True:
        draws = Draws("chunks", size, seed, index)
        lens, new = _batch(draws, size)
        yield ChunkCase(
            surface,
            lens,
            new,
            draws.pick((0, 1, 1, 7)),
            draws.pick((64, 64, 8, 512, 1024)),
            draws.chance(1, 2),
            draws.pick((0, 1, 3)),
            seed * 1_000_003 + index,
        )
        index += 1


def _fresh_chunks(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Prompts without a prefix, the longest with at least one entry of ratio 128."""
    curated: tuple[tuple[int, ...], ...] = ((256, 130), (128,), (3, 300, 129))
    for lens in curated:
        yield ChunkCase(surface, lens, lens, seed=seed)
    index = 0
    while True:
        draws = Draws("fresh_chunks", size, seed, index)
        short = [draws.pick(_NEAR) for _ in range(draws.integer(3))]
        lens = (*short, 128 + draws.integer(300))
        yield ChunkCase(surface, lens, lens, draws.integer(3), seed=seed * 1_000_003 + index)
        index += 1


def _steps(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Two steps of one shape: rows longer, shorter, becoming and having been padding."""
    for before, after in _STEPS:
        yield MetadataCase(surface, before, after, seed=seed)
    rows = {"laptop": 6, "gpu": 96}[size]
    index = 0
    while True:
        draws = Draws("steps", size, seed, index)
        pages = draws.pick((2, 3, 33))
        before, after = (
            tuple(
                0 if draws.chance(1, 5) else min(draws.pick((*_NEAR, 1 + draws.integer(pages * 256))), pages * 256)
                for _ in range(rows)
            )
            for _ in range(2)
        )
        yield MetadataCase(surface, before, after, pages, draws.pick((64, 512)), seed * 1_000_003 + index)
        index += 1


STATE_FAMILIES: dict[str, Callable[[str, Size, int], Iterator[Case]]] = {
    "workspaces": _workspaces,
    "live_c4": _extents((260, 3, 256, 4, 255, 259), 4),
    "live_c128": _extents((256, 127, 128, 255), 128),
    "chunks": _chunks,
    "fresh_chunks": _fresh_chunks,
    "steps": _steps,
}
"""Name of a family -> its stream for (surface, size, seed)."""
