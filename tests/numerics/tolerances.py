"""What common tolerances see of the known mistakes, on data as kernel tests commonly draw it.

Run from a checkout, it prints the table of docs/discrimination.md: ``python -m tests.numerics.tolerances``.

The data: 4 query rows of 64 heads; a window list of 128 with 5 holes, and 512 extra keys in a list of 576 whose tail
names live slots; sinks of 0. A mistaken kernel returns its float64 answer rounded as kernels round: out to bf16, lse to
float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dsv4_conformance.numerics.compare import compare, published_rule
from dsv4_conformance.numerics.mutants import Setting, wrong_answers
from dsv4_conformance.numerics.truth import Truth, truth_of
from dsv4_conformance.oracle.attention import Answer, Problem, Scope

ROWS, HEADS, SLOTS = 4, 64, 2048
Rule = Callable[[str, Tensor, Tensor, Tensor], bool]
"""Whether output ``name`` is accepted: got, want, budget."""


def data(gain: float, seed: int = 0) -> Problem:
    """Queries and keys of standard deviation ``gain``."""
    generator = torch.Generator().manual_seed(seed)
    kv = (torch.randn(SLOTS, 512, generator=generator) * gain).to(torch.bfloat16)
    q = (torch.randn(ROWS, HEADS, 512, generator=generator) * gain).to(torch.bfloat16)
    order = torch.stack([torch.randperm(SLOTS, generator=generator)[: 128 + 576] for _ in range(ROWS)])
    window, extra = order[:, :128].clone(), order[:, 128:]
    window[:, 3:128:29] = -1
    lists = (
        Scope(lambda at: kv[at], window, None, slots=SLOTS),
        Scope(lambda at: kv[at], extra, torch.full((ROWS,), 512), slots=SLOTS),
    )
    return Problem(q, lists, torch.zeros(HEADS), 512**-0.5)


def close(tolerance: float, outputs: tuple[str, ...]) -> Rule:
    """``|got - want| <= tolerance + tolerance |want|`` for every element of ``outputs``, as torch.testing has it."""

    def accepts(name: str, got: Tensor, want: Tensor, budget: Tensor) -> bool:
        return name not in outputs or torch.allclose(got, want, rtol=tolerance, atol=tolerance)

    return accepts


def published(name: str, got: Tensor, want: Tensor, budget: Tensor) -> bool:
    """FlashMLA's decode test: its rule for out; 1e-6 absolute or 8.01 / 65536 relative for lse."""
    if name == "out":
        return published_rule("decode", got, want)[0]
    off = (got - want).abs()
    return bool(((off < 1e-6) | (off / (want.abs() + 1e-6) < 8.01 / 65536)).all())


def budgets(times: float) -> Rule:
    """Ours: within ``times`` error budgets of its row."""

    def accepts(name: str, got: Tensor, want: Tensor, budget: Tensor) -> bool:
        return compare(name, got, want, budget * times).passed

    return accepts


RULES: dict[str, Rule] = {
    "8e-2 on out": close(8e-2, ("out",)),
    "8e-2 on out and lse": close(8e-2, ("out", "lse")),
    "1e-1 on out": close(1e-1, ("out",)),
    "FlashMLA's own": published,
    "error budget": budgets(1.0),
    "3 error budgets": budgets(3.0),
}
DATA = {"randn": 1.0, "N/10": 0.1}


def rounded(answer: Answer) -> dict[str, Tensor]:
    """out and lse as a kernel returns them, in float64."""
    return {"out": answer.out.to(torch.bfloat16).double(), "lse": answer.lse.to(torch.float32).double()}


def rejected(gain: float, seed: int = 0) -> dict[str, set[str]]:
    """Rule -> mistakes that it rejects, out of those that change the answer. ``"all"`` holds every one of them."""
    p = data(gain, seed)
    truth = truth_of(p)
    rows = torch.arange(ROWS)
    setting = Setting.of(p, truth.answer, p.rows((rows + 1) % ROWS))
    made = {name: answer for name, answer in wrong_answers(setting).items() if _differs(answer, truth.answer)}
    found = {rule: {m for m, a in made.items() if not _accepted(accepts, a, truth)} for rule, accepts in RULES.items()}
    right = {rule for rule, accepts in RULES.items() if not _accepted(accepts, truth.answer, truth)}
    assert not right, f"{right} reject the right answer"
    return {"all": set(made), **found}


def _differs(one: Answer, other: Answer) -> bool:
    return any(not torch.equal(getattr(one, name), getattr(other, name)) for name in ("out", "lse"))


def _accepted(accepts: Rule, answer: Answer, truth: Truth) -> bool:
    return all(
        accepts(name, got, getattr(truth.answer, name), getattr(truth.budgets, name))
        for name, got in rounded(answer).items()
    )


def table() -> str:
    """The table of docs/discrimination.md."""
    found = {name: rejected(gain) for name, gain in DATA.items()}
    mistakes = sorted(set.union(*(f["all"] for f in found.values())))
    heads = [f"{name}: {rule}" for name in DATA for rule in RULES]
    lines = ["| mistake | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for mistake in mistakes:
        cells = ["yes" if mistake in found[name][rule] else "-" for name in DATA for rule in RULES]
        lines.append(f"| {mistake} | " + " | ".join(cells) + " |")
    totals = [f"**{len(found[name][rule])} of {len(found[name]['all'])}**" for name in DATA for rule in RULES]
    return "\n".join([*lines, "| **rejected** | " + " | ".join(totals) + " |"])


if __name__ == "__main__":
    print(table())
