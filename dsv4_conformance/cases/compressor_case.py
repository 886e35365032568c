"""Cases of the Compressor and Indexer surfaces: one instance and one schedule, or one selection. Torch-free."""

from dataclasses import dataclass
from typing import Literal

from dsv4_conformance.cases.case import _Described

CompressorData = Literal["normal", "equal", "ape_peak", "gate_peak", "halves"]
"""normal: everything varies. equal: all scores of a channel are equal. ape_peak: in each channel the bias of one slot
outweighs the rest. gate_peak: in each window the gate of one token does. halves: at ratio 4 the A halves read the first
half of the hidden dims alone and the B halves the second."""

IndexerData = Literal["normal", "opposite"]
"""opposite: heads come in pairs whose queries differ in sign."""

Scores = Literal["normal", "rising", "falling", "equal", "clustered", "few", "zeros", "infinite", "not_numbers"]
"""Distinct; sorted; one value; all in one coarse bin; eight values; zeros of both signs; infinities; NaN among them."""


@dataclass(frozen=True)
class CompressorCase(_Described):
    """A compressor of ``ratio`` and ``dim`` led through ``schedule`` (cases/schedule.py) on tokens of ``hidden`` dims.

    Its steps are p, d and v (tokens), k, r, and x (state filled with NaN, while no sequence lives)."""

    surface: str
    ratio: int
    schedule: str
    dim: int = 512
    hidden: int = 64
    data: CompressorData = "normal"
    seed: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        data = "" if self.data == "normal" else f"-{self.data}"
        return f"C{self.ratio}-d{self.dim}-x{self.hidden}{data}-{short(self.schedule)}"


@dataclass(frozen=True)
class IndexerCase(_Described):
    """An indexer of ``geometry`` led through ``schedule``; ``quantised``: keys and queries as fp8; ``topk``: entries
    selected, 0 = the geometry's index_topk."""

    surface: str
    schedule: str
    geometry: str = "tiny"
    quantised: bool = False
    data: IndexerData = "normal"
    seed: int = 0
    topk: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        cache = ("-fp8" if self.quantised else "") + (f"-top{self.topk}" if self.topk else "")
        data = "" if self.data == "normal" else f"-{self.data}"
        return f"index-{self.geometry}{cache}{data}-{short(self.schedule)}"


@dataclass(frozen=True)
class TopkCase(_Described):
    """One call of select_topk: ``rows`` queries over ``width`` scores, of which each sees a prefix; the lengths are
    around ``topk``, or all at most ``topk`` where ``few``."""

    surface: str
    rows: int
    width: int
    topk: int
    scores: Scores = "normal"
    few: bool = False
    seed: int = 0

    def label(self) -> str:
        """Short readable form for test ids."""
        return f"topk{self.topk}-{self.rows}x{self.width}-{self.scores}{'-few' if self.few else ''}"


def short(schedule: str) -> str:
    """A schedule as part of an id: repeats counted, no spaces."""
    words = schedule.split()
    runs: list[tuple[str, int]] = []
    for word in words:
        if runs and runs[-1][0] == word:
            runs[-1] = (word, runs[-1][1] + 1)
        else:
            runs.append((word, 1))
    told = [word if times == 1 else f"{word}*{times}" for word, times in runs]
    return "_".join(told if len(told) <= 12 else [*told[:10], "..", told[-1]])
