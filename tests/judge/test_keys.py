"""The key that explains a wrong row is named by scope, place and slot; several keys by their places."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dsv4_conformance.cases.case import ScopeShape
from dsv4_conformance.judge.dump import load
from dsv4_conformance.judge.explaining import Explanation, explain
from dsv4_conformance.judge.judging import judge
from dsv4_conformance.oracle.attention import Answer, Problem, attention
from tests.judge.dumps import Tensors, changed, decode_call, prefill_call, write

FULL = ScopeShape(150, 128, 64, lengths="full")
PLAIN = {"window": FULL, "holes": "none"}


def explained(tmp_path: Path, tensors: Tensors, row: int) -> Explanation:
    dump = load(write(tmp_path, tensors))
    found = judge(dump, rows=torch.tensor([row]))
    assert not found.right
    return explain(dump, row, found.heads)


def relisted(scope: int, change: Callable[[torch.Tensor], None]) -> Callable[[Problem], Answer]:
    """Attention with one scope's lists changed in place."""

    def answer(problem: Problem) -> Answer:
        scopes = list(problem.scopes)
        indices = scopes[scope].indices.clone()
        change(indices)
        scopes[scope] = replace(scopes[scope], indices=indices)
        return attention(replace(problem, scopes=tuple(scopes)))

    return answer


def hole(*places: int) -> Callable[[torch.Tensor], None]:
    def dig(indices: torch.Tensor) -> None:
        indices[:, list(places)] = -1

    return dig


@pytest.mark.parametrize(("scope", "place"), [(0, 0), (0, 37), (0, 127), (1, 5)])
def test_dropped_key_is_named(scope: int, place: int, tmp_path: Path) -> None:
    call = decode_call(**PLAIN, extra=replace(FULL, topk=64, page_size=2))
    key = explained(tmp_path, changed(call, relisted(scope, hole(place))), row=3).key
    assert key is not None
    given = (call.window, call.extra)[scope]
    assert given is not None
    slot = int(given.indices.flatten(0, 1)[3, place])
    assert (key.scope, key.place, key.slot) == (("window", "extra")[scope], place, slot)
    assert (key.counted, key.explains, key.everywhere) == (0, True, True)
    assert key.times == pytest.approx(0, abs=0.05)
    assert key.unexplained < 0.01
    assert key.where == f"slot {slot} (page {slot // given.page_size}, token {slot % given.page_size})"


def test_dropped_key_of_a_prefill_row_is_named(tmp_path: Path) -> None:
    call = prefill_call(**PLAIN)
    key = explained(tmp_path, changed(call, relisted(0, hole(11))), row=2).key
    assert key is not None
    assert (key.scope, key.place, key.slot) == ("kv", 11, int(call.indices[2, 0, 11]))
    assert key.explains


def test_logit_and_weight_are_those_of_the_key(tmp_path: Path) -> None:
    call = decode_call(**PLAIN, sink="none", extra=None)
    tensors = changed(call, relisted(0, hole(37)))
    key = explained(tmp_path, tensors, row=3).key
    assert key is not None
    store = load(write(tmp_path, tensors)).stores[0]
    keys = store.fetch(call.window.indices.flatten(0, 1)[3].long()).double()
    logits = keys @ call.q.flatten(0, 1)[3, key.head].double() / 512**0.5
    assert key.logit == pytest.approx(float(logits[37]))
    assert key.weight == pytest.approx(float(logits.softmax(0)[37]))


def test_key_counted_twice_is_named(tmp_path: Path) -> None:
    """Twice, because another entry was overwritten by it: two changes, so the set of counts explains it."""

    def overwrite(indices: torch.Tensor) -> None:
        indices[:, 20] = indices[:, 50]

    keys = explained(tmp_path, changed(decode_call(**PLAIN), relisted(0, overwrite)), row=3).keys
    assert keys is not None
    assert keys.changes == [("window", "20", 0), ("window", "50", 2)]


def test_repeated_key_is_named(tmp_path: Path) -> None:
    """The list's last hole became a second copy of entry 50."""
    call = decode_call(**PLAIN)
    call.window.indices[:, :, 127] = -1
    call = replace(call, window=replace(call.window, indices=call.window.indices.contiguous()))

    def repeat(indices: torch.Tensor) -> None:
        indices[:, 127] = indices[:, 50]

    key = explained(tmp_path, changed(call, relisted(0, repeat)), row=3).key
    assert key is not None
    assert (key.place, key.counted, key.explains) == (50, 2, True)


def test_key_beyond_the_length_is_named(tmp_path: Path) -> None:
    call = decode_call(window=ScopeShape(150, 128, 64), holes="none")
    assert call.window.topk_length is not None
    length = int(call.window.topk_length[1])
    slot = int(call.window.indices[1, 1, length - 1])
    shorter = call.window.topk_length.clone()
    shorter[1] -= 1
    tensors = changed(call, attention)
    tensors["window_topk_length"] = shorter  # the kernel read one entry more than it was told
    key = explained(tmp_path, tensors, row=3).key
    assert key is not None
    assert (key.place, key.slot, key.counted, key.explains) == (None, slot, 1, True)
    assert key.remark == f"the list has it at place {length - 1}, beyond the length {length - 1}"


def test_hole_read_as_slot_0_is_named(tmp_path: Path) -> None:
    call = decode_call(**PLAIN, extra=None, poison="none")
    given = call.window.indices.clone()
    given[:, :, 9] = -1

    def read(indices: torch.Tensor) -> None:
        indices[:, 9] = 0

    tensors = changed(call, relisted(0, read)) | {"window_indices": given}
    key = explained(tmp_path, tensors, row=2).key
    assert key is not None
    assert (key.place, key.slot, key.counted, key.explains) == (None, 0, 1, True)
    assert key.remark == "the list has holes inside the length: was one read as slot 0?"


def test_key_dropped_in_some_heads(tmp_path: Path) -> None:
    call = decode_call(**PLAIN)
    tensors, right = changed(call, relisted(0, hole(37))), changed(call, attention)
    tensors["out"][:, :, :4], tensors["lse"][:, :4] = right["out"][:, :, :4], right["lse"][:, :4]
    key = explained(tmp_path, tensors, row=3).key
    assert key is not None
    assert (key.place, key.explains, key.everywhere) == (37, True, False)


def test_only_judged_heads_are_explained(tmp_path: Path) -> None:
    """Head 0 is wrong in a way that nothing explains; heads 4 to 7 lost a key."""
    call = decode_call(**PLAIN)
    tensors, right = changed(call, relisted(0, hole(37))), changed(call, attention)
    tensors["out"][:, :, :4], tensors["lse"][:, :4] = right["out"][:, :, :4], right["lse"][:, :4]
    tensors["out"][:, :, 0, ::7] += 1.0
    dump = load(write(tmp_path, tensors))
    assert not explain(dump, 3, torch.arange(8)).explained
    key = explain(dump, 3, torch.arange(4, 8)).key
    assert key is not None
    assert (key.place, key.explains) == (37, True)


def test_lost_block_is_named_by_its_places(tmp_path: Path) -> None:
    told = explained(tmp_path, changed(decode_call(**PLAIN), relisted(0, hole(*range(32, 64), 100))), row=4)
    assert told.key is not None
    assert not told.key.explains
    assert told.keys is not None
    assert told.keys.changes == [("window", "32-63", 0), ("window", "100", 0)]
    assert (told.keys.keys, told.keys.explains) == (33, True)


def test_every_key_lost_leaves_zero(tmp_path: Path) -> None:
    """The only key of a row without sink: its direction vanishes unless what came out is taken for it."""
    call = decode_call(window=ScopeShape(96, 1, 64, lengths="full"), extra=None, sink="none", holes="none")
    key = explained(tmp_path, changed(call, relisted(0, hole(0))), row=1).key
    assert key is not None
    assert (key.place, key.counted, key.explains) == (0, 0, True)


def test_nan_from_where_nobody_may_read(tmp_path: Path) -> None:
    """The list names a NaN row beyond its length, and NaN came out."""
    call = decode_call(window=ScopeShape(96, 128, 64), holes="none")
    assert call.window.topk_length is not None
    tensors = changed(call, attention)
    pages = tensors["window_pages"]
    poisoned = int((pages.view(torch.float8_e4m3fn)[:, :448].float().isnan().all(1)).nonzero()[0]) * 64
    length = int(call.window.topk_length[1])
    tensors["window_indices"][1, 1, length] = poisoned
    tensors["out"][1, 1] = torch.nan
    told = explained(tmp_path, tensors, row=3)
    assert told.nan
    assert any(f"window place {length}: beyond the length {length}" in line for line in told.unread)
