"""A comparison of two runs, told: as text for a terminal, as Markdown, as a page."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_conformance.report.comparing import CHANGES, MEANINGS, Change, Changed, Comparison
from dsv4_conformance.report.escaping import code, line, markdown
from dsv4_conformance.report.folding import Run
from dsv4_conformance.report.judging import Verdict
from dsv4_conformance.report.measured import told
from dsv4_conformance.report.overview import table
from dsv4_conformance.report.page import shell

LOUD: tuple[Change, ...] = ("regressed", "uncovered", "gone", "drifted", "otherwise")
SHOWN_TEXT = 20
SHOWN_MARKDOWN = 60
SHOWN_PAGE = 500


def headline(found: Comparison) -> str:
    """What happened, in one sentence."""
    told_ = [f"{found.counts[change]:,} {change}" for change in CHANGES if found.counts[change]]
    doubtful = ", ".join(run.mark for run, verdict in _judged(found) if verdict.doubts)
    unsure = f"{doubtful} cannot be relied on; " if doubtful else ""
    same = f"{found.same:,} of {found.common:,} common cases as before"
    return f"{unsure}{', '.join(told_) or 'Nothing changed'}; {same}"


def _judged(found: Comparison) -> list[tuple[Run, Verdict]]:
    return list(zip(found.gathered.runs, found.gathered.verdicts, strict=True))


def was_and_is(changed: Changed) -> str:
    """Status before and now, and the errors that tell the difference."""
    before, after = changed.before, changed.after
    statuses = [str(case.status) for case in (before, after) if case is not None]
    if changed.change == "drifted":
        return ", ".join(f"{name} {told(old)} → {told(new)} budgets" for name, (old, new) in changed.grown.items())
    return " → ".join(statuses)


def text(found: Comparison) -> Iterator[str]:
    """Lines for a terminal."""
    for run, verdict in zip(found.gathered.runs, found.gathered.verdicts, strict=True):
        yield f"{run.mark}  {run.label}: {verdict.word.lower()}"
        for doubt in verdict.doubts:
            yield f"   {doubt}"
    for name, before, now in found.differing:
        yield f"   {name}: {line(before, 60) or 'none'} → {line(now, 60) or 'none'}"
    for change in CHANGES:
        if not found.counts[change]:
            continue
        yield f"{change} ({found.counts[change]:,}): {MEANINGS[change]}"
        limit = SHOWN_TEXT if change in LOUD else 5
        for changed in found.kept[change][:limit]:
            case = changed.case
            yield f"  {case.id} {case.surface}: {was_and_is(changed)}"
            if change in ("regressed", "otherwise"):
                yield f"    {line(case.reason, 300)}"
                yield f"    {case.reproducer}"
        if found.counts[change] > limit:
            yield f"  ... and {found.counts[change] - limit:,} more"
    yield headline(found)


def as_markdown(found: Comparison) -> str:
    """The same as Markdown."""
    out = [f"## {markdown(headline(found))}", ""]
    rows = [
        [run.mark, markdown(run.label), markdown(run.header.started, 40), verdict.word, f"{run.checked:,}"]
        for run, verdict in zip(found.gathered.runs, found.gathered.verdicts, strict=True)
    ]
    out += table(["", "run", "started", "verdict", "checked"], rows, right=1)
    for run, verdict in _judged(found):
        out += [f"- {run.mark}: {markdown(doubt, 1000)}" for doubt in verdict.doubts]
    out += [""] if any(verdict.doubts for _, verdict in _judged(found)) else []
    if found.differing:
        told_ = [[markdown(n), markdown(a, 200) or "–", markdown(b, 200) or "–"] for n, a, b in found.differing]
        out += table(["differs", "A", "B"], told_)
    for change in CHANGES:
        if not found.counts[change]:
            continue
        out += [f"### {change.capitalize()} ({found.counts[change]:,})", "", f"{MEANINGS[change].capitalize()}.", ""]
        for changed in found.kept[change][:SHOWN_MARKDOWN]:
            case = changed.case
            out.append(f"- **{markdown(case.id)}** {markdown(case.surface)}: {markdown(was_and_is(changed))}")
            if change in ("regressed", "otherwise"):
                out.append(f"  {markdown(case.reason, 600)}  ")
                out += [f"  {code(case.reproducer, 400)}"] if case.reproducer else []
        if found.counts[change] > SHOWN_MARKDOWN:
            out.append(f"- and {found.counts[change] - SHOWN_MARKDOWN:,} more")
        out.append("")
    return "\n".join(out).rstrip() + "\n"


def as_page(found: Comparison) -> str:
    """The same as a page that needs nothing else."""
    return shell(
        "diff.html.j2",
        found=found,
        judged=list(zip(found.gathered.runs, found.gathered.verdicts, strict=True)),
        headline=headline(found),
        changes=[change for change in CHANGES if found.counts[change]],
        meanings=MEANINGS,
        was_and_is=was_and_is,
        shown=SHOWN_PAGE,
    )
