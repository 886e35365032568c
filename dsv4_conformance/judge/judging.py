"""Right or wrong, per query row and head: errors of every dumped output in units of its budget."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_conformance.judge.dump import Dump
from dsv4_conformance.judge.values import check_values
from dsv4_conformance.numerics.compare import errors, in_budgets
from dsv4_conformance.numerics.truth import truth_of

MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class Judgement:
    """``rows`` int64 ``(r,)`` and ``heads`` int64 ``(h,)``: what was judged. Per output, float64 ``(r, h)``: ``error``,
    ``budget`` and ``ratio`` = error in budgets, inf where special values differ; right is ratio <= 1."""

    rows: Tensor
    heads: Tensor
    error: dict[str, Tensor]
    budget: dict[str, Tensor]
    ratio: dict[str, Tensor]

    @property
    def worst(self) -> Tensor:
        """The largest ratio over the outputs, ``(r, h)``."""
        return torch.stack(list(self.ratio.values())).amax(0)

    @property
    def wrong(self) -> Tensor:
        """bool ``(r, h)``: where some output is wrong."""
        return self.worst > 1

    @property
    def right(self) -> bool:
        """Whether everything judged is right."""
        return not bool(self.wrong.any())

    def worst_row(self) -> int:
        """Where in ``rows`` the largest ratio is; of several, the first."""
        return int(self.worst.amax(1).argmax())

    def worst_output(self, row: int, head: int) -> str:
        """The output that is furthest off at a place in ``rows`` and ``heads``."""
        return max(self.ratio, key=lambda name: float(self.ratio[name][row, head]))


def judge(dump: Dump, rows: Tensor | None = None, heads: Tensor | None = None, max_bytes: int = MAX_BYTES) -> Judgement:
    """Judge some rows and heads of a dump (None = all), near ``max_bytes`` of scratch at a time.

    Raises BadInput where those rows have no defined answer.
    """
    rows = torch.arange(dump.rows) if rows is None else rows
    heads = torch.arange(dump.heads) if heads is None else heads
    check_values(dump, rows)
    problem = dump.problem.rows(rows)
    table: dict[str, list[list[Tensor]]] = {name: [[], [], []] for name in dump.got}
    for part, chunk in problem.chunks(max_bytes):
        truth = truth_of(chunk, max_bytes)
        for name, (error, budget, ratio) in table.items():
            error.append(errors(dump.got[name][rows[part]], getattr(truth.answer, name))[:, heads])
            budget.append(getattr(truth.budgets, name)[:, heads])
            ratio.append(in_budgets(error[-1], budget[-1]))
    joined = {name: [torch.cat(parts) for parts in columns] for name, columns in table.items()}
    return Judgement(rows, heads, *({name: columns[at] for name, columns in joined.items()} for at in range(3)))
