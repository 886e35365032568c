"""The verdict in plain words: one paragraph that a release manager can act on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dsv4_conformance.accuracy.decision import Verdict
from dsv4_conformance.accuracy.gate import Judgement, Moved, Score
from dsv4_conformance.accuracy.rates import Finding
from dsv4_conformance.accuracy.records import Session

NAMED = 8
"""Questions named one by one."""
TASKS = {"gsm8k": "GSM8K", "aime25": "AIME25"}
GATES = {
    "score": "the score",
    "truncated": "replies cut off",
    "no_answer": "replies without an answer",
    "malformed": "filtered or malformed replies",
    "errors": "failed requests",
    "form": "the form of the answers",
    "tokens": "the length of replies",
    "fresh": "whether replies are new",
}

ADVICE = {
    "truncated": "see whether they go round in circles, which is the build's fault, or only think longer: then raise "
    "--max-tokens for golden and run alike, and record the golden anew",
    "no_answer": "look for a broken chat template, a reasoning parser that keeps the answer, or text that is garbled",
    "malformed": "switch the server's filter off, or mend what writes the content and the finish_reason of a reply",
    "tokens": "look for replies that go round in circles or break off",
}
"""What to look for in the replies that a gate failed for."""
UNVERIFIED = "The questions are not verified."
WIDE = 0.25
"""Half an interval from which on it says nothing but that more questions are needed."""
WIDER = " So wide an interval means nothing; ask more questions."
DULL = ("owned_by", "root", "max_model_len")
"""What a server says of itself that tells builds apart, and that a reader of a verdict need not see."""


def paragraph(judgement: Judgement) -> str:
    """What was found, how sure it is, what this run could have seen, which questions moved, what to do."""
    if judgement.score is None:
        return " ".join(_invalid(judgement))
    told = [_headline(judgement, judgement.score), _scores(judgement, judgement.score)]
    told += [_sources(judgement), _meaning(judgement, judgement.score), _could_see(judgement, judgement.score)]
    told += [
        *_questions(judgement.score, judgement.verdict),
        _others(judgement),
        *_warnings(judgement),
        _action(judgement),
    ]
    return " ".join(part for part in told if part)


def _task(judgement: Judgement) -> str:
    golden = judgement.golden
    known = TASKS.get(golden.task, golden.task)
    if golden.provenance.get("observed data") == UNVERIFIED:
        return f"{known} with {len(golden.rows):,} questions of your own"
    return known


def _simulated(judgement: Judgement) -> str:
    return ", recorded from the simulated server," if judgement.golden.simulated else ""


def _points(share: float, *, sign: bool = False) -> str:
    value = round(100 * share, 2) + 0.0  # no minus zero
    return f"{value:+.2f}" if sign else f"{value:.2f}"


def _margin(share: float) -> str:
    value = 100 * share
    return f"{value:g} point{'' if value == 1 else 's'}"


def _passes(number: int) -> str:
    return f"{number} pass{'' if number == 1 else 'es'}"


def _invalid(judgement: Judgement) -> Iterator[str]:
    yield (
        f"INVALID: {_task(judgement)} of {judgement.candidate!r} cannot be compared with the golden "
        f"{judgement.golden.name!r}, so nothing is said about its accuracy."
    )
    if _few_passes(judgement):
        yield f"Too few passes yet: {judgement.invalid[0]}."
        return
    shown = judgement.invalid[:NAMED]
    more = len(judgement.invalid) - len(shown)
    yield "; ".join(shown) + (f"; and {more} more." if more else ".")
    if len(judgement.invalid) == 1 and shown[0].startswith("end: "):
        return  # that clause says how to get it
    yield "What to do: mend this and run again; a run that cannot be compared is neither a pass nor a failure."


def _few_passes(judgement: Judgement) -> bool:
    """Whether passes are missing and nothing else; that clause says how to get them."""
    return judgement.rule.look(judgement.passes) is None and len(judgement.invalid) == 1


def _sources(judgement: Judgement) -> str:
    """Whose answers these are: a run may have gone on from a file that another build began."""
    return " ".join(part for part in (_origin(judgement), _earlier(judgement.sessions)) if part)


def _earlier(sessions: tuple[Session, ...]) -> str:
    """Of several runs that one file pools, how many answers the last one found there."""
    runs = list(dict.fromkeys(session.run for session in sessions))
    if len(runs) < 2:
        return ""
    total = sum(session.answers for session in sessions)
    found = sum(session.answers for session in sessions if session.run != runs[-1])
    since = next(session.started for session in sessions if session.run == runs[-1])
    asked = (
        f"{total - found:,} {'was' if total - found == 1 else 'were'} asked then"
        if total > found
        else "nothing was asked then"
    )
    return (
        f"Look at this: {found:,} of the {total:,} answers {'was' if found == 1 else 'were'} there when the last "
        f"run began ({since}; {asked}): if the server was restarted with another build in between, run again with a "
        "--results folder of its own."
    )


def _origin(judgement: Judgement) -> str:
    given = [session for session in judgement.sessions if session.answers]
    if not given:
        return ""
    builds = list(dict.fromkeys(_build(session.build) for session in given))
    when = f"begun {given[0].started}"
    if len(given) > 1:
        when += f", the last {given[-1].answers:,} of them {given[-1].started}"
    if len(builds) == 1:
        return f"Answered at {builds[0]}, {when}."
    return f"Look at this: answers of {len(builds)} set-ups are pooled as of one build: {'; '.join(builds)} ({when})."


def _build(build: dict[str, str]) -> str:
    shown = {name.removeprefix("--note ").removeprefix("the server's "): text for name, text in build.items()}
    more = [f"{name} {text}" for name, text in shown.items() if name not in ("--endpoint", *DULL)]
    told = f" ({', '.join(more)})" if more else ""
    return f"{build.get('--endpoint') or 'an unknown address'}{told}"


def _headline(judgement: Judgement, score: Score) -> str:
    task, margin = _task(judgement), _margin(judgement.rule.margin)
    failed = [found for found in judgement.findings if found.verdict == Verdict.FAIL]
    if judgement.verdict == Verdict.FAIL:
        if failed[0].gate != "score":
            return f"FAIL: on {task}, {_list(GATES[found.gate] for found in failed)} got worse."
        if score.broken:
            number = f"{len(score.broken)} question{'s' if len(score.broken) > 1 else ''}"
            return f"FAIL: {task} is down {_points(-score.difference)} points, and {number} surely broke."
        return f"FAIL: {task} is down {_points(-score.difference)} points."
    if judgement.verdict == Verdict.INCONCLUSIVE:
        return f"INCONCLUSIVE: {task} may or may not be worse by {margin}; this run cannot tell."
    return f"PASS: {task} is not worse than the golden by {margin} or more."


def _scores(judgement: Judgement, score: Score) -> str:
    golden = judgement.golden
    return (
        f"{judgement.candidate!r} answers {_points(score.candidate)} % of {len(golden.rows):,} questions right in "
        f"{_passes(judgement.passes)}, the golden {golden.name!r}{_simulated(judgement)} {_points(score.golden)} % in "
        f"{_passes(golden.runs)}: a difference of {_points(score.difference, sign=True)} points, 95 % interval "
        f"{_points(score.low, sign=True)} to {_points(score.high, sign=True)}."
        f"{WIDER if score.high - score.low > 2 * WIDE else ''}"
    )


def _meaning(judgement: Judgement, score: Score) -> str:
    found = judgement.finding("score")
    rule = judgement.rule
    if found is None:
        return ""
    if found.verdict == Verdict.FAIL:
        if score.broken:
            named = _list(
                f"{m.item} ({m.candidate} of {m.repeats}, golden {m.golden} of {m.runs})" for m in score.broken
            )
            return (
                f"Broken: {named}; of questions that the gate names, at most 1 in {1 / rule.item_rate:.0f} is chance."
            )
        if score.difference <= -rule.floor:
            return f"A drop of {_margin(rule.floor)} or more fails without further tests."
        return (
            f"The drop is real: an unchanged engine fails at most 1 such gate in {1 / rule.fail_alpha:.0f}, and it is "
            f"more than half the margin of {_margin(rule.margin)}."
        )
    if found.verdict == Verdict.INCONCLUSIVE:
        errors = judgement.finding("errors")
        if errors is not None and errors.numbers["count"]:
            return "It depends on what the failed requests would have answered, or the interval is too wide."
        return f"The interval still reaches beyond {_points(-rule.margin)} points, and does not exclude no change."
    if found.warns:
        return "It is really lower, if by less than the margin: keep this golden for the next change, or losses add up."
    return ""


def _could_see(judgement: Judgement, score: Score) -> str:
    return (
        f"Spread over the questions, a true drop of {_points(score.seen)} points would have failed a run like this 4 "
        "times in 5."
    )


def _questions(score: Score, verdict: Verdict) -> Iterator[str]:
    for word, moved in (("Lost", score.lost), ("Gained", score.gained)):
        if not moved:
            yield f"{word}: no question."
            continue
        names = [_moved(m) for m in moved[:NAMED]]
        more = f", and {len(moved) - NAMED} more" if len(moved) > NAMED else ""
        yield f"{word}: {len(moved)} question{'s' if len(moved) > 1 else ''} ({', '.join(names)}{more})."
    if verdict == Verdict.PASS and (score.lost or score.gained):
        yield "So many of each move by chance between two runs of one build; single questions are no finding here."


def _moved(moved: Moved) -> str:
    return f"{moved.item} {moved.golden}/{moved.runs} to {moved.candidate}/{moved.repeats}"


def _others(judgement: Judgement) -> str:
    others = [found for found in judgement.findings if found.gate != "score"]
    worse = [found for found in others if found.verdict == Verdict.FAIL]
    if worse:
        return " ".join(f"{_capital(found.sentence)}.{_hit(found)}" for found in worse)
    quiet = [found for found in others if not found.warns]
    named = _list(GATES[found.gate] for found in quiet)
    return f"{_capital(named)}: as in the golden." if quiet else ""


def _warnings(judgement: Judgement) -> Iterator[str]:
    for found in judgement.warns:
        if found.gate != "score":
            yield f"Look at this: {found.sentence}.{_hit(found)}"


def _hit(found: Finding) -> str:
    """The questions that a gate is about."""
    if not found.items or found.gate == "form":
        return ""
    more = f"; and {len(found.items) - NAMED} more" if len(found.items) > NAMED else ""
    return f" {_capital(GATES[found.gate])}: {'; '.join(found.items[:NAMED])}{more}."


def _again(items: Iterable[str]) -> str:
    named = ",".join(item.split()[0] for item in list(items)[:NAMED])
    return f"`dsv4-conformance accuracy run ... --questions {named}` asks them alone"


def _action(judgement: Judgement) -> str:
    following = judgement.next_look
    if judgement.verdict == Verdict.PASS:
        if judgement.warns:
            return "What to do: accuracy does not stand in the way; look at what is marked above."
        return "What to do: nothing; accuracy does not stand in the way."
    if judgement.verdict == Verdict.INCONCLUSIVE:
        if following is not None:
            return (
                f"What to do: run on to {_passes(following)} with the same command; answers so far are kept and "
                "pooled, never replaced."
            )
        return (
            "What to do: this was the last look, and asking again until it passes would prove nothing. Ask the moved "
            "questions by themselves, or judge against a golden with more passes."
        )
    failed = [found for found in judgement.findings if found.verdict == Verdict.FAIL]
    told = [_read(found) for found in failed if found.gate in ADVICE]
    score = judgement.score
    if score is not None and score.lost and failed[0].gate == "score":
        told.append(
            f"ask {score.lost[0].item}{' and the other lost questions' if len(score.lost) > 1 else ''} of both builds, "
            "and compare their replies "
            f"({_again(moved.item for moved in score.lost)})"
        )
    return f"What to do: do not merge; {'; '.join(told) or 'compare the replies of both builds'}."


def _read(found: Finding) -> str:
    again = f" ({_again(found.items)})" if found.items else ""
    return f"{GATES[found.gate]}: read them in the run's file{again}, and {ADVICE[found.gate]}"


def _list(names: Iterable[str]) -> str:
    found = list(names)
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}" if found else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def lines(judgement: Judgement) -> list[str]:
    """The findings as a short table: verdict, gate, what it found."""
    width = max((len(_word(found)) for found in judgement.findings), default=0)
    return [f"{_word(found):<{width}}  {found.gate:<9}  {found.sentence}" for found in judgement.findings]


def _word(found: Finding) -> str:
    return "WARN" if found.warns and found.verdict == Verdict.PASS else found.verdict.name
