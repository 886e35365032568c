"""What a format adapter promises beside the bytes: arguments stay, shapes and dtypes are kept (INV-100, INV-101)."""

import torch

from dsv4_conformance.cases.case import FormatCase
from dsv4_conformance.cases.format_inputs import page_tables, placement, rows
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.suite import requirement


@requirement("INV-100", on=("KVPageFormat",), cases="kv_tokens")
def test_pack_and_unpack_leave_their_arguments_alone(subject: Subject, case: FormatCase) -> None:
    """INV-100: pack changes pages only, unpack changes nothing; checked byte for byte around both calls."""
    tokens, place = rows(case, 512, subject.device), placement(case, subject.device)
    before = (tokens.clone(), place.slots.clone())
    subject.ask("pack", tokens, place.slots, place.pages, writes=(2,))
    subject.ask("unpack", place.pages, place.slots)
    same = torch.equal(before[0].view(torch.int16), tokens.view(torch.int16)) and torch.equal(before[1], place.slots)
    subject.expect(same, "pack or unpack changed its tokens or slots.")


@requirement("INV-100", on=("SlotMapping",), cases="kv_tokens")
def test_slot_mapping_leaves_its_arguments_alone(subject: Subject, case: FormatCase) -> None:
    """INV-100: page tables and entries keep every bit."""
    tables = page_tables(case, 2, subject.device)
    entries = torch.arange(-1, 63, device=subject.device).expand(2, 64).clone()
    before = (tables.clone(), entries.clone())
    for ratio in (4, 128):
        bound = tables.shape[1] * 256 // ratio
        subject.ask("compressed_slots", tables, entries.clamp(max=bound - 1), ratio)
        subject.ask("compressed_slots", tables, entries % bound, ratio)
    subject.expect(torch.equal(before[0], tables) and torch.equal(before[1], entries), "an argument changed.")


@requirement("INV-101", on=("KVPageFormat",), cases="kv_tokens")
def test_declared_page_sizes_are_answered(subject: Subject, case: FormatCase) -> None:
    """INV-101: pages of any declared size are packed in place and unpacked as bf16 (n, 512), also for no token."""
    place = placement(case, subject.device)
    tokens = rows(case, 512, subject.device)
    for count in (case.tokens, 0):
        subject.ask("pack", tokens[:count], place.slots[:count], place.pages, writes=(2,))
        got = subject.promised(
            "unpack", subject.ask("unpack", place.pages, place.slots[:count]), (count, 512), torch.bfloat16
        )
        subject.expect(got.isfinite().all(), "an unpacked row of finite tokens is not finite.")


@requirement("INV-101", on=("IndexKeyFormat",), cases="kv_tokens")
def test_index_keys_come_back_in_the_declared_form(subject: Subject, case: FormatCase) -> None:
    """INV-101: index keys are unpacked as float32 (n, 128), also for no key; keys and slots stay as they were."""
    keys = rows(case.with_(data="normal"), 128, subject.device).to(torch.float32)
    pages = torch.full((-(-case.tokens // 64) + 1, 64 * 132), 0xFF, dtype=torch.uint8, device=subject.device)
    slots = torch.arange(case.tokens, device=subject.device)
    for count in (case.tokens, 0):
        subject.ask("pack_index_keys", keys[:count], slots[:count], pages, writes=(2,))
        got = subject.ask("unpack_index_keys", pages, slots[:count])
        subject.promised("unpack_index_keys", got, (count, 128), torch.float32)
    subject.expect(got.shape[0] == 0, "unpacking no slot returned rows.")
