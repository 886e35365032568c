"""Rearranged and repacked calls: each keeps the oracle's answer, or changes it, as it says."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import islice

import pytest
import torch
from torch import Tensor

from dsv4_conformance.cases import rearrange, repack
from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase, Poison
from dsv4_conformance.cases.families import family
from dsv4_conformance.cases.problem import problem_of
from dsv4_conformance.cases.rearrange import Lists
from dsv4_conformance.cases.shift import level_channel, step_query
from dsv4_conformance.implementations.api import DecodeCall, PrefillCall
from dsv4_conformance.oracle.attention import Answer, attention

Call = DecodeCall | PrefillCall
SURFACES = ("SparseDecode", "SparsePrefill")


@cache
def calls(surface: str, name: str = "rows") -> list[Call]:
    cases = [case for case in islice(family(name, surface, "laptop", 5), 4) if isinstance(case, AttentionCase)]
    return [build(case.with_(h_q=3), "cpu") for case in cases]


def decodes(name: str = "rows") -> list[DecodeCall]:
    return [call for call in calls("SparseDecode", name) if isinstance(call, DecodeCall)]


def answer(call: Call) -> Answer:
    return attention(problem_of(call))


def same(one: Answer, other: Answer, *, bits: bool = False) -> None:
    for name in ("out", "lse", "max_logits"):
        a, b = getattr(one, name), getattr(other, name)
        torch.testing.assert_close(a, b, rtol=0 if bits else 1e-11, atol=0 if bits else 1e-12)


def lists_of(call: Call) -> list[Lists]:
    if isinstance(call, PrefillCall):
        return [rearrange.prefill_lists(call)]
    named = (("window", call.window), ("extra", call.extra))
    return [rearrange.scope_lists(scope, name) for name, scope in named if scope is not None]


def moved(one: Call, other: Call) -> bool:
    return any(
        a.indices.shape != b.indices.shape or not torch.equal(a.indices, b.indices)
        for a, b in zip(lists_of(one), lists_of(other), strict=True)
    )


KEEPING: dict[str, Callable[[Call], Call]] = {
    "permute_lists": lambda call: rearrange.permute_lists(call, 17),
    "insert_holes": rearrange.insert_holes,
    "compact": rearrange.compact,
    "holes_beyond": rearrange.holes_beyond,
}


# Kills: entries moved across the length, a length that is not raised, an entry lost in compaction, a valid entry taken
# for a hole; and rearrangements that do nothing.
@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("name", KEEPING)
def test_answer_stays(name: str, surface: str) -> None:
    changed = 0
    for call in calls(surface):
        before, after = answer(call), KEEPING[name](call)
        same(before, answer(after))
        changed += moved(call, after)
    assert changed >= 2


# Kills: holes inserted without their kind of length (validity must alternate with holes).
@pytest.mark.parametrize("surface", SURFACES)
def test_inserted_holes_stand_after_every_entry(surface: str) -> None:
    for call in calls(surface):
        for before, after in zip(lists_of(call), lists_of(rearrange.insert_holes(call)), strict=True):
            assert torch.equal(after.indices[:, ::2], before.indices) and (after.indices[:, 1::2] == -1).all()
            assert torch.equal(after.inside.sum(1), 2 * before.inside.sum(1))


# Kills: a compacted list with a hole before a key.
@pytest.mark.parametrize("surface", SURFACES)
def test_compact_lists_begin_with_their_keys(surface: str) -> None:
    for call in calls(surface):
        for before, after in zip(lists_of(call), lists_of(rearrange.compact(call)), strict=True):
            count = before.valid.sum(1)
            assert torch.equal(after.valid, torch.arange(after.valid.shape[1]) < count[:, None])
            assert (after.indices[~after.valid] == -1).all()


# Kills: a permutation that leaves entries in place, one that is the same for every row, holes lost.
@pytest.mark.parametrize("surface", SURFACES)
def test_permuted_lists_hold_the_same_entries_in_another_order(surface: str) -> None:
    for call in calls(surface):
        for before, after in zip(lists_of(call), lists_of(rearrange.permute_lists(call, 3)), strict=True):
            assert torch.equal(before.inside, after.inside)
            order = before.indices.masked_fill(~before.inside, -2).sort(1).values
            assert torch.equal(after.indices.masked_fill(~after.inside, -2).sort(1).values, order)
            assert torch.equal(before.indices[~before.inside], after.indices[~after.inside])
            long = before.valid.sum(1) > 10
            assert not (before.indices == after.indices)[long].all(1).any()


# Kills: entries repeated beyond a length that is not doubled, or once too often.
@pytest.mark.parametrize("surface", SURFACES)
def test_repeated_entries_add_ln_2_without_a_sink(surface: str) -> None:
    for call in calls(surface):
        plain = replace(call, sink=None)
        before, after = answer(plain), answer(rearrange.repeat_entries(plain))
        same(replace(before, lse=before.lse + math.log(2)), after)


# Kills: a first key that is a hole, the second one, one per call instead of one per row and scope.
@pytest.mark.parametrize("surface", SURFACES)
def test_keeping_the_first_key_keeps_one_per_row_and_scope(surface: str) -> None:
    for call in calls(surface):
        kept = rearrange.keep_entries(call, rearrange.first_key)
        for before, after in zip(lists_of(call), lists_of(kept), strict=True):
            assert torch.equal(after.valid.sum(1), before.valid.any(1).long())
            for row in range(len(before.valid)):
                if before.valid[row].any():
                    wanted = before.indices[row][before.valid[row]][0]
                    assert after.indices[row][after.valid[row]].tolist() == [wanted]
            assert (after.indices[~after.valid] == -1).all()


# Kills: sinks left where they were, heads permuted backwards.
@pytest.mark.parametrize("surface", SURFACES)
def test_permuted_heads_permute_the_answer(surface: str) -> None:
    order = torch.tensor([2, 0, 1])
    for call in calls(surface):
        same(answer(call).at((slice(None), order)), answer(rearrange.permute_heads(call, order)))


# Kills: a row that changes although it should stay, other rows that do not change.
@pytest.mark.parametrize("surface", SURFACES)
def test_kept_row_keeps_its_answer_and_the_others_change(surface: str) -> None:
    for call in calls(surface):
        groups, shuffled = call.q.shape[0], replace(call, q=call.q * -0.5)
        row = groups - 1
        mixed = rearrange.keep_rows(call, row, shuffled)
        mine = torch.arange(problem_of(call).q.shape[0]) // (problem_of(call).q.shape[0] // groups) == row
        same(answer(call).at(mine), answer(mixed).at(mine))
        keys = sum(lists.valid.sum(1) for lists in lists_of(call))
        rest = ~mine & (keys > 1)  # under a sink of -inf a single key is the answer whatever the query
        assert (answer(call).out[rest] != answer(mixed).out[rest]).flatten(1).any(1).all()
        assert all(torch.equal(a.inside, b.inside) for a, b in zip(lists_of(call), lists_of(mixed), strict=True))


# Kills: bytes or scales left behind, lists numbered for the old pages, slots that stay where they were.
@pytest.mark.parametrize(("window", "extra"), [(2, 256), (53, 64), (256, 2), (64, 61)])
def test_repacked_caches_hold_the_same_keys_elsewhere(window: int, extra: int) -> None:
    for call in decodes():
        other = repack.repack(call, window, extra, 9)
        assert other.window.page_size == window and (other.extra is None or other.extra.page_size == extra)
        same(answer(call), answer(other), bits=True)
        before, after = lists_of(call)[0], lists_of(other)[0]
        assert torch.equal(before.valid, after.valid)
        stays = (before.indices == after.indices)[before.valid]
        assert stays.double().mean() < 0.2
        assert (after.indices[after.valid] >= window).all()  # the dummy page stays one


# Kills: live rows overwritten, poison that is left out, a prefill whose tails come to name NaN rows.
@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("fill", ["nan", "inf", "none"])
def test_resurrounded_calls_keep_answers_whatever_surrounds_them(fill: Poison, surface: str) -> None:
    surrounded = 0
    for call in calls(surface):
        other = repack.resurround(call, fill)
        same(answer(call), answer(other), bits=True)
        if isinstance(other, PrefillCall):
            listed = other.indices[(other.indices >= 0) & (other.indices < other.kv.shape[0])].long()
            dead = torch.ones(other.kv.shape[0], dtype=torch.bool)
            dead[listed] = False
            assert other.kv[listed].isfinite().all()
            surrounded += int(dead.sum())
            around = other.kv[dead]
            assert {"nan": around.isnan(), "inf": around.isinf(), "none": around == 0}[fill].all()
        elif fill != "none":
            lists = lists_of(other)[0]
            dead = torch.ones(other.window.pages.shape[0] * other.window.page_size, dtype=torch.bool)
            dead[lists.indices[lists.valid]] = False
            assert dead[0] or (lists.indices == 0).any()
            rows = problem_of(other).scopes[0].fetch(dead.nonzero().flatten())
            assert not rows.isfinite().all(1).any()
            surrounded += len(rows)
    assert surrounded or (fill == "none" and surface == "SparseDecode")


# Kills: slots of the second cache without their offset, lengths that survive the merge, keys that are lost.
def test_merged_scopes_are_one_list_with_the_same_answer() -> None:
    for call in decodes("two_scopes"):
        merged = repack.merge_scopes(call)
        assert merged.extra is None
        count = [int(lists.valid.sum()) for lists in lists_of(call)]
        assert int(lists_of(merged)[0].valid.sum()) == sum(count) and min(count) > 0
        same(answer(call), answer(merged))


# Kills: halves that overlap or miss the entry in the middle, both halves over different caches.
def test_split_scope_is_two_lists_with_the_same_answer() -> None:
    for call in decodes():
        single = replace(call, extra=None)
        split = repack.split_scope(single)
        assert split.extra is not None and split.extra.pages is split.window.pages
        same(answer(single), answer(split))
        both = [lists.valid for lists in lists_of(split)]
        assert not (both[0] & both[1]).any() and all(half.any() for half in both)


# Kills: a channel that is not 1 in every key, a step that bf16 rounds without saying so.
@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("wanted", [25.0, -300.0])
def test_stepped_queries_shift_every_logit_by_what_they_say(surface: str, wanted: float) -> None:
    for call in calls(surface):
        level = level_channel(replace(call, sink=None))
        moved_call, step = step_query(level, wanted)
        assert step == pytest.approx(wanted, rel=2**-8)
        before, after = answer(level), answer(moved_call)
        same(replace(before, lse=before.lse + step, max_logits=before.max_logits + step), after)


# Kills: caches and lists that a rearrangement shares and changes.
@pytest.mark.parametrize("surface", SURFACES)
def test_the_given_call_stays_as_it_was(surface: str) -> None:
    def snapshot(call: Call) -> list[Tensor]:
        lists = [call.indices, call.kv] if isinstance(call, PrefillCall) else [call.window.indices, call.window.pages]
        return [tensor.clone() for tensor in [call.q, *lists]]

    for call in calls(surface):
        before = snapshot(call)
        for change in KEEPING.values():
            change(call)
        rearrange.repeat_entries(call)
        level_channel(call)
        repack.resurround(call, "nan")
        if isinstance(call, DecodeCall):
            repack.repack(call, 2, 2, 1)
            repack.split_scope(call)
        for a, b in zip(before, snapshot(call), strict=True):
            assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
