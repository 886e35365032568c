"""Which known mistake a wrong row looks like: the semantic mutants, nearest first, in plain words."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4_conformance.judge.view import RowView
from dsv4_conformance.numerics.mutants import MUTANTS

LOOK = {
    "zeros": "the output was never written, or the row was taken for padding",
    "sink_dropped": "was attn_sink passed to this call?",
    "sink_of_another_rank": "does this rank pass its own slice of the sinks?",
    "sink_scaled": "the sink is a finished logit; only dot products take the softmax scale",
    "sink_in_lse": "lse is reported without the sink; merging two parts would count the sink twice",
    "window_minus_one": "does the window include the query's own position, is the length t + 1 up to 128?",
    "window_plus_one": "does the window end at 128 positions, is the length one too many?",
    "key_dropped": "which list or mask loses this entry?",
    "minus_one_as_slot_0": "are holes (-1) inside the length masked, or clamped to 0 and then attended?",
    "topk_length_ignored": "is topk_length passed, and is it the one that the kernel was planned with?",
    "last_block_lost": "is the block count rounded up, was the kernel planned with shorter lengths?",
    "extra_scope_lost": "were the extra cache and its indices passed, were its lengths 0 when the call was planned?",
    "scale_exponent_plus_one": "does the reader take scale byte e for 2^(e - 127)?",
    "scale_exponent_minus_one": "does the reader take scale byte e for 2^(e - 127)?",
    "rope_pairing_wrong": "keys hold rope pairs interleaved: dims 448 + 2j and 449 + 2j",
    "neighbours_keys": "are index rows and query rows in the same order, is the row offset right?",
    "lse_base_2": "if the server means base 2, say so in the dump: metadata lse_base = 2",
    "softmax_scale_of_576": "the head dim is 512, the scale 512 ** -0.5",
}
"""Mutant -> where to look."""

_OF_NEIGHBOURS = ("window_plus_one", "neighbours_keys")


@dataclass(frozen=True)
class Mistake:
    """A mutant: what it ``means``, where to ``look``, whether it is near enough to be the cause (``explains``).

    ``distance``: budgets between its answer and what came out, at worst over the heads that are wrong;
    ``distance_all``: over all heads.
    """

    name: str
    means: str
    look: str
    distance: float
    distance_all: float
    explains: bool


def nearest(view: RowView) -> list[Mistake]:
    """Every mutant that can be made in this row, nearest first; several explain it where it cannot tell them apart.

    If what came out is within the budget of one, those that it is not within the budget of do not count as near.
    """
    answers = {name: mutant(view.setting) for name, mutant in MUTANTS.items() if _can_be_made(view, name)}
    per_head = {name: view.distance(answer) for name, answer in answers.items() if answer is not None}
    distance = {name: float(far[view.wrong].amax()) for name, far in per_head.items()}
    near = min(view.near, 1.0) if min(distance.values()) <= 1 else view.near
    found = []
    for name, far in sorted(distance.items(), key=lambda item: item[1]):
        means = (MUTANTS[name].__doc__ or name).strip().splitlines()[0].rstrip(".")
        found.append(Mistake(name, means, LOOK[name], far, float(per_head[name].amax()), far <= near))
    return found


def _can_be_made(view: RowView, name: str) -> bool:
    """A dump of one row has no neighbours: the row would be its own."""
    return view.dump.rows > 1 or name not in _OF_NEIGHBOURS
