"""Published gates, restated: thresholds by hand, verdicts at their edges."""

import numpy as np
import pytest
import scipy.stats

from dsv4_conformance.accuracy.decision import Verdict
from dsv4_conformance.accuracy.published_gates import (
    floor_gate,
    interval_gate,
    mcnemar_gate,
    published,
    wilson_gate,
)

P, F, D = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE
RNG = np.random.default_rng(0)


def certain(right: int, n: int = 1319) -> np.ndarray:
    """Questions that always pass, ``right`` of them, and others that never do."""
    return (np.arange(n) < right).astype(float)[None]


def verdict(judge, before: int, after: int, n: int = 1319) -> int:  # type: ignore[no-untyped-def]
    found, _ = judge(certain(before, n), certain(after, n), RNG)
    return int(found[0])


def gate(task: str, name: str):  # type: ignore[no-untyped-def]
    return next(g.judge for g in published(task, 1319 if task == "gsm8k" else 30) if g.name == name)


def test_trt_slack_is_the_published_one() -> None:
    # z(0.05) * sqrt(2 * 50**2 / 1319) = 3.20 points: 42 questions of 1,319 pass, 43 do not.
    assert round(1.6449 * (2 * 2500 / 1319) ** 0.5, 2) == 3.20
    judge = gate("gsm8k", "TensorRT-LLM")
    assert (verdict(judge, 1269, 1269 - 42), verdict(judge, 1269, 1269 - 43)) == (P, F)


@pytest.mark.parametrize(
    ("name", "lost"),
    [("TensorRT-LLM, V4-Pro assert", 4), ("vLLM evals", 160), ("vLLM lm-eval harness", 101)],
)
def test_floors(name: str, lost: int) -> None:
    judge = gate("gsm8k", name)
    assert (verdict(judge, 1269, 1269 - lost), verdict(judge, 1269, 1269 - lost - 1)) == (P, F)


def test_sglang_looks_at_200_questions() -> None:
    judge = gate("gsm8k", "SGLang per commit")
    assert verdict(judge, 1269, 195) == P and verdict(judge, 1269, 193) == F
    assert verdict(judge, 1269, 200) == P, "the other 1,119 do not matter"


def test_sglang_nightly_asks_four_times() -> None:
    judge = gate("aime25", "SGLang nightly")
    found, passes = judge(np.ones((1, 30)), np.ones((1, 30)), RNG)
    assert found[0] == P and passes[0] == 4
    assert verdict(judge, 30, 29, 30) == F, "3.3 points"


def test_the_published_prefill_bug_passes_vllms_own_gate() -> None:
    # 1,246 right before, 1,182 with the bug: 4.9 points.
    assert verdict(gate("gsm8k", "vLLM evals"), 1246, 1182) == P
    assert verdict(gate("gsm8k", "vLLM lm-eval harness"), 1246, 1182) == P


def test_wilson_gate_is_the_interval_of_scipy() -> None:
    low = scipy.stats.binomtest(1246, 1319).proportion_ci(0.90, "wilson").low
    share = float(low) * 1319 / 1246
    assert verdict(wilson_gate(1 - share + 1e-6), 1246, 1246) == P
    assert verdict(wilson_gate(1 - share - 1e-6), 1246, 1246) == F
    assert verdict(gate("gsm8k", "vLLM gate ci, rtol 0"), 1269, 1269) == F, "an unchanged engine"


def test_interval_gate_straddles_passes_and_breaches() -> None:
    judge = interval_gate(0.015)
    assert [verdict(judge, 1269, 1269 - lost) for lost in (0, 5, 12, 13, 15, 60)] == [P, P, P, D, D, F]
    d = -certain(15)[0]
    t = scipy.stats.t.interval(0.95, 1318, d.mean(), d.std(ddof=1) / 1319**0.5)
    assert t[0] < -0.015 < t[1]


def test_mcnemar_gate_is_almost_always_in_doubt() -> None:
    judge = gate("gsm8k", "nemo-evaluator compare")
    assert [verdict(judge, 1269, 1269 - lost) for lost in (0, 1, 4, 13, 65, 67)] == [P, D, D, D, D, F]
    assert verdict(mcnemar_gate(0.05), 100, 900) == P, "800 changed: enough for its rule"


def test_floor_gate_counts_all_passes() -> None:
    judge = floor_gate(0.01, passes=3)
    p = np.full((2000, 100), 0.5)
    found, passes = judge(p, p, np.random.default_rng(1))
    expected = scipy.stats.binom.cdf(146, 300, 0.5)
    assert float((found == F).mean()) == pytest.approx(float(expected), abs=0.04) and passes[0] == 3


def test_every_published_gate_has_a_rule_and_an_address() -> None:
    for task in ("gsm8k", "aime25"):
        for found in published(task, 30):
            assert found.rule and found.source.startswith("https://")
