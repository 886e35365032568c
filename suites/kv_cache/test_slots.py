"""Every slot of a pool by its own row, from the first page to the last, near and far (INV-149, INV-150)."""

import torch

from dsv4_conformance.cases.case import FormatCase
from dsv4_conformance.cases.generator import words
from dsv4_conformance.cases.pages import page_buffer
from dsv4_conformance.cases.slots import far_ids, far_pages, kernel_view, named_keys, named_rows
from dsv4_conformance.oracle import kv_format
from dsv4_conformance.runner.formats import declared_form
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.kv_layout import INDEX_KEY_FP8, PageLayout
from dsv4_conformance.suite import requirement

PAGES = 5
FAR_BYTES = {"cpu": 2**31, "cuda": 2**32}


def _order(case: FormatCase, name: str, count: int, device: torch.device) -> torch.Tensor:
    return torch.argsort(words(case.digest(), name, (count,), device), stable=True)


def _own(subject: Subject, what: str, got: torch.Tensor, want: torch.Tensor, slots: torch.Tensor) -> None:
    """Fail unless every row is that of its slot; the sentence names the first that is not."""
    got, want = got.to(torch.float64), want.to(torch.float64)
    wrong = ~(got == want).all(1)
    place = int(torch.nonzero(wrong)[0]) if bool(wrong.any()) else 0
    others = torch.nonzero((got[place] == want).all(1)).flatten()
    dim = int(torch.nonzero(got[place] != want[place])[0]) if bool(wrong.any()) else 0
    found = (
        f"holds the row of slot {int(slots[others[0]])}"
        if len(others)
        else f"is {float(got[place, dim]):.6g} in dim {dim}, where {float(want[place, dim]):.6g} was written"
    )
    subject.expect(
        ~wrong.any(), f"{what} slot {int(slots[place])} {found}; {int(wrong.sum())} of {len(slots)} slots are wrong."
    )


def _readable(subject: Subject) -> bool:
    """Whether the oracle's reader knows the declared bytes: the floor of scales is a writer's matter."""
    form = declared_form(subject, "KVPageFormat")
    return form.dialect == kv_format.FORM.dialect and form.top == kv_format.FORM.top


@requirement("INV-150", on=("KVPageFormat",), cases="kv_tokens")
def test_every_slot_of_a_pool_has_its_own_row(subject: Subject, case: FormatCase) -> None:
    """INV-150: all slots written in random order in two calls, pages up to three times as far apart as they are large;
    a third of them written anew leaves the others; the bytes are where the layout has them."""
    stride = 1 + case.digest() % 3
    pages = page_buffer(PAGES * stride, case.page_size, "nan", subject.device)[::stride]
    slots = _order(case, "slots", PAGES * case.page_size, subject.device)
    names = slots.clone()
    half = len(slots) // 2
    for part in (slice(0, half), slice(half, None)):
        rows = named_rows(names[part]).to(torch.bfloat16)
        subject.ask("pack", rows, slots[part], pages, writes=(2,))
    for changed in (slice(0, 0), slice(0, None, 3)):
        names[changed] += 4096
        subject.ask("pack", named_rows(names[changed]).to(torch.bfloat16), slots[changed], pages, writes=(2,))
        if _readable(subject):
            _own(subject, "pack:", kv_format.unpack(pages, slots), named_rows(names), slots)
        back = _order(case, "back", len(slots), subject.device)
        got = subject.ask("unpack", pages, slots[back])
        _own(subject, "unpack:", got, named_rows(names[back]), slots[back])


@requirement("INV-150", on=("IndexKeyFormat",), cases="kv_tokens")
def test_every_slot_of_an_index_pool_has_its_own_key(subject: Subject, case: FormatCase) -> None:
    """INV-150: likewise for index keys and their scales."""
    pages = torch.full((PAGES, INDEX_KEY_FP8.page_bytes), 0xFF, dtype=torch.uint8, device=subject.device)
    slots = _order(case, "slots", PAGES * 64, subject.device)
    names = slots.clone()
    keys = named_keys(names)
    exact = declared_form(subject, "IndexKeyFormat") == kv_format.FORM
    for changed in (slice(None), slice(0, None, 3)):
        names[changed] += 4096
        keys[changed] = named_keys(names[changed])
        subject.ask("pack_index_keys", keys[changed], slots[changed], pages, writes=(2,))
        back = _order(case, "back", len(slots), subject.device)
        got = subject.ask("unpack_index_keys", pages, slots[back])
        near = (got - keys[back]).abs() <= keys[back].abs() / 16 + keys[back].abs().amax(1, keepdim=True) / 4096
        subject.expect(near.all(), "an index key came back from another slot than its own.")
        if exact:
            _own(subject, "unpack_index_keys:", got, keys[back], slots[back])


@requirement("INV-149", on=("KVPageFormat",), cases="kv_far")
def test_rows_of_far_pages_are_stored_and_read(subject: Subject, case: FormatCase) -> None:
    """INV-149: on both sides of 2^31 bytes from the start of the pool, and beside them nothing is written."""
    page_bytes, size = PageLayout(case.page_size).page_bytes, case.page_size
    ids = far_ids(page_bytes, FAR_BYTES[subject.device.type])
    pages = kernel_view(far_pages(ids, page_bytes, subject.device), size)
    page = torch.tensor(ids, device=subject.device)
    slots = (page[:, None] * size + torch.arange(size, device=subject.device)).flatten()[:: max(1, size // 3)]
    tokens = named_rows(torch.arange(len(slots), device=subject.device) + 1).to(torch.bfloat16)
    # As if unpack might write as well: a fingerprint of gigabytes would touch them all.
    subject.ask("pack", tokens, slots, pages, writes=(2,))
    if _readable(subject):
        _own(subject, "pack:", kv_format.unpack(pages, slots), tokens, slots)
    got = subject.ask("unpack", pages, slots, writes=(0,))
    _own(subject, "unpack:", got, tokens, slots)


@requirement("INV-149", on=("IndexKeyFormat",), cases="kv_far")
def test_keys_of_far_pages_are_stored_and_read(subject: Subject, case: FormatCase) -> None:
    """INV-149: likewise for index keys."""
    size = INDEX_KEY_FP8.page_bytes
    ids = far_ids(size, FAR_BYTES[subject.device.type])
    pages = far_pages(ids, size, subject.device)
    slots = (
        torch.tensor(ids, device=subject.device)[:, None] * 64 + torch.tensor([0, 31, 63], device=subject.device)
    ).flatten()
    keys = named_keys(torch.arange(len(slots), device=subject.device) + 1)
    subject.ask("pack_index_keys", keys, slots, pages, writes=(2,))
    got = subject.ask("unpack_index_keys", pages, slots, writes=(0,))
    subject.expect(
        ((got - keys).abs() <= keys.abs() / 16 + keys.abs().amax(1, keepdim=True) / 4096).all(),
        "a key of a far page came back as another.",
    )
