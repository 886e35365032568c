"""What times taken in alternate rounds say about a ratio: its median, how sure that is, and on which side of a limit.

Nothing here is an absolute time: clocks, other tenants and power caps move those, and both ways alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median, quantiles
from typing import Literal

CONFIDENCE = 0.99
NOISY = 0.25
"""Spread (distance of the quartiles over the median) above which nothing is said about a ratio."""


@dataclass(frozen=True)
class Ratio:
    """A ratio of two ways' times over ``rounds``: median, a 99 % interval of it, and the spread of single rounds."""

    median: float
    low: float
    high: float
    spread: float
    rounds: int

    def against(self, limit: float) -> Literal["within", "above", "open"]:
        """Where the ratio lies; open: the interval holds ``limit``, or rounds differ too much."""
        if self.spread > NOISY:
            return "open"
        if self.high <= limit:
            return "within"
        return "above" if self.low > limit else "open"

    def text(self) -> str:
        """``0.62 (99 % interval 0.61 to 0.63, 31 rounds)``."""
        return f"{self.median:.3g} (99 % interval {self.low:.3g} to {self.high:.3g}, {self.rounds} rounds)"


def ratio_of(ours: Sequence[float], other: Sequence[float]) -> Ratio:
    """The ratio ours / other of times in one unit, taken in the same rounds. Raises ValueError for fewer than 8."""
    ratios = sorted(a / b for a, b in zip(ours, other, strict=True))
    skip = _skipped(len(ratios))
    lower, _, upper = quantiles(ratios, n=4)
    middle = median(ratios)
    return Ratio(middle, ratios[skip], ratios[-1 - skip], (upper - lower) / middle, len(ratios))


def _skipped(rounds: int) -> int:
    """How many of the smallest (and largest) ratios lie outside the interval: order statistics, no distribution
    assumed. The chance that the true median lies outside is twice that of ``skip`` or fewer heads in ``rounds``."""
    skip, below = -1, 0.0
    while True:
        below += comb(rounds, skip + 1) / 2**rounds
        if 2 * below > 1 - CONFIDENCE:
            break
        skip += 1
    if skip < 0:
        raise ValueError(f"{rounds} rounds are too few for an interval of {CONFIDENCE:.0%}; take 8 or more.")
    return skip
