"""May a run be compared with a golden at all? Every reason why not, as a sentence that names the field."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from dsv4_conformance.accuracy.golden_record import Golden
from dsv4_conformance.accuracy.profiles import Rule
from dsv4_conformance.accuracy.records import AccuracyRun
from dsv4_conformance.accuracy.soundness import other_models
from dsv4_conformance.accuracy.tally import Tally, pass_digests

SHOWN = 60
"""Characters of a value that a sentence shows."""
THINKING = 0.5
"""Share of replies with reasoning from which on an engine counts as thinking."""
COPIES = 0.9
"""Share of questions with byte-identical replies in all passes from which on the passes are taken for copies."""


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
        yield f"items: {len(mine - other)} questions of the golden are not in the run, {len(other - mine)} are new"


def differing_questions(golden: Golden, run: AccuracyRun, tally: Tally) -> Iterator[str]:
    """Questions that were worded or answered otherwise, or in different ways in the passes of one run."""
    place = {item: i for i, item in enumerate(run.header.items)}
    for field, of_run in (("prompt", tally.prompts), ("expected", tally.expected)):
        wrong = [row.item for row in golden.rows if of_run[place[row.item]] != getattr(row, field)]
        if wrong:
            yield f"{field} of {len(wrong)} questions is another than in the golden, {wrong[0]} first"


def incomplete(golden: Golden, run: AccuracyRun, passes: int, rule: Rule) -> Iterator[str]:
    """Passes that are missing on either side."""
    if golden.runs < rule.golden_runs:
        yield f"the golden has {golden.runs} passes and this profile needs {rule.golden_runs}; record a longer one"
    if rule.look(passes) is None:
        first, missing = rule.looks[0], len(run.missing(rule.looks[0]))
        yield (
            f"{missing:,} answer{'s' if missing > 1 else ''} of the first {first} pass{'es' if first > 1 else ''} that "
            f"this profile judges {'are' if missing > 1 else 'is'} missing; run the same command again with --repeats "
            f"{first}: it asks only for what is missing"
        )


def copied(golden: Golden, run: AccuracyRun, passes: int) -> Iterator[str]:
    """Passes that the golden itself was recorded from; what is compared with itself always agrees."""
    own = [n for n, digest in enumerate(pass_digests(run, passes), 1) if digest in golden.digests]
    if own:
        yield (
            f"answers: pass {', '.join(map(str, own))} of this run is the golden's own, which was recorded from "
            "the same answers; ask the build under test, with a --results folder of its own"
        )


def untrustworthy(golden: Golden, run: AccuracyRun, tally: Tally, rule: Rule) -> Iterator[str]:
    """What makes the answers something else than the engine's answers to these questions."""
    if told := other_models(run):
        yield told
    errors = int(tally.errors.sum())
    if errors > rule.errors * tally.answers:
        yield (
            f"errors: {errors} of {tally.answers} requests got no usable reply ({100 * errors / tally.answers:.2f} %, "
            f"allowed are {100 * rule.errors:g} %)"
        )
    usable = tally.answers - errors
    thought = int(golden.counts("reasoned").sum()) / golden.answers
    thinks = int(tally.reasoned.sum()) / usable if usable else 0.0
    if (thought >= THINKING) != (thinks >= THINKING):
        yield (
            f"thinking: {100 * thinks:.0f} % of the replies have reasoning, in the golden {100 * thought:.0f} %; the "
            "server thinks by its own switch, not by the request's"
        )
    if (share := copies(run, tally.repeats)) >= COPIES and golden.fingerprint.get("temperature") not in ("0", "0.0"):
        yield (
            f"seed: {100 * share:.0f} % of the questions got byte-identical replies in all {tally.repeats} passes at a "
            "temperature above 0; a cache or one seed for all passes makes them one pass"
        )


def copies(run: AccuracyRun, repeats: int) -> float:
    """Share of questions whose usable replies, two or more, are byte-identical in all passes; 0 for a single pass."""
    if repeats < 2:
        return 0.0
    texts: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for answer in run.answers:
        if answer.repeat < repeats and answer.status != "error" and (answer.text or answer.reasoning):
            texts[answer.item].append((answer.reasoning, answer.text))
    several = [found for found in texts.values() if len(found) > 1]
    return sum(len(set(found)) == 1 for found in several) / len(several) if several else 0.0


def _shown(value: str | None) -> str:
    if value is None:
        return "absent"
    return repr(value if len(value) <= SHOWN else f"{value[:SHOWN]}...")
