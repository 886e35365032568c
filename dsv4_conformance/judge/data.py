"""A judgement and its explanation as data, for --json."""

from __future__ import annotations

from typing import Any

from dsv4_conformance import __version__
from dsv4_conformance.judge.dump import Dump
from dsv4_conformance.judge.explaining import Explanation
from dsv4_conformance.judge.judging import Judgement

SCHEMA = 1


def as_data(dump: Dump, found: Judgement, told: Explanation | None) -> dict[str, Any]:
    """Everything the terminal shows, for all rows and heads; numbers that are not finite are "inf", "-inf", "nan".

    ``rows[i].outputs.NAME`` holds ``error``, ``budget`` and ``in_budgets`` per head, in the order of ``heads``.
    """
    columns = {"error": found.error, "budget": found.budget, "in_budgets": found.ratio}
    lists = {key: {name: tensor.tolist() for name, tensor in column.items()} for key, column in columns.items()}
    wrong, heads = found.wrong, found.heads.tolist()
    rows = [
        {
            "row": row,
            "name": dump.row_name(row),
            "right": not bool(wrong[at].any()),
            "worst_head": heads[int(found.worst[at].argmax())],
            "wrong_heads": found.heads[wrong[at]].tolist(),
            "outputs": {name: {key: lists[key][name][at] for key in columns} for name in found.ratio},
        }
        for at, row in enumerate(found.rows.tolist())
    ]
    at = found.worst_row()
    head = int(found.worst[at].argmax())
    return {
        "schema": SCHEMA,
        "version": __version__,
        "dump": str(dump.path),
        "kind": dump.kind,
        "notes": dump.notes,
        "verdict": "right" if found.right else "wrong",
        "heads": heads,
        "worst": {
            "row": int(found.rows[at]),
            "head": heads[head],
            "output": found.worst_output(at, head),
            "in_budgets": float(found.worst[at, head]),
        },
        "wrong_rows_per_head": wrong.sum(0).tolist(),
        "rows": rows,
        "explanation": told,
    }
