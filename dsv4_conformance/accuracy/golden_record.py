"""A golden of an accuracy task: what a trusted engine answered, question by question, over several passes.

One JSON file: what was asked and how (the fingerprint), where it comes from, totals and measured noise, one row per
question, and a SHA-256 over all of it. It holds ids, hashes, answers and counts, no text of a question or a reply.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from dsv4_conformance.accuracy.marks import LENGTH, are_copies, marks_of
from dsv4_conformance.accuracy.reading import Unclosed
from dsv4_conformance.accuracy.records import AccuracyRun, json_line
from dsv4_conformance.accuracy.soundness import COPIES, GREEDY, copies, problems, unclosed
from dsv4_conformance.accuracy.tally import Tally, complete_passes, pass_digests, tally
from dsv4_conformance.errors import BadInput
from dsv4_conformance.texts import counted

FORMAT = "dsv4-accuracy-golden/1"


@dataclass(frozen=True)
class Row:
    """One question over all passes. ``prompt``: hash of what was asked; ``expected``: the right answer; then numbers of
    replies: right, cut at the token limit, without text, without an answer, read by a fall-back rule, with reasoning.
    ``tokens``: completion tokens of all passes, None where the server did not count all. ``marks``: one of each answer
    (``marks``), "" in goldens of earlier versions."""

    item: str
    prompt: str
    expected: str
    correct: int
    truncated: int
    empty: int
    no_answer: int
    fallback: int
    reasoned: int
    tokens: int | None
    marks: str = ""


@dataclass(frozen=True)
class Golden:
    """A golden. ``runs``: passes, the same for every question; ``passes``: right answers of each pass; ``simulated``:
    made with the simulated server, so that it says nothing about any model; ``digests``: of each pass, by which it is
    known again (``pass_digests``), none in goldens of earlier versions."""

    name: str
    task: str
    model: str
    endpoint: str
    simulated: bool
    runs: int
    seed: int
    fingerprint: dict[str, str]
    provenance: dict[str, str]
    passes: tuple[int, ...]
    rows: tuple[Row, ...]
    digests: tuple[str, ...] = ()

    @property
    def items(self) -> tuple[str, ...]:
        """Ids of the questions, in order."""
        return tuple(row.item for row in self.rows)

    def counts(self, column: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """A column of the rows, one number per question; None counts as 0."""
        return np.array([getattr(row, column) or 0 for row in self.rows], dtype=np.int64)

    @property
    def answers(self) -> int:
        """Replies in all passes."""
        return self.runs * len(self.rows)

    @property
    def score(self) -> float:
        """Share of right answers."""
        return float(self.counts("correct").sum() / self.answers)

    @property
    def mean_tokens(self) -> float | None:
        """Mean completion tokens of a reply; None where the server counted none."""
        if any(row.tokens is None for row in self.rows):
            return None
        return float(self.counts("tokens").sum() / self.answers)

    @property
    def noise(self) -> dict[str, float]:
        """Measured noise: ``pass_sd``, standard deviation of one pass over the same questions, from the spread within
        questions; ``ratio``, its variance over that of n coin tosses; ``observed_sd``, the spread of the passes."""
        p = self.counts("correct") / self.runs
        within = float((p * (1 - p)).mean()) * self.runs / (self.runs - 1)
        n = len(self.rows)
        binomial = self.score * (1 - self.score)
        return {
            "pass_sd": (within / n) ** 0.5,
            "ratio": within / binomial if binomial else 0.0,
            "observed_sd": float(np.std(np.array(self.passes) / n, ddof=1)),
        }

    @property
    def greedy(self) -> bool:
        """Whether it was asked at temperature 0, where equal replies are as they should be."""
        return self.fingerprint.get("temperature") in GREEDY

    @property
    def copied(self) -> bool:
        """Whether its passes are copies of one, as a cache or one seed for all makes them."""
        if self.greedy:
            return False
        if any(row.marks for row in self.rows):
            return are_copies((row.marks for row in self.rows), COPIES)
        alike = [row.correct % self.runs == 0 and (row.tokens or 1) % self.runs == 0 for row in self.rows]
        return len(alike) >= FEWEST_ALIKE and all(alike)

    def totals(self) -> dict[str, Any]:
        """What a reader wants to see without adding rows."""
        counted = ("correct", "truncated", "empty", "no_answer", "fallback", "reasoned")
        totals: dict[str, Any] = {"answers": self.answers, "score": round(self.score, 6)}
        totals |= {name: int(self.counts(name).sum()) for name in counted}
        mean = self.mean_tokens
        return totals | {"mean_tokens": None if mean is None else round(mean, 2)}

    @property
    def content_hash(self) -> str:
        """SHA-256 of the content, independent of how the file is laid out."""
        return hashlib.sha256(json_line(self._content()).encode()).hexdigest()

    def _content(self) -> dict[str, Any]:
        head = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("rows", "digests")}
        head |= {"digests": list(self.digests)} if self.digests else {}
        head |= {"fingerprint": dict(sorted(self.fingerprint.items())), "passes": list(self.passes)}
        head |= {"provenance": dict(sorted(self.provenance.items()))}
        columns = COLUMNS if any(row.marks for row in self.rows) else COLUMNS[:-1]
        rows = [[getattr(row, name) for name in columns] for row in self.rows]
        return {"format": FORMAT, **head, "columns": list(columns), "rows": rows}

    def text(self) -> str:
        """The file's content: one row per line, so that a diff shows which questions changed."""
        content = self._content()
        rows = ",\n".join(f"    {json_line(row)}" for row in content.pop("rows"))
        noise = {name: round(value, 8) for name, value in self.noise.items()}
        head = {**content, "totals": self.totals(), "noise": noise, "content_sha256": self.content_hash}
        passes = f'"passes": {json_line(head.pop("passes"))}'
        return f'{json.dumps(head, indent=2, ensure_ascii=False)[:-2]},\n  {passes},\n  "rows": [\n{rows}\n  ]\n}}\n'


_GOLDEN = TypeAdapter(Golden)
COLUMNS = tuple(f.name for f in fields(Row))
FEWEST_ALIKE = 20
"""So many questions, all of them right in every pass or in none and of divisible length, are no chance."""
FEWEST_QUESTIONS = 3
"""The difference over fewer has no error to speak of."""


def golden_of(run: AccuracyRun, runs: int, name: str, provenance: dict[str, str], *, simulated: bool) -> Golden:
    """The golden that the first ``runs`` passes of a run make.

    Raises BadInput for fewer than two passes or three questions, for a part of a question set, where an answer is
    missing or a request got no usable reply, and where the answers are not one build's or copies of one pass; Unclosed
    where the file has no closing line, so that nobody can say whether they are one build's.
    """
    asked, what = len(run.header.items), run.path or "the run"
    if run.partial:
        raise BadInput(
            f"{what} asked {asked:,} of the {run.header.of:,} questions of {run.header.task}; a golden is of all, so "
            "make the run without --limit and --questions."
        )
    if asked < FEWEST_QUESTIONS:
        raise BadInput(
            f"A golden of {counted(asked, 'question')} has no noise of its own; give {FEWEST_QUESTIONS} or more."
        )
    sums: Tally = tally(run, max(runs, 1))
    errors = int(sums.errors.sum())
    if missing := run.missing(max(runs, 1)):
        item, repeat = missing[0]
        whole = 0 if unclosed(run) else complete_passes(run)
        options = [f"--repeats {runs}"] * (runs > run.repeats) + ["--retry-errors"] * bool(errors)
        raise BadInput(
            f"{what} lacks {counted(len(missing), 'answer')} of its first {f'{runs} passes' if runs > 1 else 'pass'} "
            f"({item} in pass {repeat + 1} first){f', and {errors:,} failed' if errors else ''}; run the same command "
            f"again{' with ' * bool(options)}{' and '.join(options)}: it asks only for what is missing"
            f"{f'; or record the {whole} whole passes, with --passes {whole}' if 2 <= whole < runs else ''}."
        )
    if runs < 2:
        raise BadInput(
            f"A golden of 1 pass has no noise of its own; for {what} run the same command again with --repeats 2 or "
            "more, which asks only for what is missing."
        )
    if errors:
        first = run.header.items[int(np.argmax(sums.errors > 0))]
        raise BadInput(
            f"{counted(errors, 'request')} of {what} got no usable reply ({first} first); a golden "
            "has no holes: ask again for what failed and nothing else, with "
            "accuracy run --retry-errors or the same golden record command."
        )
    for kind in ("filtered", "malformed"):
        if (column := getattr(sums, kind)).any():
            first = run.header.items[int(np.argmax(column > 0))]
            number = int(column.sum())
            raise BadInput(
                f"{counted(number, 'reply', 'replies')} of {what} {'is' if number == 1 else 'are'} {kind} ({first} "
                "first); mend the trusted server and make the run anew, since nothing can be compared with a golden of "
                "these."
            )
    for told in problems(run):
        raise BadInput(f"{_capital(told)}; a golden is of one model and build.")
    if told := unclosed(run):
        raise Unclosed(f"{told.removeprefix('end: ')}.")
    header = run.header
    if header.fingerprint.get("temperature") not in GREEDY and (share := copies(run, runs)) >= COPIES:
        raise BadInput(
            f"{100 * share:.0f} % of the questions got byte-identical replies in all {runs} passes at a temperature "
            "above 0: a cache, or one seed for all, made them copies of one pass, which has no noise; mend the server "
            "and make the run anew."
        )
    marks = marks_of(run, runs)
    counts = ("correct", "truncated", "empty", "no_answer", "fallback", "reasoned")
    rows = tuple(
        Row(
            item=item,
            prompt=sums.prompts[i],
            expected=sums.expected[i],
            tokens=int(sums.tokens[i]) if sums.tokens is not None and sums.all_counted else None,
            marks=marks[item],
            **{name: int(getattr(sums, name)[i]) for name in counts},
        )
        for i, item in enumerate(header.items)
    )
    return Golden(
        name=name,
        task=header.task,
        model=header.model,
        endpoint=header.endpoint,
        simulated=simulated,
        runs=runs,
        seed=header.seed,
        fingerprint=dict(header.fingerprint),
        provenance=provenance,
        passes=tuple(sums.passes),
        rows=rows,
        digests=pass_digests(run, runs),
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def parse(text: str, where: str) -> Golden:
    """The golden in a file's ``text``. Raises BadInput naming ``where`` if it is no golden, of another format, was
    edited by hand (its hash or its sums are wrong), or has counts that cannot be."""
    try:
        content: Any = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{where} is not JSON ({error}); restore it from version control.") from None
    known = content.get("format") if isinstance(content, dict) else None
    if known != FORMAT:
        raise BadInput(f"{where} has format {known!r}, and this version reads {FORMAT!r}; give an accuracy golden.")
    try:
        rows = [dict(zip(content["columns"], row, strict=True)) for row in content["rows"]]
        golden = _GOLDEN.validate_json(json.dumps({**content, "rows": rows}), strict=True)
        stored, totals = content["content_sha256"], content["totals"]
    except ValidationError as error:
        first = error.errors()[0]
        told = f"{'.'.join(map(str, first['loc']))}: {first['msg'][:1].lower()}{first['msg'][1:]}"
        raise BadInput(f"{where} is malformed ({told}); restore it from version control.") from None
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{where} is malformed ({error}); restore it from version control.") from None
    if problem := _inconsistent(golden, stored, totals):
        raise BadInput(f"{where} {problem}; a golden changes only by `dsv4-conformance golden record`.")
    return golden


def _inconsistent(golden: Golden, stored: str, totals: dict[str, Any]) -> str:
    for row in golden.rows:
        counts = [getattr(row, name) for name in ("correct", "truncated", "empty", "no_answer", "fallback", "reasoned")]
        if min(counts) < 0 or max(counts) > golden.runs or sum(counts[:4]) > golden.runs:
            return f"has counts for {row.item} that {golden.runs} passes cannot give"
    if any(len(row.marks) not in (0, LENGTH * golden.runs) for row in golden.rows):
        return "has marks that are not one of each answer"
    if golden.runs < 2 or not golden.rows:
        return "has fewer than 2 passes or no question"
    if len(set(golden.items)) != len(golden.items) or len(golden.passes) != golden.runs:
        return "names a question twice or lacks a pass"
    if sum(golden.passes) != int(golden.counts("correct").sum()) or totals != golden.totals():
        return "has sums that its rows do not give"
    return "" if stored == golden.content_hash else "was edited: its SHA-256 is not that of its content"
