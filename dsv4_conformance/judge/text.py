"""A judgement and its explanation as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from dsv4_conformance.judge.dump import Dump
from dsv4_conformance.judge.explaining import Explanation
from dsv4_conformance.judge.judging import Judgement
from dsv4_conformance.judge.keys import KeyStory
from dsv4_conformance.judge.sinks import ImpliedSink, SinkStory, slices
from dsv4_conformance.judge.spans import spans

SHOWN = 20
"""Rows in the table; of more, the first wrong ones."""

FEW = 8
WIDE = 20


def headline(dump: Dump) -> Iterator[str]:
    """What was judged."""
    widths = [
        f"{store.name} list of {scope.indices.shape[1]}" + (f" in pages of {store.size}" if store.paged else "")
        for store, scope in zip(dump.stores, dump.problem.scopes, strict=True)
    ]
    sinks = "sinks" if dump.problem.sink is not None else "no sinks"
    size = f"{_rows(dump.rows)} x {dump.heads} heads"
    yield f"{dump.path}: {dump.kind}, {size}, {', '.join(widths)}, {sinks}; {', '.join(dump.got)}"
    yield from (f"  {key}: {note}" for key, note in dump.notes.items())
    if dump.all_sinks is not None and dump.problem.sink is not None:
        passed = [
            words for words, sink in slices(dump.all_sinks, dump.heads) if bool((sink == dump.problem.sink).all())
        ]
        yield f"  the sinks of the call are {passed[0] if passed else 'no slice of all_sinks'}"


def verdict(dump: Dump, found: Judgement) -> str:
    """The one line that matters."""
    count, where = len(found.rows), "" if len(found.heads) == dump.heads else f", heads {spans(found.heads.tolist())}"
    if found.right:
        return f"RIGHT: {_rows(count)}{where}; worst error {float(found.worst.max()):.3g} budgets"
    wrong, at = int(found.wrong.any(1).sum()), found.worst_row()
    head = int(found.worst[at].argmax())
    name = found.worst_output(at, head)
    size = f"{float(found.ratio[name][at, head]):.3g} budgets off"
    if bool(found.ratio[name][at, head].isinf()):
        size = "NaN, infinite, or not exact where it has to be"
    row = dump.row_name(int(found.rows[at]))
    return f"WRONG: {wrong} of {_rows(count)}{where}; worst is {row}, head {int(found.heads[head])}: {name} is {size}"


def _rows(count: int) -> str:
    return f"{count} row{'s' if count != 1 else ''}"


def table(found: Judgement) -> Table:
    """Rows with their worst head; all of up to SHOWN rows, else the first wrong ones, or the worst."""
    wrong = found.wrong.any(1)
    chosen = [*range(len(found.rows))] if len(found.rows) <= SHOWN else wrong.nonzero()[:SHOWN, 0].tolist()
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("row", "verdict", "worst head", "output", "error", "budget", "in budgets", "wrong heads"):
        made.add_column(title, justify="left" if title in ("verdict", "output", "wrong heads") else "right")
    for at in chosen or [found.worst_row()]:
        head = int(found.worst[at].argmax())
        name = found.worst_output(at, head)
        numbers = [float(tensor[name][at, head]) for tensor in (found.error, found.budget, found.ratio)]
        heads = _in_short(found.heads[found.wrong[at]].tolist(), len(found.heads))
        state = Text("WRONG", style="bold red") if bool(wrong[at]) else Text("right", style="green")
        row = str(int(found.rows[at]))
        made.add_row(row, state, str(int(found.heads[head])), name, *(f"{number:.3g}" for number in numbers), heads)
    return made


def _in_short(heads: list[int], count: int) -> str:
    """Which heads, or how many if that takes too many words for a table."""
    return text if len(text := spans(heads)) <= WIDE else f"{len(heads)} of {count}"


def by_head(dump: Dump, found: Judgement) -> Iterator[str]:
    """Where the wrong rows and heads are, if they are not everywhere."""
    rows, heads = found.wrong.any(1), found.wrong.any(0)
    more = int(rows.sum()) - SHOWN
    if len(found.rows) > SHOWN and more > 0:
        yield f"... and {more} more wrong rows"
    if not bool(rows.all()) and len(found.rows) > SHOWN:
        yield f"wrong rows: {spans(found.rows[rows].tolist())}"
    if not bool(heads.all()):
        counts = found.wrong.sum(0)[heads]
        low, high = int(counts.min()), int(counts.max())
        each = f"{low}" if low == high else f"{low} to {high}"
        yield (
            f"wrong heads: {spans(found.heads[heads].tolist())} (each in {each} of {_rows(len(found.rows))}); "
            f"right in every row: {spans(found.heads[~heads].tolist())}"
        )


def explanation(dump: Dump, told: Explanation) -> Iterator[str]:
    """What explains the row, and what was tried and does not."""
    yield f"{dump.row_name(told.row)}:"
    yield from (f"  {line}" for line in _lines(dump, told))


def _lines(dump: Dump, told: Explanation) -> Iterator[str]:
    fitting = [mistake for mistake in told.mistakes if mistake.explains]
    for mistake in fitting:
        where = "" if mistake.distance_all <= max(1.0, mistake.distance) else " in the wrong heads, not in all"
        yield f"known mistake: {mistake.means} ({mistake.name})"
        yield f"  {mistake.distance:.2g} budgets from what came out{where}; look: {mistake.look}"
    if not fitting:
        near = told.mistakes[0]
        yield f"known mistake: none is near; the nearest, {near.name}, is {near.distance:.3g} budgets away"
    if told.key is None:
        yield "key: out is right or not finite in this row, so no key is to blame"
    else:
        yield from _key_lines(told.key)
    if told.keys is not None:
        for scope, places, count in told.keys.changes[:FEW]:
            yield f"keys: {scope} places {places} counted {_times(count)} instead of once"
        if len(told.keys.changes) > FEW:
            yield f"keys: ... {told.keys.keys} list entries in all"
        yield f"  with these counts, what came out is {told.keys.distance:.2g} budgets from right"
    yield from _sink_lines(dump, told.sink)
    if told.nan:
        yield "NaN: came out although no query and no listed key holds any: something was read that may not be read"
        yield from (f"  {line}" for line in told.unread[:FEW])
    if not told.explained:
        yield "nothing tried here explains it: neither a known mistake nor keys nor sinks"


def _times(count: float) -> str:
    return {0.0: "0 times", 1.0: "once", 2.0: "twice"}.get(count, f"{count:.3g} times")


def _key_lines(key: KeyStory) -> Iterator[str]:
    listed = key.place is not None
    named = f"{key.scope} place {key.place}, {key.where}," if listed else f"{key.scope} {key.where}, not in the list,"
    left = f"{100 * key.unexplained:.2g} % of the squared difference"
    if not key.explains:
        yield f"key: no single key explains it; the best, {named} leaves {left}"
        return
    where = "" if key.everywhere else ", in the wrong heads only"
    yield f"key: {named} counted {_times(key.counted)} instead of {'once' if listed else 'not at all'}{where}"
    size = f"logit {key.logit:.4g}, weight {key.weight:.3g}"
    yield f"  in head {key.head}: {size}; leaves {left}, {key.distance:.2g} budgets"
    if key.remark:
        yield f"  {key.remark}"


def _sink_lines(dump: Dump, sink: SinkStory | None) -> Iterator[str]:
    if sink is None:
        yield "sink: the difference is not a factor per head, so no sink explains it"
        return
    where = "" if sink.everywhere or sink.match is None else ", in these heads only"
    used = f"used {sink.match}{where}" if sink.match is not None else _unknown(dump)
    yield f"sink: explains heads {spans(story.head for story in sink.heads)}: what came out {used}"
    yield from (f"  {_implied(story)}" for story in sink.heads[:FEW])
    if sink.others:
        yield f"  no sink explains heads {spans(sink.others)}"


def _unknown(dump: Dump) -> str:
    if dump.problem.sink is None:
        return "used sinks, of which the dump has none: add sink if the call had it"
    known = "no sinks of the call" if dump.all_sinks is None else "no sinks of the model"
    return f"used {known}, in whatever order or scale"


def _implied(story: ImpliedSink) -> str:
    if story.low == -math.inf:
        used = f"none, or one below {story.high:.3g}"
    elif story.high == math.inf:
        used = f"one above {story.low:.3g}"
    else:
        used = f"{story.implied:.4g} ({story.low:.3g} to {story.high:.3g})"
    given = "none" if story.given == -math.inf else f"{story.given:.4g}"
    return f"head {story.head}: {given} in the dump, {used} in what came out"
