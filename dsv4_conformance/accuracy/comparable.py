"""May a run be compared with a golden at all? Every reason why not, as a sentence that names the field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsv4_conformance.accuracy.data import pinned
from dsv4_conformance.accuracy.golden_record import Golden
from dsv4_conformance.accuracy.marks import by_chance, known, marks_of
from dsv4_conformance.accuracy.profiles import Rule
from dsv4_conformance.accuracy.records import AccuracyRun
from dsv4_conformance.accuracy.soundness import COPIES, copies, problems, unclosed
from dsv4_conformance.accuracy.tally import Tally, pass_digests
from dsv4_conformance.accuracy.tasks import TASKS
from dsv4_conformance.texts import counted

SHOWN = 60
"""Characters of a value that a sentence shows."""
THINKING = 0.5
"""Share of replies with reasoning from which on an engine counts as thinking."""
OWN, FEWEST_OWN = 0.01, 3
"""Share and number of answers that are the golden's own from which on they were taken from there."""
AGAIN = 0.1
"""Share of replies word for word the golden's, beyond what chance does, from which on they are no new draws."""


def differing_fields(golden: Golden, run: AccuracyRun) -> Iterator[str]:
    """Fields in which golden and run were not asked the same way; name of the model and what is under test are free."""
    header = run.header
    for field in ("task", "endpoint"):
        ours, theirs = getattr(golden, field), getattr(header, field)
        if ours != theirs:
            yield f"{field} is {_shown(theirs)}, in the golden {_shown(ours)}"
    for field in sorted(golden.fingerprint.keys() | header.fingerprint.keys()):
        ours, theirs = golden.fingerprint.get(field), header.fingerprint.get(field)
        if ours != theirs:
            yield f"fingerprint.{field} is {_shown(theirs)}, in the golden {_shown(ours)}"
    if (mine := set(golden.items)) != (other := set(header.items)):
        yield (
            f"items: {counted(len(mine - other), 'question')} of the golden {_be(len(mine - other))} not in the run, "
            f"{len(other - mine):,} {_be(len(other - mine))} new"
        )


def differing_questions(golden: Golden, run: AccuracyRun, tally: Tally) -> Iterator[str]:
    """Questions that were worded or answered otherwise, or in different ways in the passes of one run."""
    place = {item: i for i, item in enumerate(run.header.items)}
    for field, of_run in (("prompt", tally.prompts), ("expected", tally.expected)):
        wrong = [row.item for row in golden.rows if of_run[place[row.item]] != getattr(row, field)]
        if wrong:
            yield f"{field} of {counted(len(wrong), 'question')} is another than in the golden, {wrong[0]} first"


def incomplete(golden: Golden, run: AccuracyRun, passes: int, rule: Rule) -> Iterator[str]:
    """Questions and passes that are missing on either side."""
    if (whole := _of_set(golden)) > len(golden.rows):
        yield (
            f"the golden has {len(golden.rows):,} of the {whole:,} questions of {golden.task}; a part says nothing of "
            "the whole, so record one of all"
        )
    if golden.runs < rule.golden_runs:
        yield f"the golden has {golden.runs} passes and this profile needs {rule.golden_runs}; record a longer one"
    if rule.look(passes) is None:
        first, missing = rule.looks[0], len(run.missing(rule.looks[0]))
        yield (
            f"{counted(missing, 'answer')} of the first {counted(first, 'pass', 'passes')} that this profile judges "
            f"{_be(missing)} missing; run the same command again with --repeats "
            f"{first}: it asks only for what is missing"
        )


def unfinished(run: AccuracyRun) -> Iterator[str]:
    """A closing line that is missing: the server at the end may be another than the one that answered."""
    if told := unclosed(run):
        yield told


def _of_set(golden: Golden) -> int:
    """Questions of the set that the golden is of; 0 where golden/accuracy/data.json does not know it."""
    task = TASKS.get(golden.task)
    pin = pinned(task.questions) if task is not None else {"texts": {}}
    return int(pin["rows"]) if golden.fingerprint.get("dataset") in pin["texts"] else 0


def copied(golden: Golden, run: AccuracyRun, passes: int) -> Iterator[str]:
    """Answers that the golden itself was recorded from, or that a cache gave; what is compared with itself agrees."""
    if golden.copied:
        yield (
            f"golden: the {golden.runs} passes of {golden.name!r} are copies of one, as a cache or one seed for all "
            "makes them; record it anew"
        )
    own = [n for n, digest in enumerate(pass_digests(run, passes), 1) if digest in golden.digests]
    if own:
        yield (
            f"answers: pass {', '.join(map(str, own))} of this run is the golden's own, which was recorded from "
            "the same answers; ask the build under test, with a --results folder of its own"
        )
        return
    alike = likeness(golden, run, passes)
    if alike.own >= max(FEWEST_OWN, OWN * alike.answers):
        yield (
            f"answers: {alike.own:,} of {alike.answers:,} are the golden's own, to the time they took; ask the build "
            "under test for all of them, with a --results folder of its own"
        )
    elif not golden.greedy and alike.again > AGAIN:
        yield (
            f"answers: {alike.words:,} of {alike.spoken:,} replies are byte for byte the golden's, where chance makes "
            f"{100 * alike.chance:.0f} %; an unchanged build was asked with the golden's seeds, or a cache answers in "
            "place of the build: switch the cache off, and leave --seed out"
        )


@dataclass(frozen=True)
class Likeness:
    """How many of a run's answers are the golden's: ``words`` of the ``spoken`` replies byte for byte, ``own`` of all
    ``answers`` to their times. ``chance``: the share of equal words among passes of the golden."""

    answers: int
    spoken: int
    words: int
    own: int
    chance: float

    @property
    def again(self) -> float:
        """Share of replies with the golden's words, beyond chance."""
        share = self.words / self.spoken if self.spoken else 0.0
        return (share - self.chance) / (1 - self.chance) if self.chance < 1 else 0.0


def likeness(golden: Golden, run: AccuracyRun, passes: int) -> Likeness:
    """Compare the first ``passes`` passes with the golden's marks; nothing is alike where it has none."""
    marks = marks_of(run, passes)
    found = [known(row.marks, marks.get(row.item, "")) for row in golden.rows if row.marks]
    spoken, words, own = (sum(column) for column in zip(*found, strict=True)) if found else (0, 0, 0)
    return Likeness(passes * len(golden.rows), spoken, words, own, by_chance(row.marks for row in golden.rows))


def untrustworthy(golden: Golden, run: AccuracyRun, tally: Tally, rule: Rule) -> Iterator[str]:
    """What makes the answers something else than the engine's answers to these questions."""
    yield from problems(run)
    errors = int(tally.errors.sum())
    if errors > rule.errors * tally.answers:
        yield (
            f"errors: {errors:,} of {counted(tally.answers, 'request')} got no usable reply "
            f"({100 * errors / tally.answers:.2f} %, allowed are {100 * rule.errors:g} %)"
        )
    if rule.tokens_do == "fail" and golden.mean_tokens is not None and tally.tokens is None:
        yield (
            "tokens: replies come without completion_tokens, which the golden has and this profile judges; let the "
            "server, or the proxy before it, send usage"
        )
    usable = tally.answers - errors
    thought = int(golden.counts("reasoned").sum()) / golden.answers
    thinks = int(tally.reasoned.sum()) / usable if usable else 0.0
    if (thought >= THINKING) != (thinks >= THINKING):
        yield (
            f"thinking: {100 * thinks:.0f} % of the replies have reasoning, in the golden {100 * thought:.0f} %; the "
            "server thinks by its own switch, not by the request's"
        )
    if (share := copies(run, tally.repeats)) >= COPIES and not golden.greedy:
        yield (
            f"seed: {100 * share:.0f} % of the questions got byte-identical replies in all {tally.repeats} passes at a "
            "temperature above 0; a cache or one seed for all passes makes them one pass"
        )


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


def _shown(value: str | None) -> str:
    if value is None:
        return "absent"
    return repr(value if len(value) <= SHOWN else f"{value[:SHOWN]}...")
