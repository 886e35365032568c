"""One fp8 dialect throughout: codes, largest value and NaNs are the declared ones on every way (INV-151)."""

import torch

from dsv4_conformance.cases.case import FormatCase
from dsv4_conformance.cases.format_inputs import placement, rows
from dsv4_conformance.numerics.format_diagnosis import misread, miswritten
from dsv4_conformance.oracle import kv_format
from dsv4_conformance.runner.formats import declared_form
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.kv_layout import PageLayout
from dsv4_conformance.suite import requirement

TILE = PageLayout.TILE


def _edges(top: int, largest: int, device: torch.device) -> torch.Tensor:
    """float64 ``(n, 64)`` tiles at scale 1: their maximum is the divisor itself, and beside it stand zeros of both
    signs, values that underflow from both sides, the smallest codes, and both dialects' largest values."""
    small = [0.0, -0.0, 1e-12, -1e-12, 2.0**-11, -(2.0**-11), 2.0**-12, -(2.0**-12), 2.0**-9, -(2.0**-9), 2.0**-10]
    big = [x for x in (223.0, 224.0, 225.0, 240.0, 447.0) if x <= top]
    tile = torch.zeros(2, TILE, dtype=torch.float64)
    values = [*small, *big, *(-x for x in big), 1.0, -1.0, 15.0, -17.0]
    tile[:, : len(values)] = torch.tensor(values)
    tile[0, -1], tile[1, -1] = top, -top
    return tile.to(device)


@requirement("INV-151", on=("KVPageFormat",), cases="kv_tokens")
def test_pages_are_written_and_read_in_the_declared_dialect(subject: Subject, case: FormatCase) -> None:
    """INV-151: zeros of both signs, underflows and the largest values are written as codes of the dialect, never as its
    NaN, and every code is read as the dialect has it."""
    form = declared_form(subject, "KVPageFormat")
    tiles = _edges(form.top, form.dialect.largest, subject.device)
    case = case.with_(tokens=len(tiles), data="normal")
    tokens, place = rows(case, 512, subject.device), placement(case, subject.device)
    tokens[:, :448] = tiles.repeat(1, 7).to(torch.bfloat16)
    subject.ask("pack", tokens, place.slots, place.pages, writes=(2,))
    page, row = place.slots // case.page_size, place.slots % case.page_size
    data, scales = kv_format.page_views(place.pages)
    subject.expect((scales[page, row, :7] == 127).all(), f"a tile whose maximum is {form.top} has not scale 1.")
    value = kv_format.e4m3_value(data[page, row, :448], form.dialect)
    subject.expect(~value.isnan().any(), f"a finite value was written as a code that is NaN in {form.dialect.name}.")
    at = (data[page, row, :448], scales[page, row, :7])
    wrong = miswritten(*at, tokens[:, :448].to(torch.float64), place.slots, form)
    subject.expect(not wrong, wrong)
    wrong = misread(subject.ask("unpack", place.pages, place.slots)[:, :448], *at, place.slots, form)
    subject.expect(not wrong, wrong)
    # Every code there is, NaNs included, in the place of what was written.
    codes = torch.arange(256, dtype=torch.uint8, device=subject.device).repeat(2)[:448]
    data[page, row, :448] = codes
    got = subject.ask("unpack", place.pages, place.slots)[:, :448]
    wrong = misread(got, data[page, row, :448], scales[page, row, :7], place.slots, form)
    subject.expect(not wrong, wrong)


@requirement("INV-151", on=("IndexKeyFormat",), cases="kv_tokens")
def test_index_keys_are_written_and_read_in_the_declared_dialect(subject: Subject, case: FormatCase) -> None:
    """INV-151: likewise for index keys: the scorer's dialect is the writer's."""
    form = declared_form(subject, "IndexKeyFormat")
    keys = _edges(form.top, form.dialect.largest, subject.device).repeat(1, 2).to(torch.float32)
    pages = torch.full((2, 64 * 132), 0xFF, dtype=torch.uint8, device=subject.device)
    slots = torch.arange(64, 64 + len(keys), device=subject.device)
    subject.ask("pack_index_keys", keys, slots, pages, writes=(2,))
    codes = pages[1, : len(keys) * 128].view(-1, 128)
    value = kv_format.e4m3_value(codes, form.dialect)
    subject.expect(~value.isnan().any(), f"a finite key was written as a code that is NaN in {form.dialect.name}.")
    room = torch.maximum(keys.to(torch.float64).abs() / 16, torch.full_like(value, 2.0**-10))
    subject.expect(
        ((value - keys.to(torch.float64)).abs() <= room).all(), f"a code is not the key's in {form.dialect.name}."
    )
    codes[:] = torch.arange(256, dtype=torch.uint8, device=subject.device).view(2, 128)[: len(keys)]
    got = subject.ask("unpack_index_keys", pages, slots).to(torch.float64)
    right = kv_format.e4m3_value(codes, form.dialect)
    same = (got == right) | (got.isnan() & right.isnan())
    subject.expect(
        same.all(), f"{int((~same).sum())} codes of index keys are not read as {form.dialect.name} has them."
    )
