"""The index-key page and the numbering of compressed slots (INV-64, INV-65)."""

import torch

from dsv4_conformance.cases.case import FormatCase
from dsv4_conformance.cases.format_inputs import page_tables, rows
from dsv4_conformance.cases.generator import below
from dsv4_conformance.oracle import kv_format
from dsv4_conformance.runner.formats import declared_form
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement

ENTRIES, KEY_BYTES, PAGE_BYTES = 64, 128, 64 * 132


@requirement("INV-64", on=("IndexKeyFormat",), cases="kv_tokens")
def test_index_keys_and_scales_stand_where_the_layout_says(subject: Subject, case: FormatCase) -> None:
    """INV-64: a page is 64 rows of 128 codes, then 64 float32 scales max(amax, 1e-4) / 448; nothing else is touched."""
    if case.data == "huge":  # a float32 scale holds what it must; fp8 keys of 2**100 do not occur
        case = case.with_(data="wide")
    keys = rows(case, 128, subject.device).to(torch.float32)
    pages = torch.full((-(-case.tokens // ENTRIES) + 2, PAGE_BYTES), 0xFF, dtype=torch.uint8, device=subject.device)
    places = torch.argsort(
        below(case.digest(), "index", ((pages.shape[0] - 1) * ENTRIES,), 2**31, subject.device), stable=True
    )
    slots = places[: case.tokens] + ENTRIES
    subject.ask("pack_index_keys", keys, slots, pages, writes=(2,))
    page, row = slots // ENTRIES, slots % ENTRIES
    codes = pages[:, : ENTRIES * KEY_BYTES].view(-1, ENTRIES, KEY_BYTES)[page, row]
    scales = pages[:, ENTRIES * KEY_BYTES :].contiguous().view(torch.float32)[page, row]
    form = declared_form(subject, "IndexKeyFormat")
    wanted = keys.to(torch.float64).abs().amax(-1).clamp(min=1e-4) / form.top
    near = (scales.to(torch.float64) - wanted).abs() <= wanted * 2.0**-23
    at = int(torch.nonzero(~near)[0]) if not bool(near.all()) else 0
    subject.expect(
        near.all(),
        f"pack_index_keys: slot {int(slots[at])} has scale {float(scales[at]):.6g}, and max(amax, 1e-4) / {form.top} "
        f"is {float(wanted[at]):.6g}; {int((~near).sum())} of {len(slots)} are wrong.",
    )
    value = kv_format.e4m3_value(codes, form.dialect) * scales.to(torch.float64)[:, None]
    room = torch.maximum(keys.to(torch.float64).abs() / 16, scales.to(torch.float64)[:, None] * 2.0**-10) * (
        1 + 2.0**-20
    )
    near = (value - keys.to(torch.float64)).abs() <= room
    at, dim = (int(place) for place in torch.nonzero(~near)[0]) if not bool(near.all()) else (0, 0)
    subject.expect(
        near.all(),
        f"pack_index_keys: slot {int(slots[at])}, dim {dim}: {float(keys[at, dim]):.6g} under scale "
        f"{float(scales[at]):.6g} is code 0x{int(codes[at, dim]):02x}, which is {float(value[at, dim]):.6g}: more than "
        f"half an fp8 step off; {int((~near).sum())} of {near.numel()} values are.",
    )
    touched = torch.zeros_like(pages, dtype=torch.bool)
    touched[:, : ENTRIES * KEY_BYTES].view(-1, ENTRIES, KEY_BYTES)[page, row] = True
    touched[:, ENTRIES * KEY_BYTES :].view(-1, ENTRIES, 4)[page, row] = True
    subject.expect((pages[~touched] == 0xFF).all(), "pack_index_keys wrote bytes of other entries.")
    got = subject.promised(
        "unpack_index_keys", subject.ask("unpack_index_keys", pages, slots), (case.tokens, KEY_BYTES), torch.float32
    )
    subject.expect(
        ((got.to(torch.float64) - value).abs() <= value.abs() * 2.0**-23).all(),
        "an unpacked index key is not code * scale.",
    )


@requirement("INV-65", on=("SlotMapping",), cases="kv_tokens")
def test_every_compressed_entry_has_a_slot_of_its_own(subject: Subject, case: FormatCase) -> None:
    """INV-65: entry i of a request lies at page_table[i // n] * n + i % n (n = 64 for C4, 2 for C128); -1 stays -1."""
    requests = 5
    tables = page_tables(case, requests, subject.device)
    for ratio in (4, 128):
        count = (tables.shape[1] * 256) // ratio
        entries = torch.arange(count, device=subject.device).expand(requests, count).clone()
        slots = subject.promised(
            "compressed_slots", subject.ask("compressed_slots", tables, entries, ratio), (requests, count), torch.int64
        )
        wanted = kv_format.compressed_slot(tables, entries, ratio)
        subject.expect(torch.equal(slots, wanted), f"a compressed entry of ratio {ratio} has the wrong slot.")
        subject.expect(torch.unique(slots).numel() == slots.numel(), f"two entries of ratio {ratio} share a slot.")
        cut = torch.nn.functional.pad(tables, (1, 2), value=1)[:, 1:-2]  # a table is often a part of a wider one
        subject.expect(
            torch.equal(subject.ask("compressed_slots", cut, entries, ratio), wanted),
            f"a compressed entry of ratio {ratio} has another slot by a table that is cut from a wider one.",
        )
        entries[:, ::3] = -1
        holes = subject.ask("compressed_slots", tables, entries, ratio)
        subject.expect(((holes == -1) == (entries == -1)).all(), "-1 does not stay -1, or something else became -1.")
