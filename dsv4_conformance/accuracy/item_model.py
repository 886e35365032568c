"""The item model: how likely each question of a set is answered right, and what a worse engine does to that.

Every question has its own pass probability, most of them near 0 or 1; one pass over the set is a draw per question.
The probabilities of a set are quantiles of a Beta distribution, given by two measured numbers: the mean score, and the
noise ratio, the variance of one pass over the *same* questions divided by that of n independent coin tosses. The
ratio says how much of a score's spread is real noise: 0.14 for GSM8K at 96 % (public repeated runs: 0.125 to
0.16) and about 0.6 for AIME25 at 97.5 % (0.45 to 0.8).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, expit, logit

from dsv4_conformance.errors import BadInput

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ItemModel:
    """``items`` questions with mean pass probability ``mean`` and noise ratio ``noise_ratio``, both between 0 and 1.

    Raises BadInput for numbers out of range.
    """

    items: int
    mean: float
    noise_ratio: float

    def __post_init__(self) -> None:
        if self.items < 2:
            raise BadInput(f"A question set of {self.items} has no spread; give 2 questions or more.")
        for name, value in (("mean", self.mean), ("noise ratio", self.noise_ratio)):
            if not 0 < value < 1:
                raise BadInput(f"The {name} is {value}; give a number between 0 and 1, ends excluded.")

    @property
    def beta(self) -> tuple[float, float]:
        """Parameters (a, b): a / (a + b) is the mean, (a + b) / (a + b + 1) the noise ratio."""
        size = self.noise_ratio / (1 - self.noise_ratio)
        return self.mean * size, (1 - self.mean) * size

    def quantile(self, u: ArrayLike) -> Floats:
        """Pass probability of a question whose rank in the set is ``u``, 0 to 1; any shape."""
        a, b = self.beta
        return np.asarray(betaincinv(a, b, np.asarray(u, dtype=np.float64)))

    def draw(self, rng: np.random.Generator, trials: int) -> Floats:
        """Pass probabilities ``(trials, items)``: a fresh question set in every row."""
        return self.quantile(rng.random((trials, self.items)))

    def noise_of_a_pass(self) -> float:
        """Standard deviation of the score of one pass over a fixed set, as a fraction."""
        return float(np.sqrt(self.noise_ratio * self.mean * (1 - self.mean) / self.items))


MODELS: Mapping[str, ItemModel] = {
    "gsm8k": ItemModel(1319, 0.962, 0.14),
    "aime25": ItemModel(30, 0.975, 0.60),
}
"""Item models of the two tasks, fitted to public repeated runs (docs/accuracy.md); a real golden measures its own."""


@dataclass(frozen=True)
class Change:
    """What became of an engine. ``drop``: points of score as a fraction; ``items``: questions concerned; ``kind``:

    same: nothing. jitter: other numerics, each logit moves by a normal of SD 1, the mean stays. uniform: every
    pass probability shrinks by the same factor. unstable: only undecided questions get worse (a shift of logits).
    broken: ``items`` questions that used to pass never do. half: they pass half the time.
    """

    name: str
    kind: str = "same"
    drop: float = 0.0
    items: int = 0

    def apply(self, p: Floats, rng: np.random.Generator) -> Floats:
        """Pass probabilities after the change, shape ``(trials, n)`` as given. Raises BadInput for an unknown kind."""
        changed: Floats = _KINDS.get(self.kind, _unknown)(self, p, rng)
        return changed


def _same(change: Change, p: Floats, rng: np.random.Generator) -> Floats:
    return p


def _jitter(change: Change, p: Floats, rng: np.random.Generator) -> Floats:
    moved = _logits(p) + rng.standard_normal(p.shape)
    return _shifted(moved, p.mean(axis=-1))


def _uniform(change: Change, p: Floats, rng: np.random.Generator) -> Floats:
    mean = p.mean(axis=-1, keepdims=True)
    return np.asarray(p * np.clip(1 - change.drop / mean, 0, None))


def _unstable(change: Change, p: Floats, rng: np.random.Generator) -> Floats:
    return _shifted(_logits(p), p.mean(axis=-1) - change.drop)


def _broken(change: Change, p: Floats, rng: np.random.Generator) -> Floats:
    return _replaced(change, p, rng, 0.0)


def _half(change: Change, p: Floats, rng: np.random.Generator) -> Floats:
    return _replaced(change, p, rng, 0.5)


def _unknown(change: Change, p: Floats, rng: np.random.Generator) -> Floats:
    raise BadInput(f"{change.kind!r} is no kind of change; use {', '.join(_KINDS)}.")


_KINDS: dict[str, Any] = {
    "same": _same,
    "jitter": _jitter,
    "uniform": _uniform,
    "unstable": _unstable,
    "broken": _broken,
    "half": _half,
}


def _logits(p: Floats) -> Floats:
    edge = 1e-12
    return np.asarray(logit(np.clip(p, edge, 1 - edge)))


def _shifted(logits: Floats, wanted: Floats) -> Floats:
    """Probabilities of ``logits`` ``(trials, n)``, each row shifted as a whole so that its mean is ``wanted``."""
    low, high = np.full(wanted.shape, -60.0), np.full(wanted.shape, 60.0)
    for _ in range(50):
        middle = (low + high) / 2
        above = expit(logits + middle[..., None]).mean(axis=-1) > wanted
        high, low = np.where(above, middle, high), np.where(above, low, middle)
    return np.asarray(expit(logits + ((low + high) / 2)[..., None]))


def _replaced(change: Change, p: Floats, rng: np.random.Generator, by: float) -> Floats:
    """``change.items`` questions per row, picked among those that pass at least half the time, now pass with ``by``."""
    order = np.argsort(np.where(p >= 0.5, rng.random(p.shape), 2.0), axis=-1)[..., : change.items]
    out = p.copy()
    np.put_along_axis(out, order, by, axis=-1)
    return out
