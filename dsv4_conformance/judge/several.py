"""Which set of list entries explains a wrong row: the counts of all keys at once (the linear system of keys.py)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from dsv4_conformance.judge.keys import Fit, places
from dsv4_conformance.judge.view import RowView

HEADS = 16
MOST_KEYS = 4096
KNOWN = 0.25
"""A count is taken for known if its standard error, one budget taken for one standard deviation, is below this."""


@dataclass(frozen=True)
class CountStory:
    """List entries that count otherwise than once. ``changes``: (scope, places such as "64-127", count). ``distance``:
    budgets between the answer with these counts and what came out, over the wrong heads."""

    changes: list[tuple[str, str, int]]
    keys: int
    distance: float
    explains: bool


def counts(view: RowView) -> CountStory | None:
    """The whole-number counts that explain the row, or None: too many keys, too few heads, or no such counts."""
    fit = Fit.of(view, HEADS)
    at = view.valid.nonzero()[:, 0]
    if fit is None or not len(at) or len(at) > min(MOST_KEYS, len(fit.heads) * view.keys.shape[1]):
        return None
    change, error = _solve(fit, view.keys[at])
    times = torch.ones(len(view.valid), dtype=torch.float64)
    times[at] = torch.where(error < KNOWN, (1 + change).round().clamp(min=0), 1.0)
    distance = float(view.distance(view.counted(times))[view.wrong].amax())
    if distance > view.near:
        return None
    return CountStory(_ranges(view, times), int((times != 1).sum()), distance, True)


def _solve(fit: Fit, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Changes of all counts ``(n,)`` and their standard errors, by least squares with a prior of 1 around no change."""
    gram = torch.eye(len(keys), dtype=torch.float64)
    right = torch.zeros(len(keys), dtype=torch.float64)
    weights = torch.exp(fit.q @ keys.T - fit.log_total[:, None]) / fit.budget[:, None]
    for weight, got, off, budget in zip(weights, fit.got, fit.off, fit.budget, strict=True):
        columns = (keys - got) * weight[:, None]
        gram += columns @ columns.T
        right += columns @ (off / budget)
    inverse = torch.linalg.inv(gram)
    return inverse @ right, inverse.diagonal().clamp(min=0).sqrt()


def _ranges(view: RowView, times: Tensor) -> list[tuple[str, str, int]]:
    """Runs of neighbouring valid entries with one count, those that count once left out."""
    entries = [
        (*entry, int(count)) for entry, count, valid in zip(places(view), times, view.valid, strict=True) if valid
    ]
    runs = []
    for (number, count), run in groupby(entries, key=lambda entry: (entry[0], entry[3])):
        if count != 1:
            first, *rest = [place for _, place, _, _ in run]
            runs.append((view.dump.stores[number].name, f"{first}-{rest[-1]}" if rest else str(first), count))
    return runs
