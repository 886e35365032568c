"""Attention of one query row and head over a multiset of keys, correctly rounded to float64 (spec §8)."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from operator import mul

from dsv4_conformance.golden.exact.numbers import GRID, agree, decide, exp_enclosure, ln_enclosure

Row = tuple[int, ...]


@dataclass(frozen=True)
class Keys:
    """The keys of one query row, one entry per occurrence: 512 integers each, in units of 2**-GRID."""

    rows: list[Row]

    @cached_property
    def columns(self) -> list[Row]:
        """Per dim, the values of all keys."""
        return list(zip(*self.rows, strict=True))

    @cached_property
    def weight(self) -> list[int]:
        """Per dim, the sum of the magnitudes."""
        return [sum(map(abs, column)) for column in self.columns]


@dataclass(frozen=True)
class Head:
    """A query row and head with at least one key: exact logits (one per key), their maximum, the sink (None: no sink,
    which -inf equals; ``math.inf``: all weight on the sink)."""

    keys: Keys
    logits: list[Fraction]
    sink: float | None

    @cached_property
    def top(self) -> Fraction:
        """The largest logit."""
        return max(self.logits)

    def weights(self, shift: Fraction, bits: int) -> list[tuple[int, int]]:
        """Enclosures of ``2**bits e**(s_j - shift)`` per key."""
        return [exp_enclosure(logit - shift, bits) for logit in self.logits]

    def total(self, weights: list[tuple[int, int]], shift: Fraction, bits: int) -> tuple[int, int]:
        """Enclosure of ``2**bits (L + e**sink) e**-shift``, the denominator of out; the sink is finite or absent."""
        terms = weights if self.sink is None else [*weights, exp_enclosure(Fraction(self.sink) - shift, bits)]
        return sum(low for low, _ in terms), sum(high for _, high in terms)


def head_of(q: Row, keys: Keys, sink: float | None, scale: float) -> Head:
    """``s_j = scale <q, k_j>`` without rounding; ``scale`` and ``sink`` are taken as the binary numbers they are."""
    exact = Fraction(scale) / (1 << 2 * GRID)
    logits = [exact * sum(map(mul, q, key)) for key in keys.rows]
    return Head(keys, logits, None if sink == -math.inf else sink)


@dataclass(frozen=True)
class Attended:
    """out (512), lse (natural, without the sink) and max_logits of one query row and head, float64."""

    out: list[float]
    lse: float
    max_logits: float


LONELY = Attended([0.0] * 512, math.inf, -math.inf)
"""A row without keys, whatever its sink."""


def attended(head: Head) -> Attended:
    """The answer, every number of it the float64 nearest to the true value."""
    out = [0.0] * 512 if head.sink == math.inf else decide(lambda bits: _out(head, bits))
    return Attended(out, decide(lambda bits: _lse(head, bits)), float(head.top))


def _out(head: Head, bits: int) -> list[float]:
    """``sum_j w_j k_j / total``: the exact numerator of the lower weights, and what the interval leaves open."""
    weights = head.weights(head.top, bits)
    low, high = head.total(weights, head.top, bits)
    lower = [w for w, _ in weights]
    width = max(h - w for w, h in weights)
    out = []
    for column, reach in zip(head.keys.columns, head.keys.weight, strict=True):
        near, slack = sum(map(mul, lower, column)), width * reach
        out.append(_quotient(near - slack, near + slack, low, high))
    return out


def _quotient(bottom: int, top: int, low: int, high: int) -> float:
    """The float64 that all of ``[bottom, top] / [low, high]``, in units of 2**-GRID, rounds to; else Undecided.

    Python rounds the quotient of two integers correctly. Values that cancel give 0 once the interval around 0 is
    narrower than the smallest float64.
    """
    smallest = bottom / ((high if bottom >= 0 else low) << GRID)
    largest = top / ((low if top >= 0 else high) << GRID)
    return agree(smallest, largest) + 0.0  # no -0


def _lse(head: Head, bits: int) -> float:
    weights = head.weights(head.top, bits)
    low, high = ln_enclosure(sum(w for w, _ in weights), sum(w for _, w in weights), bits)
    return agree(float(head.top + low), float(head.top + high))
