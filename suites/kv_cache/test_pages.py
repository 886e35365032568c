"""The 584-byte KV page: bytes, dequantisation, idempotence, exponents (INV-60 to INV-63)."""

import torch

from dsv4_conformance.cases.case import FormatCase
from dsv4_conformance.cases.format_inputs import placement, rows
from dsv4_conformance.cases.generator import words
from dsv4_conformance.numerics.format_diagnosis import mispacked, misread, misscaled, miswritten
from dsv4_conformance.numerics.format_mutants import copy_pages, format_margins, whole_storage
from dsv4_conformance.oracle import kv_format
from dsv4_conformance.runner.formats import declared_form
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.kv_layout import FP8_MAX, PageLayout, Ue8m0Floor
from dsv4_conformance.suite import requirement

PAGES = ("KVPageFormat",)


def _without_pads(pages: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Every byte behind ``pages`` with the written tokens' pad bytes (never interpreted) set to 0."""
    copy = copy_pages(pages)
    scales = kv_format.page_views(copy)[1]
    scales[slots // pages.shape[1], slots % pages.shape[1], 7] = 0
    return whole_storage(copy)


@requirement("INV-60", on=PAGES, cases="kv_tokens")
def test_written_bytes_stand_where_the_layout_says(subject: Subject, case: FormatCase) -> None:
    """INV-60: data rows first, scale rows behind them, stride ceil_576(584 P); no other byte is touched."""
    tokens, place = rows(case, 512, subject.device), placement(case, subject.device)
    wanted = copy_pages(place.pages)
    kv_format.pack(tokens, place.slots, wanted, declared_form(subject, "KVPageFormat"))
    subject.margins(format_margins(tokens, place.slots, place.pages, declared_form(subject, "KVPageFormat")))
    slots = place.slots.clone()
    if case.tokens > 1:  # slot -1 skips its row, wherever and however often it stands: the slot is left as it was
        slots[::7] = slots[-1:] = -1
        kept = slots >= 0
        wanted = copy_pages(place.pages)
        kv_format.pack(tokens[kept], slots[kept], wanted, declared_form(subject, "KVPageFormat"))
    subject.ask("pack", tokens, slots, place.pages, writes=(2,))
    got, want = _without_pads(place.pages, place.slots), _without_pads(wanted, place.slots)
    differs = torch.nonzero(got != want).flatten()
    at = int(differs[0]) - int(place.pages.storage_offset()) if len(differs) else 0
    page, inside = divmod(at, PageLayout(case.page_size).page_bytes)
    where = f"the first in page {page} at byte {inside} (page size {case.page_size})"
    told = mispacked(place.pages, tokens, slots, declared_form(subject, "KVPageFormat")) if len(differs) else ""
    subject.expect(len(differs) == 0, f"pack wrote {len(differs)} wrong bytes, {where}. {told}".rstrip())


@requirement("INV-61", on=PAGES, cases="kv_tokens")
def test_dequantised_rows_are_exact(subject: Subject, case: FormatCase) -> None:
    """INV-61: every code times its power of two, exact in bf16; rope bytes come back bit for bit."""
    tokens, place = rows(case, 512, subject.device), placement(case, subject.device)
    kv_format.pack(tokens, place.slots, place.pages, declared_form(subject, "KVPageFormat"))
    data, scales = kv_format.page_views(place.pages)
    page, row = place.slots // case.page_size, place.slots % case.page_size
    # All finite codes, under scale bytes around those that writers produce.
    codes = words(case.digest(), "codes", (case.tokens, 112), subject.device).view(torch.uint8)
    form = declared_form(subject, "KVPageFormat")
    nan = torch.isin(codes, torch.tensor(form.dialect.nans, dtype=torch.uint8, device=codes.device))
    data[page, row, :448] = torch.where(nan, 0x7E, codes)
    scales[page, row, :7] = (
        92 + words(case.digest(), "bytes", (case.tokens, 2), subject.device).view(torch.uint8)[:, :7] % 80
    )
    got = subject.promised(
        "unpack", subject.ask("unpack", place.pages, place.slots), (case.tokens, 512), torch.bfloat16
    )
    wrong = misread(got[:, :448], data[page, row, :448], scales[page, row, :7], place.slots, form)
    subject.expect(not wrong, wrong)
    same = got[:, 448:].contiguous().view(torch.int16) == tokens[:, 448:].contiguous().view(torch.int16)
    subject.expect(same.all(), "a rope value did not come back bit for bit.")


@requirement("INV-62", on=PAGES, cases="kv_tokens")
def test_quantising_twice_changes_no_value(subject: Subject, case: FormatCase) -> None:
    """INV-62: packing a dequantised row again gives the same values, under exponents that are not larger."""
    tokens, place = rows(case, 512, subject.device), placement(case, subject.device)
    again = placement(case, subject.device)
    subject.ask("pack", tokens, place.slots, place.pages, writes=(2,))
    first = subject.ask("unpack", place.pages, place.slots)
    subject.ask("pack", first, again.slots, again.pages, writes=(2,))
    second = subject.ask("unpack", again.pages, again.slots)
    subject.expect(torch.equal(first.to(torch.float64), second.to(torch.float64)), "quantising twice changed a value.")
    page, row = place.slots // case.page_size, place.slots % case.page_size
    before, after = (kv_format.page_views(p)[1][page, row, :7] for p in (place.pages, again.pages))
    subject.expect((after <= before).all(), "the second quantisation chose a larger exponent.")
    data = kv_format.page_views(place.pages)[0][page, row, :448]
    form, given = declared_form(subject, "KVPageFormat"), tokens[:, :448].to(torch.float64)
    # The bytes first: where a reader is wrong, too, the sentence is about what was written.
    wrong = miswritten(data, before, given, place.slots, form)
    subject.expect(not wrong, wrong)
    wrong = misread(first[:, :448], data, before, place.slots, form)
    subject.expect(not wrong, wrong)


@requirement("INV-63", on=PAGES, cases="kv_tokens")
def test_scale_is_the_smallest_power_of_two_that_fits(subject: Subject, case: FormatCase) -> None:
    """INV-63: maximum 448 * 2**k gives byte 127 + k, the next bf16 above 128 + k; the floor holds; nothing is NaN."""
    exact, place = rows(case.with_(data="powers"), 512, subject.device), placement(case, subject.device)
    subject.ask("pack", exact, place.slots, place.pages, writes=(2,))
    slots, page, row = place.slots, place.slots // case.page_size, place.slots % case.page_size
    data, scales = kv_format.page_views(place.pages)
    form = declared_form(subject, "KVPageFormat")
    floor = Ue8m0Floor(form.floor).smallest_byte(form.top)
    if form.top == FP8_MAX:
        top = torch.unflatten(exact[:, :448].to(torch.float64), -1, (7, 64)).abs().amax(-1)
        above = (torch.arange(case.tokens, device=subject.device) % 2 == 1)[:, None]
        wanted = torch.log2(torch.where(above, top / 450 * 448, top) / 448) + 127 + above
        wrong = misscaled(scales[page, row, :7], wanted.clamp(min=floor), top, place.slots, form)
        subject.expect(not wrong, wrong)
    for data_kind in ("tiny", "zeros", case.data):
        tokens, fresh = rows(case.with_(data=data_kind), 512, subject.device), placement(case, subject.device)
        subject.ask("pack", tokens, fresh.slots, fresh.pages, writes=(2,))
        data, scales = kv_format.page_views(fresh.pages)
        maxima = torch.unflatten(tokens[:, :448].to(torch.float64), -1, (7, 64)).abs().amax(-1)
        got = scales[page, row, :7].to(torch.int64) - 127
        wrong = misscaled(got + 127, kv_format.scale_exponent(maxima, form.floor, form.top) + 127, maxima, slots, form)
        subject.expect(not wrong, f"of {data_kind} values: {wrong}")
        subject.expect((got + 127 >= floor).all(), f"a scale byte is below the floor {floor} of the declared rule.")
        value = kv_format.e4m3_value(data[page, row, :448], form.dialect)
        subject.expect(~value.isnan().any(), "a finite input was packed as NaN.")
