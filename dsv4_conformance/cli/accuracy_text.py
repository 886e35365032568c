"""What `accuracy run` says before it asks, and what it says of the answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4_conformance.cli.accuracy_asking import reuse
from dsv4_conformance.texts import counted

if TYPE_CHECKING:
    from dsv4_conformance.accuracy.golden_record import Golden
    from dsv4_conformance.accuracy.profiles import Rule
    from dsv4_conformance.accuracy.records import Answer, RunHeader
    from dsv4_conformance.accuracy.run import Finished

NAMED = 8


def forewarned(folder: Path, header: RunHeader, passes: int) -> Iterator[str]:
    """Before a question is asked: what there is to compare with, and what each profile can make of so many passes.

    What drop can be seen is said of the golden's questions alone, and so only where they are the ones that are asked.
    """
    from dsv4_conformance.accuracy import golden_files
    from dsv4_conformance.accuracy.profiles import load_rules

    model, task, several = header.model, header.task, ""
    try:
        golden = golden_files.find(folder, model, task)
    except golden_files.Several as error:
        golden, several = None, str(error)
        yield several
    if golden is None and not several:
        have = [name for name in golden_files.names(folder) if golden_files.load(folder, name).task == task]
        yield (
            f"There is no golden of {model!r} for {task} in {folder / golden_files.FOLDER} (there is "
            f"{', '.join(have) or 'none'}): these answers can become one (golden record RUN.jsonl), or be compared "
            "with another by name (golden compare --golden NAME)."
        )
    if golden is not None and (line := _unlike(golden, header)):
        yield line
        return
    for profile, rules in load_rules().items():
        if task in rules:
            yield f"{profile}: {_decidable(golden, rules[task], passes)}"


def _unlike(golden: Golden, header: RunHeader) -> str:
    """A sentence if a run with this header could not be compared with the golden, "" if it could."""
    from dsv4_conformance.accuracy.comparable import differing_fields
    from dsv4_conformance.accuracy.records import AccuracyRun

    fields = list(differing_fields(golden, AccuracyRun(header, ())))
    if not fields:
        return ""
    # Other questions differ in a handful of hashes as well, which say nothing more.
    fields = [field for field in fields if field.startswith("items: ")] or fields
    return f"Cannot be compared with the golden {golden.name!r}, whatever is answered: {'; '.join(fields[:NAMED])}."


def _decidable(golden: Golden | None, rule: Rule, passes: int) -> str:
    from dsv4_conformance.accuracy.decision import detectable

    looks = ", ".join(map(str, rule.looks))
    look = rule.look(passes)
    if golden is not None and golden.runs < rule.golden_runs:
        return f"decides nothing against {golden.name}, which has {_passes(golden.runs)} and needs {rule.golden_runs}"
    if look is None:
        return f"decides nothing after {_passes(passes)}; it judges after {looks} (--repeats {rule.looks[0]})"
    told = f"judges after {_passes(look)}"
    if golden is not None:
        seen = detectable(golden.counts("correct"), golden.runs, look, rule)
        told += f", which fails a drop of {100 * seen:.1f} points 4 times in 5"
    following = rule.next_look(look)
    return told if following is None else f"{told}; if in doubt, go on with --repeats {following}"


def _passes(number: int) -> str:
    return counted(number, "pass", "passes")


def told(finished: Finished) -> Iterator[str]:
    """The score, what is odd, and where the answers are."""
    from dsv4_conformance.accuracy.profiles import load_rules

    score, run = finished.score, finished.run
    yield f"{run.header.task}: {score.correct} of {score.answered}, {score.text()}"
    yield reuse(finished)
    fallbacks = sum(answer.fallback > 0 for answer in run.answers)
    if fallbacks:
        were = "was" if fallbacks == 1 else "were"
        yield f"{counted(fallbacks, 'answer')} did not stand in the form asked for and {were} found by a fall-back rule"
    cut = [f"{answer.item} in pass {answer.repeat + 1}" for answer in run.answers if answer.status == "truncated"]
    if cut:
        more = f" and {len(cut) - NAMED} more" if len(cut) > NAMED else ""
        yield (
            f"cut off at the token limit: {', '.join(cut[:NAMED])}{more}; --max-tokens raises the limit, and "
            "the golden has to be recorded with the same one"
        )
    for status, remedy in (
        ("filtered", ""),
        ("malformed", ""),
        ("error", "; --retry-errors asks these again"),
    ):
        first = next((answer for answer in run.answers if answer.status == status), None)
        if first is not None:
            word = "error" if status == "error" else f"{status} reply"
            yield f"first {word}, at {first.item}: {first.error.removesuffix('.')}{remedy}"
    allowed = min(
        (rules[run.header.task].errors for rules in load_rules().values() if run.header.task in rules), default=1
    )
    failed = score.statuses["error"]
    if allowed * score.answered < failed < score.answered and not run.partial:
        yield (
            f"{failed:,} of {counted(score.answered, 'request')} failed ({100 * failed / score.answered:.2f} %): above "
            f"{100 * allowed:g} % a comparison is INVALID, so ask these again with --retry-errors"
        )
    if (note := run.header.observed.get("data", "")).endswith("."):  # a sentence, not only a place
        yield note
    yield f"answers: {finished.path} (fingerprint {run.header.fingerprint_hash[:12]}, first seed {run.header.seed})"


def one_by_one(finished: Finished) -> Iterator[str]:
    """For chosen questions: what each pass answered."""
    by_item: dict[str, list[Answer]] = {item: [] for item in finished.run.header.items}
    for answer in finished.run.answers:
        by_item[answer.item].append(answer)
    for item, answers in by_item.items():
        said = [a.answer if a.answer is not None else a.status for a in sorted(answers, key=lambda a: a.repeat)]
        right = sum(answer.correct for answer in answers)
        yield f"{item}: {right} of {len(answers)} right, expected {answers[0].expected}: {', '.join(said)}"
