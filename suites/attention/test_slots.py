"""Keys from every slot of a pool, one query each, and from pages that lie far into it (INV-149, INV-150)."""

from dataclasses import replace

import torch

from dsv4_conformance.cases.case import AttentionCase
from dsv4_conformance.cases.generator import words
from dsv4_conformance.cases.rearrange import scope_lists
from dsv4_conformance.cases.repack import copy_slots, live_slots
from dsv4_conformance.cases.slots import far_ids, far_pages, kernel_view, name_slots, named_rows
from dsv4_conformance.errors import ConformanceFailure
from dsv4_conformance.implementations.api import DecodeCall, KVScope, PrefillCall
from dsv4_conformance.runner.execute import fit, returned
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.kv_layout import PageLayout
from dsv4_conformance.suite import ATTENTION, DECODE, requirement

FAR_BYTES = {"cpu": 2**31, "cuda": 2**32}


def _each_alone(case: AttentionCase, scope: KVScope, b: int, s_q: int, name: str) -> KVScope:
    """The pool with a name in every slot, and a list of one slot for each of ``b * s_q`` queries: all slots in a random
    order, the first and the last of the pool among them, over and over."""
    name_slots(scope.pages)
    count, device = scope.pages.shape[0] * scope.page_size, scope.pages.device
    order = torch.argsort(words(case.digest(), name, (count,), device), stable=True)
    order = order[torch.arange(b * s_q, device=device) % count]
    return KVScope(scope.pages, order.view(b, s_q, 1).to(torch.int32), None)


@requirement("INV-150", on=ATTENTION, cases="slots")
def test_every_slot_is_read_as_itself(subject: Subject, case: AttentionCase) -> None:
    """INV-150: with q = 0 and one listed slot out is the row of that slot, for every slot of a pool whose rows hold
    their own numbers; two scopes give the mean of two."""
    subject.judge(subject.build(case))
    call = subject.build(case)
    if isinstance(call, PrefillCall):
        kv = named_rows(torch.arange(case.window.slots, device=call.q.device)).to(torch.bfloat16)[:, None].contiguous()
        order = torch.argsort(words(case.digest(), "rows", (len(kv),), call.q.device), stable=True)
        indices = order.view(-1, 1, 1).to(torch.int32)
        q = call.q.new_zeros(len(kv), *call.q.shape[1:])
        subject.judge(PrefillCall(q, kv, indices, None, None, call.scale))
        return
    count = call.window.pages.shape[0] * call.window.page_size
    b, s_q = -(-count // case.s_q), case.s_q
    window = _each_alone(case, call.window, b, s_q, "window")
    extra = None if call.extra is None else _each_alone(case, call.extra, b, s_q, "extra")
    q = call.q.new_zeros(b, s_q, *call.q.shape[2:])
    subject.judge(DecodeCall(q, window, extra, None, call.scale))


@requirement("INV-149", on=DECODE, cases="kv_far")
def test_keys_of_far_pages_are_found(subject: Subject, case: AttentionCase) -> None:
    """INV-149: the pages of a call moved to both sides of 2^31 bytes from the start of the pool: the same answer."""
    call = subject.build(case)
    assert isinstance(call, DecodeCall)
    base, truth = subject.judge(call), subject.truth(call)
    moved = replace(call, window=_far(call.window, FAR_BYTES[subject.device.type]))
    # Not through judge: a fingerprint of gigabytes would touch them all.
    fitted = fit(moved, subject.convention("SparseDecode"))
    try:
        result = subject.implementation.decode(fitted)  # type: ignore[arg-type]
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise ConformanceFailure(f"decode raised {type(error).__name__}: {error} on pages far into a pool.") from error
    outputs = returned(fitted, subject.convention("SparseDecode"), result)
    subject.compare(moved, outputs, truth)
    subject.same_bits(base, outputs, "when the pages lie far into their pool")


def _far(scope: KVScope, limit: int) -> KVScope:
    """The same bytes on pages far apart, lists renumbered."""
    size, device = scope.page_size, scope.pages.device
    page_bytes = PageLayout(size).page_bytes
    live = live_slots(scope)
    used = torch.unique(live // size)
    ids = far_ids(page_bytes, limit)
    last = ids[-1]
    ids = [*ids[2:], *ids[:2], *range(last + 1, last + 1 + len(used))][: len(used)]
    pages = kernel_view(far_pages([*ids, 0], page_bytes, device), size)
    new_page = torch.zeros(scope.pages.shape[0], dtype=torch.int64, device=device)
    new_page[used] = torch.tensor(ids, device=device)
    copy_slots(scope.pages, live, pages, new_page[live // size] * size + live % size)
    lists = scope_lists(scope, "window")
    slots = lists.indices.masked_fill(~lists.valid, 0)
    listed = torch.where(lists.valid, new_page[slots // size] * size + slots % size, -1)
    return KVScope(pages, listed.to(torch.int32).view(scope.indices.shape), scope.topk_length)
