"""Error budgets against their derivation, recomputed here, and against right kernels that round in other places."""

import math
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor

from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase
from dsv4_conformance.cases.families import family
from dsv4_conformance.cases.problem import problem_of
from dsv4_conformance.numerics.budgets import LOGIT_DERIVATION, OUT_DERIVATION, logit_budget, out_budget, ulp_bf16
from dsv4_conformance.numerics.compare import compare
from dsv4_conformance.numerics.truth import truth_of
from dsv4_conformance.oracle.attention import Problem, Scope

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def to_bf16(x: Floats) -> Floats:
    """Round float32 to the nearest bf16, ties to even, by its bits."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def small(sink: list[float] | None) -> Problem:
    generator = torch.Generator().manual_seed(21)
    kv = torch.randn(9, 512, generator=generator).to(torch.bfloat16)
    lists = torch.tensor([[1, 3, 5, -1, 8], [2, 2, -1, -1, -1], [-1, -1, -1, -1, -1]], dtype=torch.int32)
    q = torch.randn(3, 3, 512, generator=generator).to(torch.bfloat16)
    return Problem(q, (Scope(lambda at: kv[at], lists, None, 9),), None if sink is None else torch.tensor(sink), 0.1)


def by_derivation(p: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Budgets of out, lse and max_logits, from the two sentences that the journal carries, one head at a time."""
    rows, heads = p.q.shape[:2]
    budgets = torch.zeros(3, rows, heads, dtype=torch.float64)
    for r in range(rows):
        listed = [i for i in p.scopes[0].indices[r].tolist() if i >= 0]
        if not listed:
            continue
        keys = p.scopes[0].fetch(torch.tensor(listed)).float().numpy()
        exact = keys.astype(np.float64)
        for h in range(heads):
            q = p.q[r, h].float().numpy()
            sink = -math.inf if p.sink is None else p.sink[h].item()
            s64 = exact @ q.astype(np.float64) * p.scale
            top, weights = s64.max(), np.exp(s64 - s64.max())
            total = weights.sum()
            right = weights @ exact / (total + math.exp(sink - top) if sink < math.inf else math.inf)
            s32 = (keys @ q * np.float32(p.scale)).astype(np.float32)
            worst = 0.0
            for phase in (0.0, 0.37):
                p32 = np.exp(s32 - np.float32(top) - np.float32(phase)).astype(np.float32)
                below = p32.sum() + (
                    np.exp(np.float32(sink - top - phase)) if sink < math.inf else np.float32(math.inf)
                )
                out = to_bf16(to_bf16(p32) @ keys / below)
                worst = max(worst, float(np.abs(out.astype(np.float64) - right).max()))
            largest = np.abs(right).max()
            ulp = 0.0 if largest == 0 else 2.0 ** (math.floor(math.log2(largest)) - 7)
            spread = 4 * math.sqrt(512) * max(1.0, np.abs(s64).max()) + 8 + math.sqrt(len(listed))
            budgets[0, r, h] = 2 * max(worst, ulp / 2) + ulp
            budgets[1, r, h] = 2.0**-24 * (spread + 2 * abs(math.log(total) + top))
            budgets[2, r, h] = 2.0**-24 * (spread + 2 * abs(top))
    return budgets[0], budgets[1], budgets[2]


# Kills: a factor or an ulp left out, one phase only, P not rounded, the sink in no denominator, budgets where the value
# is exact (a sink of +inf, a row without keys), |logit| over holes.
@pytest.mark.parametrize("sink", [None, [0.5, -math.inf, math.inf]], ids=["none", "special"])
def test_budgets_are_those_of_the_recorded_derivation(sink: list[float] | None) -> None:
    p = small(sink)
    budgets = truth_of(p).budgets
    out, lse, top = by_derivation(p)
    torch.testing.assert_close(budgets.out, out, rtol=1e-3, atol=0)
    torch.testing.assert_close(budgets.lse, lse, rtol=1e-6, atol=0)
    torch.testing.assert_close(budgets.max_logits, top, rtol=1e-6, atol=0)
    assert (budgets.out[2] == 0).all() and (sink is None or (budgets.out[:, 2] == 0).all())


# Kills: a derivation that says something else than the code does.
def test_the_recorded_derivation_names_every_term() -> None:
    for term in (
        "2 x",
        "bf16 q, K, P, out",
        "float32 logits",
        "two P-rounding phases",
        "half a bf16 ulp",
        "1 bf16 ulp",
    ):
        assert term in OUT_DERIVATION
    for term in ("2**-24", "4 sqrt(512)", "max(1, max |logit|)", "+ 8 + sqrt(keys) + 2 |value|"):
        assert term in LOGIT_DERIVATION


# Kills: an ulp off by a factor of 2 at powers of two, at subnormals, at 0.
def test_ulp_is_the_distance_to_the_next_bf16() -> None:
    x = torch.cat((2.0 ** torch.arange(-133, 127).double(), 1.5 * 2.0 ** torch.arange(-126, 127).double()))
    x = x.to(torch.bfloat16)
    above = (x.view(torch.int16) + 1).view(torch.bfloat16)
    assert torch.equal(ulp_bf16(x.double()), above.double() - x.double())
    assert torch.equal(ulp_bf16(-x.double()), above.double() - x.double())
    assert ulp_bf16(torch.zeros(1, dtype=torch.float64)).item() == 0


# Kills: a budget of the whole tensor, errors that are not taken over all dims, the better of the references, and a
# reference without error (out 3) whose luck leaves one ulp.
def test_out_budget_is_per_row_and_head_and_takes_the_worse_reference() -> None:
    out = torch.zeros(2, 2, 512, dtype=torch.float64)
    out[0, 0, 7], out[1, 1, 0] = 1.0, 3.0
    one, other = out.clone(), out.clone()
    one[0, 0, 511] += 0.25
    other[0, 0, 3] -= 0.5
    one[1, 0, 9] -= 0.125
    want = torch.tensor([[2 * 0.5 + 2.0**-7, 0.0], [2 * 0.125, 2 * 2.0**-6]], dtype=torch.float64)
    assert torch.equal(out_budget(out, [one, other]), want)


# Kills: exact values with a budget, finite ones without.
def test_logit_budget_by_hand() -> None:
    value = torch.tensor([[3.0, -3.0, math.inf, -math.inf]], dtype=torch.float64)
    largest = torch.tensor([[2.0, 0.5, 2.0, 2.0]])
    got = logit_budget(value, largest, torch.tensor([4]))
    root = 4 * math.sqrt(512)
    assert got[0].tolist() == pytest.approx(
        [(root * 2 + 8 + 2 + 6) / 2**24, (root + 8 + 2 + 6) / 2**24, 0, 0], rel=1e-12
    )


def online(p: Problem, block: int, exp2: bool) -> tuple[Tensor, Tensor]:
    """out (bf16) and lse (float32) of an online softmax in blocks, P rounded relative to the running maximum."""
    keys, valid = p.gather()
    q, keys = p.q.float(), keys.float()
    top = torch.full(q.shape[:2], -1e30)
    total, acc = torch.zeros(q.shape[:2]), torch.zeros(q.shape)
    log2e = 1.4426950408889634
    for start in range(0, keys.shape[1], block):
        part = slice(start, start + block)
        s = (q @ keys[:, part].transpose(1, 2) * p.scale).masked_fill(~valid[:, None, part], -math.inf)
        new = torch.maximum(top, s.amax(-1))
        p_block = torch.exp2(s * log2e - (new * log2e)[..., None]) if exp2 else torch.exp(s - new[..., None])
        shrink = torch.exp(top - new)
        total, top = total * shrink + p_block.sum(-1), new
        acc = acc * shrink[..., None] + p_block.bfloat16().float() @ keys[:, part]
    lonely = ~valid.any(1)[:, None]
    below = total if p.sink is None else total + torch.exp(p.sink - top)
    out = (acc / below[..., None]).masked_fill(lonely[..., None], 0).bfloat16()
    return out, (total.log() + top).masked_fill(lonely, math.inf)


# Kills: budgets so tight that a right kernel fails (blocks, exp2, the other order of the list), or so wide that the
# worst case of many lies far below 1.
@pytest.mark.parametrize("surface", ["SparseDecode", "SparsePrefill"])
def test_right_kernels_of_other_build_pass(surface: str) -> None:
    worst = 0.0
    for case in islice(family("core", surface, "laptop", 3), 20):
        assert isinstance(case, AttentionCase)
        p = problem_of(build(case, "cpu"))
        truth = truth_of(p)
        for block, exp2 in ((64, True), (64, False), (16, True), (10**6, False)):
            out, lse = online(p, block, exp2)
            verdicts = [
                compare("out", out, truth.answer.out, truth.budgets.out),
                compare("lse", lse, truth.answer.lse, truth.budgets.lse),
            ]
            assert all(v.passed for v in verdicts), [v.sentence() for v in verdicts]
            worst = max(worst, *(v.ratio for v in verdicts))
    assert worst > 0.4


# Kills: answers or budgets that reach into unreferenced memory, row 0 of a row without keys included.
def test_poison_in_unreferenced_rows_reaches_neither_answer_nor_budget() -> None:
    p = small([0.5, -1.0, 2.0])
    listed = {i for i in p.scopes[0].indices.flatten().tolist() if i >= 0}
    scope = p.scopes[0]

    def fetch(at: Tensor) -> Tensor:
        rows = scope.fetch(at).clone()
        rows[~torch.isin(at, torch.tensor(sorted(listed)))] = math.nan
        return rows

    poisoned = Problem(p.q, (Scope(fetch, scope.indices, None, 9),), p.sink, p.scale)
    one, other = truth_of(p), truth_of(poisoned)
    for part in ("answer", "budgets"):
        for name in ("out", "lse", "max_logits"):
            assert torch.equal(getattr(getattr(one, part), name), getattr(getattr(other, part), name))
