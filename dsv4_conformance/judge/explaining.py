"""All that can be said about one wrong row."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dsv4_conformance.judge.dump import Dump
from dsv4_conformance.judge.keys import KeyStory, best_key
from dsv4_conformance.judge.mistakes import Mistake, nearest
from dsv4_conformance.judge.several import CountStory, counts
from dsv4_conformance.judge.sinks import SinkStory, explain_by_sink
from dsv4_conformance.judge.unread import poisoned_entries
from dsv4_conformance.judge.view import RowView


@dataclass(frozen=True)
class Explanation:
    """Row ``row`` of a dump. ``mistakes``: known ones, nearest first.

    ``key``, ``keys``, ``sink``: what a single key, a set of list entries, or other sinks explain, or None.
    ``nan``: whether NaN came out, although none went in; ``unread``: where it may have come from.
    """

    row: int
    mistakes: list[Mistake]
    key: KeyStory | None
    keys: CountStory | None
    sink: SinkStory | None
    nan: bool
    unread: list[str]

    @property
    def explained(self) -> bool:
        """Whether anything explains the row within rounding."""
        found = [mistake.explains for mistake in self.mistakes]
        return any([*found, *(story is not None and story.explains for story in (self.key, self.keys, self.sink))])


def explain(dump: Dump, row: int, heads: Tensor) -> Explanation:
    """Explain row ``row``, of which some head in int64 ``heads`` is wrong."""
    view = RowView.of(dump, row, heads)
    key = best_key(view)
    keys = None if key is not None and key.explains else counts(view)
    nan = any(bool(tensor.isnan().any()) for tensor in view.got.values())
    unread = poisoned_entries(view) if nan else []
    return Explanation(row, nearest(view), key, keys, explain_by_sink(view), nan, unread)
