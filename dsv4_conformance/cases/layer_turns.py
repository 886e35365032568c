"""Families of whole-layer cases in which something comes second: an update, a rank, a graph, a fork, a ninth sequence.

Each schedule is the least that shows a mistake which longer ones of layer_families.py let pass. Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from dsv4_conformance.cases.case import Case
from dsv4_conformance.cases.layer_case import LayerCase
from dsv4_conformance.cases.profiles import Size
from dsv4_conformance.spec.weights import Precision

FLAVOURS: tuple[tuple[Precision, bool], ...] = (("float32", False), ("bfloat16", True), ("float32", True))
Path = Literal["auto", "paged", "sparse"]
_TEN = "+".join(f"{sequence}:{9 + sequence}" for sequence in range(10))
_TEN_DECODED = "+".join(map(str, range(10)))
_CROWDS: tuple[tuple[int, str, Path], ...] = (
    # More sequences in a step than a block of eight holds.
    (0, f"p{_TEN} d{_TEN_DECODED}", "paged"),
    # Requests of equal length, each with entries of its own.
    (4, "p0:40+1:40+2:40 p0:3+1:3+2:3", "sparse"),
    (4, f"p{_TEN} d{_TEN_DECODED}", "sparse"),
    (128, "p0:130+1:130 p0:2+1:2 d0+1", "sparse"),
    (128, f"p{_TEN} p9:120+0:120 d{_TEN_DECODED}", "paged"),
)
_FORKS = (
    # A fork of a fork at an earlier page, whose end no sequence of its own has computed.
    (4, "p0:512 f0>1:512 f1>2:256 p2:8 d2"),
    # A page whose last tokens were decoded.
    (4, "p0:510 d0 d0 f0>1:512 p1:8 d1"),
    (128, "p0:510 d0 d0 f0>1:512 f1>2:256 p1:8+2:130 d1+2"),
)
_REJECTIONS = (
    # Drafts that an eager step takes back between two replays; pages that go to another sequence then.
    (4, "p0:255+1:250 d0 d0+1 k0:255 p1:8 d0 d0 v0:4 k0:259 d0 d0"),
    (0, "p0:20 d0 v0:4 k0:22 d0 d0"),
    (128, "p0:126 d0 v0:4 k0:127 d0 d0"),
)
_RANKS = (("tiny", 2), ("tiny64", 4), ("tiny128", 2))


def _crowds(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Float32 on exact rows."""
    for index, (ratio, text, path) in enumerate(_CROWDS):
        yield LayerCase(surface, ratio, text, path=path, seed=seed * 1_000_003 + index)


def _each(schedules: tuple[tuple[int, str], ...]) -> Callable[[str, Size, int], Iterator[Case]]:
    """Each schedule in each flavour, exact ones first."""

    def stream(surface: str, size: Size, seed: int) -> Iterator[Case]:
        for index in range(len(schedules) * len(FLAVOURS)):
            turn, place = divmod(index, len(schedules))
            (ratio, text), (precision, quantised) = schedules[place], FLAVOURS[turn]
            yield LayerCase(
                surface, ratio, text, precision=precision, quantised=quantised, seed=seed * 1_000_003 + index
            )

    return stream


def _rank_graphs(surface: str, size: Size, seed: int) -> Iterator[Case]:
    """Prefills and decodes by turns; the case is that of rank 0, the test opens the last one too."""
    for index in range(9):
        geometry, tp = _RANKS[(index + index // 3) % 3]
        precision, quantised = FLAVOURS[(index // 3 + index) % 3]
        yield LayerCase(
            surface,
            (0, 4, 128)[index % 3],
            "p0:9+1:30 d0+1 p0:7+1:3 d0+1 p0:3 d1",
            geometry=geometry,
            precision=precision,
            quantised=quantised,
            tp=tp,
            seed=seed * 1_000_003 + index,
        )


LAYER_TURNS: dict[str, Callable[[str, Size, int], Iterator[Case]]] = {
    "layer_crowds": _crowds,
    "layer_forks": _each(_FORKS),
    "layer_rejections": _each(_REJECTIONS),
    "layer_rank_graphs": _rank_graphs,
}
