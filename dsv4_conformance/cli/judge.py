"""``dsv4-conformance judge``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dsv4_conformance.errors import BadInput, ExitCode


def judge(
    dump: Annotated[Path, typer.Argument(metavar="DUMP.safetensors", help="One attention call; see docs/judge.md.")],
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything as data.")] = None,
    row: Annotated[
        list[str] | None, typer.Option(metavar="N|N-M", help="Judge only these rows, and explain the worst of them.")
    ] = None,
    head: Annotated[list[str] | None, typer.Option(metavar="N|N-M", help="Judge only these heads.")] = None,
) -> int:
    """Say whether the output of one attention call, dumped from a live server, is right, and if not, what explains it.

    Exit code: 0 right, 1 wrong, 2 the dump cannot be judged.
    """
    import torch
    from rich.console import Console

    from dsv4_conformance.judge import text
    from dsv4_conformance.judge.data import as_data
    from dsv4_conformance.judge.dump import load
    from dsv4_conformance.judge.explaining import explain
    from dsv4_conformance.judge.judging import judge as judge_dump
    from dsv4_conformance.judge.spans import parse_spans
    from dsv4_conformance.plugin.jsonsafe import json_safe

    call = load(dump)
    rows = torch.tensor(parse_spans(row, call.rows, "row")) if row else None
    heads = torch.tensor(parse_spans(head, call.heads, "head")) if head else None
    found = judge_dump(call, rows, heads)
    told = None if found.right else explain(call, int(found.rows[found.worst_row()]), found.heads)

    console = Console(markup=False, highlight=False, soft_wrap=True)
    for line in (*text.headline(call), text.verdict(call, found)):
        console.print(line)
    console.print()
    console.print(text.table(found))
    for line in () if told is None else (*text.by_head(call, found), "", *text.explanation(call, told)):
        console.print(line)
    if json_file is not None:
        try:
            json_file.write_text(json.dumps(json_safe(as_data(call, found, told)), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise BadInput(f"{json_file} cannot be written ({error.strerror}); name another file for --json.") from None
    return ExitCode.QUALIFIES if found.right else ExitCode.FAILED
