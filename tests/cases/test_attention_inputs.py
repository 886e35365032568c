"""Tensors of attention cases: what must be adversarial in them is, and what must be harmless is."""

from functools import cache
from itertools import islice

import pytest
import torch
from torch import Tensor

from dsv4_conformance.cases.attention_inputs import build
from dsv4_conformance.cases.case import AttentionCase, Case, PaddedCase, Poison, RankCase, ScopeShape, Sinks
from dsv4_conformance.cases.families import family
from dsv4_conformance.cases.lists import INT_MAX, INT_MIN
from dsv4_conformance.cases.pages import GUARD_BYTES, plan_pages
from dsv4_conformance.cases.problem import problem_of
from dsv4_conformance.implementations.api import DecodeCall, KVScope, PrefillCall
from dsv4_conformance.oracle.attention import attention
from dsv4_conformance.oracle.kv_format import unpack

Call = DecodeCall | PrefillCall
CPU = torch.device("cpu")
FAMILIES = ("core", "rows", "lengths", "lonely", "poisoned", "ranks", "padding")


def plain(case: Case) -> AttentionCase:
    found = case.attention if isinstance(case, RankCase | PaddedCase) else case
    assert isinstance(found, AttentionCase)
    return found


@cache
def built(name: str, surface: str, count: int = 16) -> list[tuple[AttentionCase, Call]]:
    cases = [plain(case) for case in islice(family(name, surface, "laptop", 0), count)]
    return [(case, build(case, "cpu")) for case in cases]


def scopes(call: Call) -> list[tuple[Tensor, Tensor | None, int]]:
    """Per scope: lists int64 ``(R, N)``, length per row or None, and how many rows are stored."""
    if isinstance(call, PrefillCall):
        return [(call.indices[:, 0].long(), call.topk_length, call.kv.shape[0])]
    s_q, found = call.q.shape[1], [s for s in (call.window, call.extra) if s is not None]
    return [
        (
            s.indices.flatten(0, 1).long(),
            None if s.topk_length is None else s.topk_length.repeat_interleave(s_q),
            s.pages.shape[0] * s.page_size,
        )
        for s in found
    ]


def valid(lists: Tensor, length: Tensor | None, stored: int) -> Tensor:
    inside = torch.ones_like(lists, dtype=torch.bool)
    if length is not None:
        inside = torch.arange(lists.shape[1]) < length[:, None]
    return inside & (lists >= 0) & (lists < stored)


def raw(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


BOTH = [(name, surface) for name in FAMILIES for surface in ("SparseDecode", "SparsePrefill")]


# Kills: random state, tensors that share memory between cases, a seed that is not part of the streams.
@pytest.mark.parametrize("surface", ["SparseDecode", "SparsePrefill"])
def test_a_case_has_the_same_bits_every_time(surface: str) -> None:
    for case, call in built("core", surface, 6):
        again, other = build(case, "cpu"), build(case.with_(seed=case.seed + 1), "cpu")
        for name in ("q", "sink", "kv", "indices", "window", "extra"):
            one, two, three = (getattr(c, name, None) for c in (call, again, other))
            for a, b, c in [(one, two, three)] if not isinstance(one, KVScope) else _fields(one, two, three):
                if isinstance(a, Tensor) and isinstance(b, Tensor) and isinstance(c, Tensor):
                    assert torch.equal(raw(a), raw(b)), name
                    assert name == "sink" or not torch.equal(raw(a), raw(c)), name


def _fields(*found: object) -> list[tuple[object, object, object]]:
    one, two, three = found
    return [(getattr(one, n), getattr(two, n), getattr(three, n)) for n in ("pages", "indices")]


# Kills: a referenced key that is NaN or Inf, which would make the right answer undefined.
@pytest.mark.parametrize(("name", "surface"), BOTH)
def test_every_referenced_key_and_every_query_is_finite(name: str, surface: str) -> None:
    for case, call in built(name, surface):
        keys, named = problem_of(call).gather()
        assert keys.isfinite().all() and (named.any() or case.lonely)
        assert call.q.isfinite().all()


# Kills: prefill tails that name NaN rows (outside the kernel's contract), decode tails that miss the cache's live rows.
@pytest.mark.parametrize("name", FAMILIES)
def test_prefill_lists_never_name_a_poisoned_row(name: str) -> None:
    for _, call in built(name, "SparsePrefill"):
        assert isinstance(call, PrefillCall)
        listed = call.indices[(call.indices >= 0) & (call.indices < call.kv.shape[0])].long()
        assert call.kv[listed].isfinite().all()


# Kills: tails of -1 only, holes of one form only, tails without live entries (then an ignored length would not show).
def test_what_stands_beyond_the_length() -> None:
    seen: set[int] = set()
    live = False
    for surface in ("SparseDecode", "SparsePrefill"):
        for _, call in built("lengths", surface):
            for lists, length, stored in scopes(call):
                assert length is not None
                tail = lists[torch.arange(lists.shape[1]) >= length[:, None]]
                seen |= set(tail.tolist())
                live |= bool(((tail > 0) & (tail < stored)).any())
        assert {INT_MAX, INT_MIN, -1} <= seen and live, surface
        seen, live = set(), False


def test_prefill_holes_take_every_form() -> None:
    seen: set[str] = set()
    for _, call in built("rows", "SparsePrefill"):
        assert isinstance(call, PrefillCall)
        (lists, length, stored) = scopes(call)[0]
        inside = torch.ones_like(lists) > 0 if length is None else torch.arange(lists.shape[1]) < length[:, None]
        seen |= {"s_kv" if x == stored else "above" if x > stored else str(x) for x in lists[inside].tolist()}
    assert {"-1", str(INT_MIN), "s_kv", "above"} <= seen


# Kills: decode holes other than -1 inside the length, which are undefined behaviour there.
@pytest.mark.parametrize("name", FAMILIES)
def test_decode_lists_hold_slots_or_minus_1_inside_the_length(name: str) -> None:
    for _, call in built(name, "SparseDecode"):
        for lists, length, stored in scopes(call):
            inside = torch.ones_like(lists) > 0 if length is None else torch.arange(lists.shape[1]) < length[:, None]
            entries = lists[inside]
            assert ((entries >= -1) & (entries < stored)).all()


# Kills: accidental duplicates, a flag that makes none, holes at the head of a list, holes where none are asked for.
@pytest.mark.parametrize("surface", ["SparseDecode", "SparsePrefill"])
def test_holes_and_duplicates_are_there_when_asked_for_and_only_then(surface: str) -> None:
    flagged = {True: 0, False: 0}
    counts = {kind: torch.zeros(2) for kind in ("none", "some", "many")}
    empty = 0
    for case, call in built("core", surface, 40):
        for lists, length, stored in scopes(call):
            named = valid(lists, length, stored)
            for row, mask in zip(lists, named, strict=True):
                entries = row[mask].tolist()
                flagged[case.duplicates] += len(entries) - len(set(entries))
            headless = ~named[:, 0] & (torch.ones(len(named)) > 0 if length is None else length > 0)
            per_group = 1 if isinstance(call, PrefillCall) else call.q.shape[1]
            if case.holes == "many":
                headed = headless[:per_group] if len(named) > per_group else headless[:0]
                blocks = [row[at : at + 64] for row in named for at in range(0, row.numel() - 64, 64)]
                empty += sum(not block.any() for block in blocks)
            else:
                headed = headless[:-per_group] if case.lonely else headless
            assert not headed.any()
        lists, length, stored = scopes(call)[0]
        named, shape = valid(lists, length, stored), case.window
        if shape.topk <= shape.slots and length is not None:
            inside = torch.arange(lists.shape[1]) < length[:, None]
            counts[case.holes] += torch.stack(((inside & ~named).sum(), inside.sum()))
    assert flagged[False] == 0 and flagged[True] > 50
    share = {kind: float(missing / total) for kind, (missing, total) in counts.items()}
    assert share["none"] == 0 and 0.08 < share["some"] < 0.17 and 0.5 < share["many"] < 0.75
    assert empty > 5  # whole key blocks of holes, with keys behind some of them


# Kills: first rows with many keys (a sink of 0 hardly shows there), last rows that are short.
@pytest.mark.parametrize("surface", ["SparseDecode", "SparsePrefill"])
def test_first_row_has_few_keys_and_another_row_has_many(surface: str) -> None:
    for case, call in built("rows", surface):
        groups = call.q.shape[0]
        if groups == 1:
            continue
        lists, length, stored = scopes(call)[0]
        count = valid(lists, length, stored).sum(1)
        if case.window.lengths == "full":
            continue
        assert 1 <= count[0] <= 7
        assert count[-1] > count[0] or case.window.topk < 16 or case.holes == "many"


# Kills: a lonely row with one key left, lonely rows in cases that do not say so, every row lonely.
@pytest.mark.parametrize("surface", ["SparseDecode", "SparsePrefill"])
def test_lonely_rows_are_lonely_in_every_scope(surface: str) -> None:
    kinds = set()
    for _, call in built("lonely", surface):
        per_group = 1 if isinstance(call, PrefillCall) else call.q.shape[1]
        named = torch.cat([valid(*scope) for scope in scopes(call)], 1)
        assert not named[-per_group:].any()
        assert named[:-per_group].any()
        length = scopes(call)[0][1]
        kinds.add("length 0" if length is not None and length[-1] == 0 else "holes only")
    assert kinds == {"length 0", "holes only"}


# Kills: equal sinks (two heads cannot be told apart), no infinities, sinks that weigh nothing or everything.
@pytest.mark.parametrize("surface", ["SparseDecode", "SparsePrefill"])
@pytest.mark.parametrize("h_q", [2, 8, 64, 127, 128])
def test_special_sinks_are_distinct_near_lse_and_partly_infinite(surface: str, h_q: int) -> None:
    for case, _ in built("rows", surface, 4):
        call = build(case.with_(h_q=h_q), "cpu")
        assert call.sink is not None and call.sink.dtype == torch.float32
        finite = call.sink[call.sink.isfinite()]
        # Sixteenths set aside, what is left tells heads apart: no lse can make two of them equal.
        assert len(set(finite.remainder(1 / 16).tolist())) == len(finite)
        assert call.sink.isneginf().any() and (call.sink.isposinf().any() or h_q < 7)
        lse = attention(problem_of(call).rows(slice(0, 1))).lse[0]
        near = (call.sink.double() - lse)[call.sink.isfinite()]
        assert near.abs().max() <= 2 + 1 / 32 + 127 / 2048
        assert h_q < 64 or (near.min() < -1.5 and near.max() > 1.5)


# Kills: kinds of sinks taken for each other.
@pytest.mark.parametrize(
    ("sink", "value"), [("zero", 0.0), ("minus_inf", -torch.inf), ("plus_inf", torch.inf)], ids=str
)
def test_uniform_sinks(sink: Sinks, value: float) -> None:
    case = built("rows", "SparseDecode", 1)[0][0]
    uniform = build(case.with_(sink=sink), "cpu").sink
    assert uniform is not None and torch.equal(uniform, torch.full((case.h_q,), value))
    assert build(case.with_(sink="none"), "cpu").sink is None
    finite = build(case.with_(sink="finite", h_q=16), "cpu").sink
    assert finite is not None and finite.isfinite().all()


# Kills: queries aimed at keys they do not reference, or not strongly enough to lead by 6.
@pytest.mark.parametrize("surface", ["SparseDecode", "SparsePrefill"])
def test_needle_leads_every_other_key_by_6(surface: str) -> None:
    cases = [c for c in (plain(x) for x in islice(family("core", surface, "laptop", 0), 120)) if c.data == "needle"]
    assert len(cases) >= 10
    for case in cases:
        p = problem_of(build(case, "cpu"))
        keys, named = p.gather()
        logits = torch.einsum("rhd,rnd->rhn", p.q.double(), keys.double()) * p.scale
        logits = logits.masked_fill(~named[:, None], -torch.inf)
        top = logits.amax(-1, keepdim=True)
        aimed = torch.gather(keys, 1, logits.argmax(-1)[..., None].expand(-1, -1, 512)).double()
        own = aimed.square().sum(-1, keepdim=True)
        same = (aimed @ keys.double().transpose(1, 2) - own).abs() < 1e-9  # repetitions of the needle
        lead = (top[..., 0] - logits.masked_fill(same, -torch.inf).amax(-1))[named.any(1)]
        assert (lead >= 6).all(), case.label()


# Kills: markers in a channel that does not tell slots apart, or too faint to see.
def test_marker_channel_encodes_the_slot() -> None:
    case = AttentionCase("SparseDecode", 2, 1, 8, ScopeShape(130, 128, 53), data="marker", poison="none")
    call = build(case, "cpu")
    assert isinstance(call, DecodeCall)
    slots = torch.arange(call.window.pages.shape[0] * 53)
    rows = unpack(call.window.pages, slots)[:, :448].float()
    loud = rows.gather(1, (slots * 37 % 448)[:, None])[:, 0]
    assert (loud.abs() >= 2 * rows.abs().median(1).values).all()
    assert torch.equal(loud > 0, slots % 2 == 0)


# Kills: "edge" data without the extremes of the format.
def test_edge_data_reaches_subnormals_zero_448_and_the_lowest_scale() -> None:
    case = AttentionCase("SparseDecode", 2, 1, 8, ScopeShape(128, 128, 64), data="edge", poison="none")
    call = build(case, "cpu")
    assert isinstance(call, DecodeCall)
    pages = call.window.pages
    data = pages.as_strided((len(pages), 64, 448), (pages.stride(0), 576, 1), pages.storage_offset())
    codes = set(data.flatten().tolist())
    assert {0x00, 0x80, 0x02, 0x7E, 0xFE} <= codes and not codes & {0x7F, 0xFF}
    scales = pages.as_strided((len(pages), 64, 7), (pages.stride(0), 8, 1), pages.storage_offset() + 576 * 64)
    assert {105, 116, 117, 118, 119} == set(scales.flatten().tolist())


# Kills: poison that is overwritten, or missing in one of the places where a kernel must not look.
@pytest.mark.parametrize(("poison", "fill"), [("nan", [255] * 4), ("inf", [0x80, 0x7F, 0x80, 0x7F]), ("none", [0] * 4)])
@pytest.mark.parametrize("page", [2, 53, 64])
def test_poison_fills_unreferenced_slots_pads_tails_and_red_zones(poison: Poison, fill: list[int], page: int) -> None:
    call = build(AttentionCase("SparseDecode", 2, 1, 8, ScopeShape(70, 33, page), poison=poison), "cpu")
    assert isinstance(call, DecodeCall)
    pages, everything = call.window.pages, raw(call.window.pages)
    stride, start, stored = -(-584 * page // 576) * 576, int(pages.storage_offset()), len(pages) * page
    assert pages.stride() == (stride, 584, 584, 1) and pages.shape == (-(-140 // page) + 2, page, 1, 584)
    assert start == GUARD_BYTES and len(everything) == len(pages) * stride + 2 * GUARD_BYTES
    poisoned = everything == torch.tensor(fill, dtype=torch.uint8).repeat(len(everything) // 4)
    dead, nobody_s = 0, torch.ones(len(everything), dtype=torch.bool)
    named = set(call.window.indices.flatten().tolist())
    for slot in range(stored):
        base, i = start + slot // page * stride, slot % page
        data = slice(base + 576 * i, base + 576 * i + 576)
        scales = slice(base + 576 * page + 8 * i, base + 576 * page + 8 * i + 7)
        nobody_s[data] = nobody_s[scales] = False
        whole = bool(poisoned[data].all() and poisoned[scales].all())
        dead += whole
        # Unreferenced but alive are page 0 and slots that the list would have named beyond its length.
        assert not (whole and (slot in named or slot < page))
        assert whole or unpack(pages, torch.tensor([slot])).isfinite().all()
    assert poisoned[nobody_s].all() and nobody_s.sum() > stored
    assert dead == 0 if poison == "none" else dead > stored // 3


# Kills: two tokens in one slot, tokens in the dummy page, pages in order, no page left over.
@pytest.mark.parametrize("page", [2, 53, 256])
def test_tokens_lie_in_permuted_pages_behind_the_dummy_page(page: int) -> None:
    shape = ScopeShape(300, 64, page)
    case = AttentionCase("SparseDecode", 3, 1, 8, shape)
    plan = plan_pages(case, shape, "window", 3, CPU)
    slots = plan.slot_of.tolist()
    used = [slot // page for slot in slots]
    assert len(set(slots)) == 900 and min(used) == 1 and max(used) < plan.num_pages
    assert plan.num_pages == -(-900 // page) + 2
    assert len(set(used)) == plan.num_pages - 2
    assert used != sorted(used)
    assert all(slot % page == token % page for token, slot in enumerate(slots))


# Kills: contiguous tensors where strides are promised, red zones that are finite, a last dim that is not contiguous.
@pytest.mark.parametrize("surface", ["SparseDecode", "SparsePrefill"])
def test_strided_cases_are_views_between_red_zones(surface: str) -> None:
    case = AttentionCase(surface, 1 if surface == "SparsePrefill" else 2, 3, 8, ScopeShape(70, 33, 64))
    strided, packed = build(case, "cpu"), build(case.with_(strided=False), "cpu")
    for call, holds in ((strided, True), (packed, False)):
        lists = call.indices if isinstance(call, PrefillCall) else call.window.indices
        assert call.q.stride(-1) == 1 and lists.stride(-1) == 1 and lists.dtype == torch.int32
        assert call.q.is_contiguous() != holds and lists.is_contiguous() != holds
    around = torch.empty(0, dtype=torch.bfloat16).set_(strided.q.untyped_storage())
    assert around.isnan().sum() == around.numel() - strided.q.numel() > 0
    lists = strided.indices if isinstance(strided, PrefillCall) else strided.window.indices
    beyond = torch.empty(0, dtype=torch.int32).set_(lists.untyped_storage()).view(-1, 33 + 64)[:, 33:]
    assert (beyond == INT_MAX).all()
    if isinstance(strided, PrefillCall):
        kv = torch.empty(0, dtype=torch.bfloat16).set_(strided.kv.untyped_storage())
        assert kv[:512].isnan().all() and kv[-512:].isnan().all()


# Kills: a scale of its own.
@pytest.mark.parametrize("bits", [-2, 0, 1])
def test_scale_is_a_power_of_two_times_that_of_512_dims(bits: int) -> None:
    case = AttentionCase("SparseDecode", 1, 1, 1, ScopeShape(8, 8), scale_bits=bits)
    assert build(case, "cpu").scale == pytest.approx(0.044194173824159216 * 2.0**bits, rel=1e-15)
