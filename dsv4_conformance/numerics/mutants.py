"""Semantic mutants of the oracle: the wrong answers that a suite must reject (docs/semantics.md §20).

Each takes a problem (some query rows of a call) and what its neighbours read, and returns a wrong answer, or None where
the mistake cannot be made. Whether it shows is decided by the numbers, in discrimination.py.
"""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dsv4_conformance.oracle.attention import Answer, Problem, Scope, attend, combine, logits_of


@dataclass(frozen=True)
class Setting:
    """A problem of a few rows, what it reads and what a mistaken reader might, and its right answer.

    ``keys`` float64 ``(R, N, 512)``, 0 where not ``valid (R, N)``; ``logits (R, H, N)``. ``listed``: the rows that any
    entry names, beyond the length too, where ``stored``; ``inside`` the length. ``next_keys``, ``next_valid``: what the
    neighbouring query rows read.
    """

    problem: Problem
    answer: Answer
    keys: Tensor
    valid: Tensor
    logits: Tensor
    listed: Tensor
    stored: Tensor
    inside: Tensor
    next_keys: Tensor
    next_valid: Tensor

    @classmethod
    def of(cls, problem: Problem, answer: Answer, neighbour: Problem) -> "Setting":
        """Read everything once, for all mistakes. ``neighbour``: as many rows of the same call."""
        both = [_stacked(mine, theirs) for mine, theirs in zip(problem.scopes, neighbour.scopes, strict=True)]
        valid = torch.cat([scope.valid() for scope in both], 1)
        stored = torch.cat([_stored(scope) for scope in both], 1)
        inside = torch.cat([_inside(scope) for scope in both], 1)
        listed = torch.cat([s.fetch(s.indices.to(torch.int64).masked_fill(~_stored(s), 0)) for s in both], 1)
        listed = listed.to(torch.float64).masked_fill_(~stored[..., None], 0)
        keys = listed.masked_fill(~valid[..., None], 0)
        r = problem.q.shape[0]
        logits = logits_of(problem.q, keys[:r], problem.scale)
        mine = (keys[:r], valid[:r], logits, listed[:r], stored[:r], inside[:r])
        return cls(problem, answer, *mine, keys[r:], valid[r:])


def _stacked(mine: Scope, theirs: Scope) -> Scope:
    length = None if mine.length is None or theirs.length is None else torch.cat((mine.length, theirs.length))
    return replace(mine, indices=torch.cat((mine.indices, theirs.indices)), length=length)


def _stored(scope: Scope) -> Tensor:
    """bool ``(R, N)``: entries that name a stored row, inside the length or not."""
    limit = scope.limit if scope.limit is not None else scope.slots
    return (scope.indices >= 0) & (scope.indices < limit) if limit else scope.valid()


def _inside(scope: Scope) -> Tensor:
    """bool ``(R, N)``: entries inside the length."""
    if scope.length is None:
        return torch.ones_like(scope.indices, dtype=torch.bool)
    return torch.arange(scope.indices.shape[1], device=scope.indices.device) < scope.length[:, None]


@dataclass(frozen=True)
class Change:
    """What a mistaken reader does otherwise: other ``keys`` (float64 ``(R, N', 512)``), another ``valid (R, N')``,
    another ``sink (H,)`` (None = the right one), logits times ``factor``."""

    valid: Tensor
    keys: Tensor | None = None
    sink: Tensor | None = None
    factor: float = 1.0


Mistake = Callable[[Setting], "Change | Answer | None"]


Mutant = Callable[[Setting], Answer | None]


def zeros(s: Setting) -> Change | Answer | None:
    """Everything 0."""
    return Answer(*(torch.zeros_like(getattr(s.answer, n)) for n in ("out", "lse", "max_logits")))


def _with_sink(s: Setting, sink: Tensor | None) -> Change:
    """The right weights under another sink: out = softmax-out * sigmoid(lse - sink); lse and max stay."""
    return Change(s.valid, sink=sink)


def sink_dropped(s: Setting) -> Change | Answer | None:
    """The sink ignored."""
    return None if s.problem.sink is None else _with_sink(s, torch.full_like(s.problem.sink, -torch.inf))


def sink_of_another_rank(s: Setting) -> Change | Answer | None:
    """Another slice of the sinks: rotated by half the heads."""
    sink = s.problem.sink
    return None if sink is None or len(sink) < 2 else _with_sink(s, sink.roll(max(1, len(sink) // 2)))


def sink_scaled(s: Setting) -> Change | Answer | None:
    """The sink multiplied by the softmax scale, like a dot product."""
    return None if s.problem.sink is None else _with_sink(s, s.problem.sink * s.problem.scale)


def sink_in_lse(s: Setting) -> Change | Answer | None:
    """lse that counts the sink as a key."""
    if s.problem.sink is None:
        return None
    lse = torch.logaddexp(s.answer.lse, s.problem.sink.to(torch.float64).expand_as(s.answer.lse))
    return replace(s.answer, lse=lse)


def _main_width(s: Setting) -> int:
    return int(s.problem.scopes[0].indices.shape[1])


def _last_valid(valid: Tensor) -> Tensor:
    """Place of the last valid entry of each row (0 where there is none)."""
    place = torch.arange(valid.shape[1], device=valid.device)
    return (place * valid).amax(1)


def window_minus_one(s: Setting) -> Change | Answer | None:
    """The last key of the window scope lost."""
    valid = s.valid.clone()
    last = _last_valid(valid[:, : _main_width(s)])
    valid.scatter_(1, last[:, None], False)
    return Change(valid)


def window_plus_one(s: Setting) -> Change | Answer | None:
    """One key too many in the window scope: the neighbour's first valid one."""
    width = _main_width(s)
    first = s.next_valid[:, :width].to(torch.int8).argmax(1)
    row = torch.arange(len(first), device=first.device)
    key, more = s.next_keys[row, first], s.next_valid[row, first]
    return Change(torch.cat((s.valid, more[:, None]), 1), torch.cat((s.keys, key[:, None]), 1))


def key_dropped(s: Setting) -> Change | Answer | None:
    """The heaviest key of the row lost (the needle, where there is one)."""
    logits = s.logits.masked_fill(~s.valid[:, None], -torch.inf)
    share = (logits - s.answer.lse[..., None]).nan_to_num(nan=-torch.inf).amax(1)
    return Change(s.valid.scatter(1, share.argmax(1, keepdim=True), False))


def minus_one_as_slot_0(s: Setting) -> Change | Answer | None:
    """Holes inside the length read as slot (prefill: row) 0."""
    hole = s.inside & ~s.valid
    zero = [scope.fetch(scope.indices.new_zeros(1, dtype=torch.int64)) for scope in s.problem.scopes]
    widths = [scope.indices.shape[1] for scope in s.problem.scopes]
    read = torch.cat([key.to(torch.float64).expand(width, -1) for key, width in zip(zero, widths, strict=True)])
    return Change(s.valid | hole, torch.where(hole[..., None], read, s.keys))


def topk_length_ignored(s: Setting) -> Change | Answer | None:
    """Lists processed to their full width; values that name no stored row are still skipped."""
    valid = s.valid | (s.stored & ~s.inside)
    return Change(valid, s.listed.masked_fill(~valid[..., None], 0))


def last_block_lost(s: Setting) -> Change | Answer | None:
    """The last block of 64 list entries lost, of the last scope that has keys in the row."""
    valid = s.valid.clone()
    last = _last_valid(valid)
    place = torch.arange(valid.shape[1], device=valid.device)
    width = _main_width(s)
    in_main = last < width
    start = torch.where(in_main, last // 64 * 64, width + (last - width) // 64 * 64)
    return Change(valid & (place < start[:, None]))


def extra_scope_lost(s: Setting) -> Change | Answer | None:
    """Only the window scope attended."""
    width = _main_width(s)
    return (
        None
        if len(s.problem.scopes) < 2
        else Change(s.valid & (torch.arange(s.valid.shape[1], device=s.valid.device) < width))
    )


def _scaled_tile(s: Setting, factor: float) -> Change | Answer | None:
    if s.problem.scopes[0].limit is not None:
        return None  # prefill rows carry no scales
    keys = s.keys.clone()
    keys[..., 384:448] *= factor
    return Change(s.valid, keys)


def scale_exponent_plus_one(s: Setting) -> Change | Answer | None:
    """The last nope tile's scale byte read one too high."""
    return _scaled_tile(s, 2.0)


def scale_exponent_minus_one(s: Setting) -> Change | Answer | None:
    """The last nope tile's scale byte read one too low."""
    return _scaled_tile(s, 0.5)


def rope_pairing_wrong(s: Setting) -> Change | Answer | None:
    """Rope dims of the keys taken as halves instead of interleaved pairs."""
    rope = torch.unflatten(s.keys[..., 448:], -1, (2, 32)).transpose(-1, -2).flatten(-2)
    return Change(s.valid, torch.cat((s.keys[..., :448], rope), -1))


def neighbours_keys(s: Setting) -> Change | Answer | None:
    """Another query row's keys."""
    return Change(s.next_valid, s.next_keys)


def lse_base_2(s: Setting) -> Change | Answer | None:
    """lse in base 2."""
    return replace(s.answer, lse=s.answer.lse / math.log(2))


def softmax_scale_of_576(s: Setting) -> Change | Answer | None:
    """The scale of a 576-dim head (V3.2's) instead of the call's."""
    return Change(s.valid, factor=math.sqrt(512 / 576))


MISTAKES: dict[str, Mistake] = {
    f.__name__: f
    for f in (
        zeros, sink_dropped, sink_of_another_rank, sink_scaled, sink_in_lse, window_minus_one, window_plus_one,
        key_dropped, minus_one_as_slot_0, topk_length_ignored, last_block_lost, extra_scope_lost,
        scale_exponent_plus_one, scale_exponent_minus_one, rope_pairing_wrong, neighbours_keys, lse_base_2,
        softmax_scale_of_576,
    )
}  # fmt: skip
"""Mistake by name; its docstring says it in plain words."""


def wrong_answers(setting: Setting, names: Iterable[str] = MISTAKES) -> dict[str, Answer]:
    """The answer of every applicable mistake, in the order of ``names``.

    Mistakes about the same keys are taken together as further heads of one problem, mistakes about other keys as
    further rows: few launches, whatever their number.
    """
    made = {name: change for name in names if (change := MISTAKES[name](setting)) is not None}
    same = {n: c for n, c in made.items() if isinstance(c, Change) and c.keys is None}
    other = {n: c for n, c in made.items() if isinstance(c, Change) and c.keys is not None}
    answers = {n: c for n, c in made.items() if isinstance(c, Answer)}
    if same:
        answers |= _as_heads(setting, same)
    if other:
        answers |= _as_rows(setting, other)
    return {name: answers[name] for name in made}


def _sink(setting: Setting, change: Change) -> Tensor:
    """The sink a mistake uses; no sink is -inf (INV-02)."""
    sink = setting.problem.sink if change.sink is None else change.sink
    return sink if sink is not None else setting.logits.new_full((setting.logits.shape[1],), -torch.inf)


def _as_heads(setting: Setting, changes: dict[str, Change]) -> dict[str, Answer]:
    heads = setting.logits.shape[1]
    logits = torch.cat([setting.logits * c.factor for c in changes.values()], 1)
    valid = torch.stack([c.valid for c in changes.values()], 1).repeat_interleave(heads, dim=1)
    sink = torch.cat([_sink(setting, c).to(torch.float64) for c in changes.values()])
    answer = combine(logits, setting.keys, valid, sink)
    return {n: answer.at((slice(None), slice(i * heads, (i + 1) * heads))) for i, n in enumerate(changes)}


def _as_rows(setting: Setting, changes: dict[str, Change]) -> dict[str, Answer]:
    rows, count = setting.logits.shape[0], len(changes)
    width = max(c.valid.shape[1] for c in changes.values())
    keys = torch.cat([_wider(c.keys, width) for c in changes.values() if c.keys is not None])
    valid = torch.cat([_wider(c.valid, width) for c in changes.values()])
    problem = setting.problem
    answer = attend(problem.q.repeat(count, 1, 1), keys, valid, problem.sink, problem.scale)
    return {n: answer.at(slice(i * rows, (i + 1) * rows)) for i, n in enumerate(changes)}


def _wider(x: Tensor, width: int) -> Tensor:
    """``x (R, N, ...)`` with zeros (False) appended up to N = width."""
    missing = width - x.shape[1]
    return torch.cat((x, x.new_zeros(x.shape[0], missing, *x.shape[2:])), 1) if missing else x


def _mutant(name: str) -> Mutant:
    @functools.wraps(MISTAKES[name])
    def answer(setting: Setting) -> Answer | None:
        return wrong_answers(setting, [name]).get(name)

    return answer


MUTANTS: dict[str, Mutant] = {name: _mutant(name) for name in MISTAKES}
"""Mutant by name: a setting -> its wrong answer, or None where the mistake cannot be made."""
