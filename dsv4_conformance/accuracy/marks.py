"""Short hashes by which a golden's answers are known again, one by one, in a run that should have asked anew.

A mark is eight hex digits: four of what was said, "0000" where nothing was, and four of the answer with its times. Two
answers share four digits by chance once in 65,536, which is seldom enough for shares of many.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from dsv4_conformance.accuracy.records import AccuracyRun, Answer, json_line

HALF, LENGTH = 4, 8
SILENT = "0" * HALF


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:HALF]


def mark(answer: Answer) -> str:
    """The mark of one answer; texts count as they were loaded, which is as hashes wherever goldens are made."""
    a = answer
    said = _short(json_line([a.item, a.reasoning, a.text])) if a.text or a.reasoning else SILENT
    return said + _short(json_line([a.item, a.request, a.status, a.answer, a.completion_tokens, a.seconds]))


def marks_of(run: AccuracyRun, repeats: int) -> dict[str, str]:
    """Question -> marks of its answers in the first ``repeats`` passes, one after the other."""
    found: dict[str, list[str]] = {item: [] for item in run.header.items}
    for answer in sorted(run.answers, key=lambda answer: answer.repeat):
        if answer.repeat < repeats and answer.item in found:
            found[answer.item].append(mark(answer))
    return {item: "".join(marks) for item, marks in found.items()}


def split(marks: str) -> list[tuple[str, str]]:
    """(what was said, with its times) of each answer of a question."""
    return [(marks[at : at + HALF], marks[at + HALF : at + LENGTH]) for at in range(0, len(marks), LENGTH)]


def by_chance(rows: Iterable[str]) -> float:
    """Share of a golden's replies that another of its passes gave word for word: what chance does, 0 to 1.

    A run meets all passes and a pass of the golden all but one, so the share is raised by that much.
    """
    replies = again = passes = 0
    for row in rows:
        said = [words for words, _ in split(row) if words != SILENT]
        replies += len(said)
        again += sum(said.count(words) > 1 for words in said)
        passes = max(passes, len(said))
    return min(1.0, again / replies * passes / (passes - 1)) if replies and passes > 1 else 0.0


def known(row: str, marks: str) -> tuple[int, int, int]:
    """(replies with words, of these word for word the golden's, answers that are the golden's own) of one question."""
    theirs = split(row)
    words, own = {said for said, _ in theirs}, {timed for _, timed in theirs}
    mine = split(marks)
    spoken = [said for said, _ in mine if said != SILENT]
    return len(spoken), sum(said in words for said in spoken), sum(timed in own for _, timed in mine)


def are_copies(rows: Iterable[str], share: float) -> bool:
    """Whether at least ``share`` of the questions got the same words in all passes."""
    several = [said for row in rows if len(said := [words for words, _ in split(row) if words != SILENT]) > 1]
    return bool(several) and sum(len(set(said)) == 1 for said in several) >= share * len(several)
