"""Is a run one measurement? What its own answers say against it, whatever it is compared with."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from dsv4_conformance.accuracy.records import AccuracyRun

COPIES = 0.9
"""Share of questions with byte-identical replies in all passes from which on the passes are taken for copies."""
MOST_BUILDS = 16
"""Of more different system_fingerprints than these, each is one reply's and says nothing of a build."""
GREEDY = ("0", "0.0")
"""Temperatures at which equal replies are as they should be."""
SYSTEM = "the server's system_fingerprint"


def problems(run: AccuracyRun) -> Iterator[str]:
    """Clauses, one for each reason why the answers are not one build's."""
    yield from (told for told in (other_models(run), other_systems(run), exchanged(run)) if told)


def other_models(run: AccuracyRun) -> str:
    """A clause if replies name another model than the run is about, empty if not."""
    usable = [answer for answer in run.answers if answer.status != "error"]
    names = Counter(answer.served for answer in usable)
    wanted = run.header.fingerprint.get("model", "")
    if set(names) <= {""} or set(names) == {wanted}:
        return ""
    told = ", ".join(f"{name or 'none'!r} in {count:,}" for name, count in names.most_common(4))
    first = next(answer for answer in usable if answer.served != wanted)
    return (
        f"served: the run is of the model {wanted!r} and the replies name {told} of {len(usable):,}, another one at "
        f"{first.item} of pass {first.repeat + 1} first; more than one server answers at this address"
    )


def other_systems(run: AccuracyRun) -> str:
    """A clause if replies have several system_fingerprints that nobody said were of one build, empty if not."""
    names = Counter(answer.system for answer in run.answers if answer.system)
    said = {build[SYSTEM] for session in run.sessions if SYSTEM in (build := session.build)}
    if len(names) + len(said - set(names)) <= 1 or len(names) > MOST_BUILDS or set(names) <= said:
        return ""
    told = ", ".join(f"{name!r} in {count:,}" for name, count in names.most_common(4))
    before = f", where the probe found {', '.join(map(repr, sorted(said)))}" if said else ""
    return f"system_fingerprint: the replies have {told}{before}; builds were exchanged, or several answer"


def exchanged(run: AccuracyRun) -> str:
    """A clause if the server said something else of itself at a session's end than at its beginning, empty if not."""
    for session in run.sessions:
        for name, now in (session.ended or {}).items():
            if name in session.build and session.build[name] != now:
                return (
                    f"build: {name} was {session.build[name]} when asking began ({session.started}) and was {now} when "
                    "it ended; the server was exchanged in mid-run, so make the run again in another folder"
                )
    return ""


def unclosed(run: AccuracyRun) -> str:
    """A clause if the file has no closing line, so that nothing says whether the server was exchanged; empty if it has.

    Of several sessions the last one has to be closed: it began by finding that the server is the one of those before.
    """
    if not run.sessions or run.sessions[-1].ended is not None:
        return ""
    return (
        f"end: {run.path or 'the run'} has no closing line, so that nothing says whether the server was exchanged in "
        "mid-run; run the same command again: it asks nothing twice, asks the server who it is, and closes the file"
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
