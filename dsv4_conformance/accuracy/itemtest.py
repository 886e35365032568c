"""The test per question: with many repeats of few questions, one that broke is seen by itself.

On 30 questions a single broken one moves the mean by 3.3 points, and the spread of the differences by as much: no
test of the mean can ever call it. Sixteen repeats of that question alone can.
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from dsv4_conformance.accuracy.stats import Bools, benjamini_hochberg, fisher_fewer

LEAST_REPEATS = 8
"""Below this many repeats the test is not made: too few to tell a broken question from an unlucky one."""


def broken_questions(golden: ArrayLike, runs: int, candidate: ArrayLike, repeats: int, rate: float) -> Bools:
    """Which questions ``(..., n)`` pass less often than in the golden: Fisher's test each, Benjamini-Hochberg over all.

    ``rate``: the share of flags that may be false. All False with fewer than LEAST_REPEATS repeats on either side.
    """
    flags = benjamini_hochberg(fisher_fewer(candidate, repeats, golden, runs), rate)
    return flags if min(runs, repeats) >= LEAST_REPEATS else flags & False
