"""Accuracy gates that engines publish, as functions of the same draws, to compare operating characteristics.

Thresholds are the published ones, in their distance from the score that the model has (GSM8K 96.2 %, AIME25 97.5 %): a
gate is not blamed for a reference that was measured on other questions. The code is ours; the rules are restated from
the sources named, as they were in November 2026.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from dsv4_conformance.accuracy.decision import Verdict, Verdicts
from dsv4_conformance.accuracy.item_model import Floats
from dsv4_conformance.accuracy.power import Judge
from dsv4_conformance.accuracy.stats import mcnemar_fewer, t_quantile, wilson_lower

PASS, FAIL, DOUBT = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


@dataclass(frozen=True)
class Published:
    """One gate: ``rule`` in a sentence, ``source`` its address, ``judge`` its verdicts."""

    name: str
    rule: str
    source: str
    judge: Judge


def _verdicts(passed: Floats | np.ndarray, failed: Floats | np.ndarray) -> Verdicts:
    return np.where(failed, FAIL, np.where(passed, PASS, DOUBT)).astype(np.int64)


def floor_gate(distance: float, *, items: int | None = None, passes: int = 1) -> Judge:
    """Fails if the measured score is more than ``distance`` below the true one, on the first ``items`` questions."""

    def judge(p: Floats, q: Floats, rng: np.random.Generator) -> tuple[Verdicts, Floats]:
        p, q = p[:, :items], q[:, :items]
        score = rng.binomial(passes, q).mean(axis=-1) / passes
        failed = score < p.mean(axis=-1) - distance
        return _verdicts(~failed, failed), np.full(len(p), float(passes))

    return judge


def wilson_gate(rtol: float, confidence: float = 0.95) -> Judge:
    """Passes if the one-sided Wilson lower bound of the score is not below the true one times 1 - ``rtol``."""
    z = float(ndtri(confidence))

    def judge(p: Floats, q: Floats, rng: np.random.Generator) -> tuple[Verdicts, Floats]:
        right = rng.binomial(1, q).sum(axis=-1)
        failed = wilson_lower(right, p.shape[-1], z) < p.mean(axis=-1) * (1 - rtol)
        return _verdicts(~failed, failed), np.ones(len(p))

    return judge


def interval_gate(max_drop: float, *, runs: int = 1, passes: int = 1) -> Judge:
    """Two-sided 95 % t interval of the mean per-question difference, against ``max_drop``; doubt if it straddles."""

    def judge(p: Floats, q: Floats, rng: np.random.Generator) -> tuple[Verdicts, Floats]:
        d = rng.binomial(passes, q) / passes - rng.binomial(runs, p) / runs
        n = p.shape[-1]
        half = t_quantile(0.975, n - 1) * d.std(axis=-1, ddof=1) / np.sqrt(n)
        damage = -d.mean(axis=-1)
        return _verdicts(damage + half <= max_drop, damage - half > max_drop), np.full(len(p), float(passes))

    return judge


def mcnemar_gate(min_effect: float, alpha: float = 0.05, power_factor: float = 2.8) -> Judge:
    """One-sided McNemar of one pass against one; fails if significant and larger than ``min_effect``.

    Not significant is a pass only if ``power_factor`` over the root of the discordant pairs is at most twice
    ``min_effect``, or if nothing changed; significant and small is a warning, which counts as doubt.
    """

    def judge(p: Floats, q: Floats, rng: np.random.Generator) -> tuple[Verdicts, Floats]:
        before, after = rng.binomial(1, p), rng.binomial(1, q)
        lost, gained = ((before > after).sum(axis=-1), (after > before).sum(axis=-1))
        significant = mcnemar_fewer(lost, gained) < alpha
        failed = significant & ((lost - gained) / p.shape[-1] > min_effect)
        changed = lost + gained
        powerful = power_factor / np.sqrt(np.maximum(changed, 1)) <= 2 * min_effect
        return _verdicts((changed == 0) | (~significant & powerful), failed), np.ones(len(p))

    return judge


def _trt_slack(items: int) -> float:
    """Slack of the hypothesis test at alpha 0.05 with sigma 50 on a scale of 100, as a fraction."""
    return float(-ndtri(0.05) * np.sqrt(2 * 0.5**2 / items))


TRT = "https://github.com/NVIDIA/TensorRT-LLM/tree/main/tests/integration/defs/accuracy"
VLLM = "https://github.com/vllm-project/vllm/tree/main/tests/evals/gsm8k"
VLLM_CI = "https://github.com/vllm-project/vllm/tree/main/.buildkite/lm-eval-harness"
SGLANG = "https://github.com/sgl-project/sglang/tree/main/test"
NEMO = "https://pypi.org/project/nemo-evaluator/0.3.0/"


def published(task: str, items: int) -> tuple[Published, ...]:
    """The published gates of a task on ``items`` questions."""
    if task == "aime25":
        return (
            Published(
                "SGLang nightly",
                "30 questions x 4, score > 95 %: 2.5 points of slack",
                SGLANG,
                floor_gate(0.025, passes=4),
            ),
            Published(
                "nemo-evaluator gate",
                "16 passes against 16, 95 % interval of the mean difference against max_drop 1.5 points",
                NEMO,
                interval_gate(0.015, runs=16, passes=16),
            ),
        )
    slack = _trt_slack(items)
    return (
        Published(
            "TensorRT-LLM",
            f"score >= reference - {100 * slack:.1f} points (sigma 50, alpha 0.05)",
            TRT,
            floor_gate(slack),
        ),
        Published(
            "TensorRT-LLM, V4-Pro assert",
            "score >= 96.0 at a measured 96.32: 0.32 points of slack",
            "https://github.com/NVIDIA/TensorRT-LLM/pull/17310",
            floor_gate(0.0032),
        ),
        Published("vLLM evals", "V4-Pro: score >= 92 % - 8 points: 12.2 points of slack", VLLM, floor_gate(0.122)),
        Published(
            "vLLM lm-eval harness", "score >= reference x (1 - 0.08): 7.7 points of slack", VLLM_CI, floor_gate(0.077)
        ),
        Published(
            "vLLM gate ci", "one-sided 95 % Wilson lower bound >= reference x (1 - 0.08)", VLLM_CI, wilson_gate(0.08)
        ),
        Published("vLLM gate ci, rtol 0", "the same without its slack of 8 %", VLLM_CI, wilson_gate(0.0)),
        Published(
            "SGLang per commit",
            "200 questions, score > 93 %: 3.2 points of slack",
            SGLANG,
            floor_gate(0.032, items=200),
        ),
        Published(
            "nemo-evaluator gate",
            "1 pass against 1, 95 % interval of the mean difference against max_drop 1.5 points",
            NEMO,
            interval_gate(0.015),
        ),
        Published("nemo-evaluator compare", "1 pass against 1, McNemar, --max-drop 0.05", NEMO, mcnemar_gate(0.05)),
    )
