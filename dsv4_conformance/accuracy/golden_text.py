"""A golden, told to a reader."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_conformance.accuracy.decision import detectable
from dsv4_conformance.accuracy.golden_record import Golden
from dsv4_conformance.accuracy.profiles import load_rules


def described(golden: Golden) -> list[str]:
    """Where it comes from, how it was asked, scores, noise, and what the profiles' gates can see with it."""
    return list(_lines(golden))


def _lines(golden: Golden) -> Iterator[str]:
    yield f"golden {golden.name}, sha256 {golden.content_hash}"
    if golden.simulated:
        yield "  recorded from the simulated server: for rehearsals and tests, says nothing about any model"
    size = f"{golden.runs} passes, {len(golden.rows):,} questions"
    yield f"  {golden.task} of {golden.model!r} over {golden.endpoint}: {size}"
    counts = {name: int(golden.counts(name).sum()) for name in ("truncated", "empty", "no_answer", "fallback")}
    odd = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())
    yield f"  score {100 * golden.score:.2f} % of {golden.answers:,} answers; {odd}"
    mean = golden.mean_tokens
    yield f"  mean length {'not counted' if mean is None else f'{mean:,.0f} tokens'}"
    noise = golden.noise
    yield (
        f"  noise of a pass {100 * noise['pass_sd']:.2f} points ({noise['ratio']:.2f} of a coin's variance); spread of "
        f"the {golden.runs} passes {100 * noise['observed_sd']:.2f}"
    )
    for profile, rules in load_rules().items():
        rule = rules.get(golden.task)
        if rule is None:
            continue
        if golden.runs < rule.golden_runs:
            yield f"  {profile}: too short, its gate needs {rule.golden_runs} passes"
            continue
        right = golden.counts("correct")
        seen = [f"{100 * detectable(right, golden.runs, look, rule):.1f} after {look}" for look in rule.looks]
        told = ", ".join(seen)
        yield f"  {profile}: margin {100 * rule.margin:g} points; drops in points failed 4 times in 5: {told}"
    for title, entries in (("fingerprint", golden.fingerprint), ("provenance", golden.provenance)):
        yield f"  {title}"
        yield from (f"    {name}: {value}" for name, value in sorted(entries.items()))
