"""The separate gates: replies cut off, replies without an answer, requests that failed, and how long replies are.

Each can move while the score stands still, and each says something else than the score does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dsv4_conformance.accuracy.decision import Verdict
from dsv4_conformance.accuracy.golden_record import Golden
from dsv4_conformance.accuracy.profiles import Rule
from dsv4_conformance.accuracy.stats import binomial_more, fisher_more, t_quantile
from dsv4_conformance.accuracy.tally import Counts, Tally


@dataclass(frozen=True)
class Finding:
    """What one gate found: ``sentence`` in plain words, ``numbers`` for programs; ``warns``: no failure, yet look.

    ``items``: the questions that it is about, more often hit than in the golden, the most often hit first, each with
    its counts in words.
    """

    gate: str
    verdict: Verdict
    sentence: str
    warns: bool = False
    numbers: dict[str, float] = field(default_factory=dict)
    items: tuple[str, ...] = ()


COLUMNS = {"no_answer": ("empty", "no_answer"), "malformed": ("filtered", "malformed")}
"""Kinds of replies that one gate counts together; a gate that is not named here counts its own kind."""


def findings(golden: Golden, tally: Tally, rule: Rule) -> Iterator[Finding]:
    """One finding per separate gate."""
    yield _rate("truncated", "cut off at the token limit", golden, tally, rule, rule.truncated)
    yield _rate("no_answer", "without an answer that can be read", golden, tally, rule, rule.no_answer)
    yield _rate("malformed", "filtered, or without a text, or without an end", golden, tally, rule, rule.no_answer)
    yield _errors(golden, tally)
    yield _form(golden, tally, rule)
    yield _tokens(golden, tally, rule)


def _counts(source: Golden | Tally, gate: str) -> Counts:
    """Per question. A golden has no filtered or malformed replies: none is recorded from a run that has."""
    found = np.zeros(len(source.rows if isinstance(source, Golden) else source.correct), dtype=np.int64)
    for column in COLUMNS.get(gate, (gate,)):
        if not isinstance(source, Golden):
            found += getattr(source, column)
        elif gate not in ("malformed", "errors"):
            found += source.counts(column)
    return found


def _items(golden: Golden, tally: Tally, gate: str) -> tuple[str, ...]:
    now, before = _counts(tally, gate), _counts(golden, gate)
    more = now / tally.repeats - before / golden.runs
    order = sorted(np.flatnonzero((now > 0) & (more > 0)), key=lambda i: (-more[i], i))
    return tuple(f"{golden.items[i]} {now[i]}/{tally.repeats}, golden {before[i]}/{golden.runs}" for i in order)


def _rate(gate: str, what: str, golden: Golden, tally: Tally, rule: Rule, cap: float) -> Finding:
    """Fails if the rate is surely above the golden's, or surely above the cap; warns if it is above the cap.

    On a fixed set of questions a total spreads less than a binomial one, so that both tests err on the safe side.
    """
    count, before = int(_counts(tally, gate).sum()), int(_counts(golden, gate).sum())
    rate, standard = count / tally.answers, before / golden.answers
    p_golden = fisher_more(count, tally.answers, before, golden.answers)
    p_cap = binomial_more(count, tally.answers, max(cap, standard))
    told = f"{count} of {tally.answers:,} replies {what} ({100 * rate:.2f} %; golden {100 * standard:.2f} %"
    parts = f", {int(tally.empty.sum())} of them without any text" if gate == "no_answer" and tally.empty.any() else ""
    parts += f", {int(tally.filtered.sum())} of them filtered" if gate == "malformed" and count else ""
    failed = p_golden < rule.rate_alpha or p_cap < rule.rate_alpha
    against = f"surely above the golden (p = {p_golden:.1g})" if p_golden < rule.rate_alpha else "surely above the cap"
    end = f": {against})" if failed else f"; above the cap of {100 * cap:g} %)" if rate > cap else ")"
    numbers = {"count": count, "rate": rate, "golden_rate": standard, "p_golden": p_golden, "p_cap": p_cap}
    warns = rate > cap or (gate == "malformed" and count > 0)
    items = _items(golden, tally, gate)
    return Finding(gate, Verdict.FAIL if failed else Verdict.PASS, told + parts + end, warns, numbers, items)


def _errors(golden: Golden, tally: Tally) -> Finding:
    """Never fails: too many errors make the comparison invalid before this, few widen the verdict on the score."""
    count = int(tally.errors.sum())
    told = f"{count} of {tally.answers:,} requests got no usable reply"
    if count:
        told += "; the score's verdict holds whether they count as right or as wrong, or there is none"
    numbers = {"count": count, "rate": count / tally.answers}
    return Finding("errors", Verdict.PASS, told, count > 0, numbers, _items(golden, tally, "errors"))


def _form(golden: Golden, tally: Tally, rule: Rule) -> Finding:
    """Warns if more answers than before stand in another form than asked for: a template or a prompt broke."""
    count, before = int(_counts(tally, "fallback").sum()), int(_counts(golden, "fallback").sum())
    p = fisher_more(count, tally.answers, before, golden.answers)
    told = (
        f"{count} of {tally.answers:,} answers read by a fall-back rule ({100 * count / tally.answers:.2f} %; golden "
        f"{100 * before / golden.answers:.2f} %)"
    )
    numbers = {"count": count, "p_golden": p}
    return Finding("form", Verdict.PASS, told, p < rule.rate_alpha, numbers, _items(golden, tally, "fallback"))


def _tokens(golden: Golden, tally: Tally, rule: Rule) -> Finding:
    """Compares mean completion tokens question by question; outside the range it warns or, if sure, fails."""
    before = golden.mean_tokens
    if before is None or tally.tokens is None or not before:
        return Finding("tokens", Verdict.PASS, "length not judged: the server counts no completion tokens", True)
    asked = tally.counted > 0
    of_golden = golden.counts("tokens")[asked] / golden.runs
    d = tally.tokens[asked] / tally.counted[asked] - of_golden
    n = len(d)
    half = t_quantile(0.995, max(n - 1, 1)) * float(d.std(ddof=1)) / n**0.5 if n > 1 else np.inf
    base = float(of_golden.mean())
    ratio, low, high = ((base + float(d.mean()) + shift) / base for shift in (0.0, -half, half))
    least, most = rule.tokens
    outside, surely = not least <= ratio <= most, high < least or low > most
    failed = surely and rule.tokens_do == "fail"
    told = f"mean length {ratio * base:,.0f} tokens, {ratio:.2f} of the golden's {base:,.0f}"
    told += f" (allowed {least:g} to {most:g})" if outside else ""
    numbers = {"relative": ratio, "low": low, "high": high, "mean": ratio * base, "golden_mean": base}
    return Finding("tokens", Verdict.FAIL if failed else Verdict.PASS, told, outside and not failed, numbers)
