"""Error budgets of a golden, from the rules of docs/semantics.md §20, the same on every machine.

The suites take the budget of out from a float32 reference on the device at hand, whose last bits depend on the order
of its sums. Here the reference is the ideal one: it rounds P and out to bf16, where the kernel contract rounds, and
nothing else, so that only the contract's error remains.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import mul

from dsv4_conformance.golden.exact.attention import Attended, Head
from dsv4_conformance.golden.exact.numbers import GRID, agree, decide, rounded

BF16_BITS, BF16_FINEST = 8, -133


@dataclass(frozen=True)
class Rules:
    """Phases at which P is rounded, and the factor on the reference's error (numerics/)."""

    phases: Sequence[float]
    factor: float


@dataclass(frozen=True)
class Allowed:
    """Allowed absolute errors of out (any of its 512 values), lse and max_logits; 0 means exact."""

    out: float
    lse: float
    max_logits: float


EXACT = Allowed(0.0, 0.0, 0.0)
"""A row without keys has only special values and zeros."""


def allowed(head: Head, answer: Attended, rules: Rules) -> Allowed:
    """The budgets of one query row and head."""
    reach = max(1.0, *(abs(float(logit)) for logit in head.logits))
    return Allowed(
        _out(head, answer, rules),
        _logit(answer.lse, reach, len(head.logits)),
        _logit(answer.max_logits, reach, len(head.logits)),
    )


def _logit(value: float, reach: float, keys: int) -> float:
    """``2**-24 (4 sqrt(512) max(1, max |logit|) + 8 + sqrt(keys) + 2 |value|)``; IEEE operations, in this order."""
    spread = 4 * math.sqrt(512) * reach + 8 + math.sqrt(keys)
    return 2.0**-24 * (spread + 2 * abs(value))


def _out(head: Head, answer: Attended, rules: Rules) -> float:
    """``factor`` x the worst error of the reference, half a bf16 ulp at least, + one ulp at the row's largest value."""
    if head.sink == math.inf:
        return 0.0
    error = max(_error(head, answer, Fraction(phase)) for phase in rules.phases)
    largest = max(map(abs, answer.out))
    ulp = math.ldexp(1.0, max(math.frexp(largest)[1] - 1, -126) - 7) if largest else 0.0
    return rules.factor * max(error, ulp / 2) + ulp


def _error(head: Head, answer: Attended, phase: Fraction) -> float:
    reference = decide(lambda bits: _reference(head, phase, bits))
    return max(abs(near - right) for near, right in zip(reference, answer.out, strict=True))


def _reference(head: Head, phase: Fraction, bits: int) -> list[float]:
    """out in bf16 with P = ``e**(s_j - top - phase)`` rounded to bf16 before P V; sums and the quotient unrounded."""
    shift = head.top + phase
    weights = head.weights(shift, bits)
    low, high = head.total(weights, shift, bits)
    p = [agree(_bf16(below, 1 << bits), _bf16(above, 1 << bits)) for below, above in weights]
    unit = GRID - BF16_FINEST - bits  # P in units of 2**BF16_FINEST, the total in units of 2**-bits
    wide = (low << max(unit, 0), high << max(unit, 0))
    out = []
    for column in head.keys.columns:
        value = sum(map(mul, p, column)) << max(-unit, 0)
        out.append(agree(*(_bf16(value, total) / (1 << -BF16_FINEST) for total in wide)))
    return out


def _bf16(numerator: int, denominator: int) -> int:
    return rounded(numerator, denominator, BF16_BITS, BF16_FINEST)
