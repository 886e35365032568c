"""Does a run qualify, and why: recomputed from its results; what the footer says is only compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dsv4_conformance.errors import ExitCode
from dsv4_conformance.plugin import verdict
from dsv4_conformance.plugin.ending import INTERRUPTED
from dsv4_conformance.report import escaping
from dsv4_conformance.report.folding import Rule, Run
from dsv4_conformance.report.measured import REQUIRED_MARGIN, told
from dsv4_conformance.status import QUALIFYING, Status

WORDS: dict[int, str] = {
    ExitCode.QUALIFIES: "Qualifies",
    ExitCode.FAILED: "Does not qualify",
    ExitCode.BAD_INPUT: "Stopped",
    ExitCode.HARNESS_ERROR: "Harness failed",
    ExitCode.NOTHING_CHECKED: "Nothing was checked",
    ExitCode.INCONCLUSIVE: "Inconclusive",
    ExitCode.INVALID_COMPARISON: "Invalid comparison",
}
PARTIAL = "Passed in part"
UNENDED = "Did not end"
INTERRUPTED_WORD = "Interrupted"
NAMED = 6
"""Requirements named in a reason."""


@dataclass(frozen=True)
class Reason:
    """One sentence, the requirements it is about, and how many ``more`` those are. ``grave``: it stands in the way of
    qualifying; ``waiver``: it would, without a waiver."""

    text: str
    rules: tuple[str, ...] = ()
    grave: bool = True
    more: int = 0
    waiver: bool = False

    @property
    def whole(self) -> str:
        """The sentence with its requirements."""
        names = ", ".join(self.rules) + (f" and {self.more} more" if self.more else "")
        return f"{self.text.rstrip('.')} ({names})." if names else self.text


@dataclass(frozen=True)
class Verdict:
    """``tone``: good, bad or open (neither). ``code``: the exit code that these results have. ``doubts``: why the
    journal itself cannot be relied on; ``waived``: failures that a waiver permits."""

    word: str
    tone: str
    code: int
    reasons: tuple[Reason, ...]
    doubts: tuple[str, ...] = ()
    waived: int = 0

    @property
    def good(self) -> bool:
        """Whether the run qualifies."""
        return self.tone == "good"


def judge(run: Run) -> Verdict:
    """The verdict on a run, with its reasons, the gravest first."""
    found = _judge(run)
    return replace(found, doubts=tuple(reason.text for reason in _doubts(run)), waived=run.counts[Status.WAIVED])


def _judge(run: Run) -> Verdict:
    grave = [*_doubts(run), *_failures(run), *_whole(run)]
    footer = run.footer
    code = int(verdict.exit_code(run.statuses)) if footer is None else footer.exit_code
    if footer is None:
        code = code or int(ExitCode.FAILED)
        return Verdict(UNENDED, "bad", code, (*grave, *_praise(run)))
    if code == ExitCode.QUALIFIES and not grave:
        return Verdict(_with_waived(run.counts[Status.WAIVED]), "good", code, tuple(_praise(run)))
    word = INTERRUPTED_WORD if code == INTERRUPTED else WORDS.get(code, f"Exit code {code}")
    if code == ExitCode.QUALIFIES:
        only_part = all(reason.text.startswith("Not all of the profile") for reason in grave)
        word = PARTIAL if only_part else WORDS[ExitCode.FAILED]
        code = code if only_part else int(ExitCode.FAILED)
    undecided = code in (ExitCode.INCONCLUSIVE, ExitCode.INVALID_COMPARISON, ExitCode.NOTHING_CHECKED)
    return Verdict(word, "open" if undecided or word == PARTIAL else "bad", code, (*grave, *_praise(run)))


def headline(verdicts: Sequence[Verdict]) -> str:
    """One sentence about all runs."""
    good = sum(found.good for found in verdicts)
    if len(verdicts) == 1:
        return f"{verdicts[0].word}."
    if good == len(verdicts):
        waived = sum(found.waived for found in verdicts)
        with_them = f", with {waived:,} waived failure{'s' if waived > 1 else ''}" if waived else ""
        return f"{'Both' if good == 2 else f'All {good}'} runs qualify{with_them}."
    return f"{'None' if good == 0 else good} of {len(verdicts)} runs {'qualifies' if good < 2 else 'qualify'}."


def _with_waived(number: int) -> str:
    """The word for a run that qualifies, with so many failures that a waiver permits."""
    word = WORDS[ExitCode.QUALIFIES]
    return f"{word} with {number:,} waived failure{'s' if number > 1 else ''}" if number else word


def _doubts(run: Run) -> Iterator[Reason]:
    """What is wrong with the journal itself."""
    footer = run.footer
    if footer is None:
        torn = ", and its last line was cut off" if run.torn else ""
        yield Reason(f"The run did not end: the journal has no footer{torn}.")
    for told_ in (*run.doubts, *run.waiver_doubts):
        yield Reason(f"The journal contradicts itself: {told_}")
    if run.unplanned:
        yield Reason(f"{run.unplanned:,} results are of cases that the plan does not have.")
    if footer is not None:
        differs = []
        if {s: n for s, n in run.counts.items() if n} != {s: n for s, n in footer.counts.items() if n}:
            differs.append("counts")
        if footer.results_hash != run.results_hash:
            differs.append("results hash")
        if differs:
            yield Reason(f"The journal contradicts itself: {' and '.join(differs)} of its footer are not its results'.")
        code = int(verdict.exit_code(run.statuses))
        if footer.exit_code == ExitCode.QUALIFIES != code:
            yield Reason(f"The footer says exit code 0, and the results make it {code}.")


def _failures(run: Run) -> Iterator[Reason]:
    """A sentence per status that does not qualify, the worst first."""
    for status in verdict.SEVERITY:
        if status in QUALIFYING or not run.counts[status]:
            continue
        rules = [rule for rule in run.rules.values() if rule.counts[status]]
        rules.sort(key=lambda rule: -rule.counts[status])
        text = f"{run.counts[status]:,} {status} in {_of(rules)}."
        yield Reason(text, tuple(rule.id for rule in rules[:NAMED]), more=max(0, len(rules) - NAMED))


def _of(rules: Sequence[Rule]) -> str:
    if len(rules) > 1:
        return f"{len(rules)} requirements"
    title = rules[0].title
    return f"one requirement: {title[:1].lower()}{title[1:]}" if title else "one requirement"


def _whole(run: Run) -> Iterator[Reason]:
    """What is wrong with the run as a whole."""
    for problem in run.footer.problems if run.footer else ():
        yield Reason(escaping.line(problem, 600))
    header = run.header
    part = f"shard {header.shard.index} of {header.shard.count}" if header.shard else ""
    left = ", ".join(filter(None, [part, escaping.line(header.partial, 600)]))
    if left:
        yield Reason(f"Not all of the profile was run: {left}.")
    footer = run.footer
    if footer is not None and footer.exit_code and footer.exit_code != int(verdict.exit_code(run.statuses)):
        yield Reason(escaping.line(footer.verdict, 600))


def _praise(run: Run) -> Iterator[Reason]:
    """What the results rest on."""
    yield Reason(
        f"{run.checked:,} of {run.planned:,} planned cases checked, {len(run.rules)} requirements.", grave=False
    )
    for waiver in run.header.waivers:
        if number := run.waived[waiver.id]:
            who = f"{waiver.owner}, until {waiver.expires}: {waiver.issue}"
            text = f"{number:,} waived by {waiver.id} ({who})."
            yield Reason(escaping.line(text, 600), (escaping.name(waiver.requirement),), grave=False, waiver=True)
    rules = [rule for rule in run.rules.values() if rule.held is not None]
    if rules:
        worst = max(rules, key=lambda rule: rule.held or 0.0)
        what = "Largest error that is not waived" if run.counts[Status.WAIVED] else "Largest error"
        text = f"{what}: {told(worst.held)}" if run.counts[Status.WAIVED] else f"{what} {told(worst.held)}"
        yield Reason(f"{text} budgets ({worst.held_output}), limit 1.", (worst.id,), grave=False)
    rules = [rule for rule in run.rules.values() if rule.margin is not None]
    if rules:
        weakest = min(rules, key=lambda rule: rule.margin or 0.0)
        margin = weakest.margin or 0.0
        hint = f", below {REQUIRED_MARGIN:g}: such a mistake may pass" if margin < REQUIRED_MARGIN else ""
        yield Reason(
            f"Least rejected known mistake: {weakest.weakest}, by {told(margin)} budgets{hint}.",
            (weakest.id,),
            grave=False,
        )
    if run.counts[Status.WARN]:
        rules = [rule for rule in run.rules.values() if rule.counts[Status.WARN]]
        names = tuple(rule.id for rule in rules[:NAMED])
        text = f"{run.counts[Status.WARN]:,} {Status.WARN} (a SHOULD is not met; nothing is wrong)."
        yield Reason(text, names, grave=False)
    absent = run.counts[Status.NOT_APPLICABLE]
    if absent:
        yield Reason(f"{absent:,} not applicable: the adapter declares that it does not offer them.", grave=False)
