"""The cases of a page as one compact JSON object: texts once, cases aligned over the runs, numbers of a few digits."""

from __future__ import annotations

import json
from typing import Any

from dsv4_conformance.report.gathering import Gathered, by_id
from dsv4_conformance.report.kept import Case
from dsv4_conformance.report.measured import rounded


class Texts:
    """Every text once; a text's number is its place."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {"": 0}

    def __call__(self, text: str) -> int:
        """The text's number."""
        return self._places.setdefault(text, len(self._places))

    def all(self) -> list[str]:
        """The texts in order of their numbers."""
        return list(self._places)


def cases_data(gathered: Gathered) -> dict[str, Any]:
    """What the page's script builds its rows from.

    ``cases``: [id, requirement, surface, test, label, [outcome...]], an outcome being [run, status, reason, margin,
    weakest, duration in ms, reproducer, waiver, [output, ratio, error, budget]...]; texts are places in ``texts``.
    """
    texts = Texts()
    aligned: dict[tuple[str, str, str], list[Any]] = {}
    for number, run in enumerate(gathered.runs):
        for case in run.kept:
            key = (case.requirement, case.id, case.surface)
            row = aligned.get(key)
            if row is None or any(outcome[0] == number for outcome in row[5]):
                key = (*key[:2], f"{case.surface}\n{case.test}\n{number}") if row is not None else key
                row = [case.id, texts(case.requirement), texts(case.surface), texts(case.test), texts(case.label), []]
                aligned[key] = row
            row[5].append(_outcome(number, case, texts))
    ordered = sorted(aligned.items(), key=lambda found: (by_id(found[0][0]), found[0][1:]))
    return {"cases": [row for _, row in ordered], "texts": texts.all()}


def _outcome(run: int, case: Case, texts: Texts) -> list[Any]:
    reproducer = case.reproducer.replace(case.id, "\x00") if case.id else case.reproducer
    told: list[Any] = [
        run,
        texts(str(case.status)),
        texts(case.reason),
        rounded(case.margin, 3),
        texts(case.weakest),
        round(1000 * case.duration_s),
        texts(reproducer),
        texts(case.waiver),
    ]
    for name, (ratio, error, budget) in case.outputs.items():
        told.append([texts(name), rounded(ratio, 3), rounded(error, 3), rounded(budget, 3)])
    return told


def script_json(value: Any) -> str:
    """JSON that can stand inside <script>: no character of it can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
