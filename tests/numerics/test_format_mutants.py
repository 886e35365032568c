"""Wrong writers of the KV page: each shows in the bytes of some data, and measuring them writes nothing."""

import pytest
import torch

from dsv4_conformance.cases.case import FormatCase
from dsv4_conformance.cases.format_inputs import placement, rows
from dsv4_conformance.numerics.discrimination import CAP
from dsv4_conformance.numerics.format_mutants import WRITERS, copy_pages, format_margins, whole_storage

CPU = torch.device("cpu")
NAMES = {
    "scale_exponent_plus_one", "scale_exponent_minus_one", "scales_beside_each_token", "rope_first",
    "rope_pairing_wrong", "scale_not_applied",
}  # fmt: skip


# Kills: a wrong writer that writes the right bytes, or is lost from the list.
@pytest.mark.parametrize("data", ["normal", "tiny", "powers", "huge", "wide"])
def test_every_wrong_writer_shows(data: str) -> None:
    case = FormatCase("KVPageFormat", 40, 64, data)  # type: ignore[arg-type]
    place = placement(case, CPU)
    found = format_margins(rows(case, 512, CPU), place.slots, place.pages, "amax_1e-4")
    assert set(WRITERS) == NAMES
    assert found == {name: {"bytes": CAP} for name in NAMES}


# Kills: writers counted where they change nothing: of a row of zeros only the scales can be wrong.
def test_of_zeros_only_scales_can_be_wrong() -> None:
    case = FormatCase("KVPageFormat", 10, 64)
    place = placement(case, CPU)
    found = format_margins(torch.zeros(10, 512, dtype=torch.bfloat16), place.slots, place.pages, "amax_1e-4")
    assert set(found) == {"scale_exponent_plus_one", "scale_exponent_minus_one", "scales_beside_each_token"}


# Kills: a measurement that writes into the caller's pages.
def test_measuring_leaves_the_pages_alone() -> None:
    case = FormatCase("KVPageFormat", 10, 53)
    place = placement(case, CPU)
    before = whole_storage(place.pages).clone()
    format_margins(rows(case, 512, CPU), place.slots, place.pages, "amax_1e-4")
    assert torch.equal(whole_storage(place.pages), before)


# Kills: a copy that shares memory, loses the red zones or the strides.
def test_copied_pages_are_the_same_view_of_another_storage() -> None:
    pages = placement(FormatCase("KVPageFormat", 10, 53), CPU).pages
    copy = copy_pages(pages)
    assert copy.stride() == pages.stride() and copy.storage_offset() == pages.storage_offset() > 0
    assert torch.equal(whole_storage(copy), whole_storage(pages))
    copy.fill_(7)
    assert not (pages == 7).any()
