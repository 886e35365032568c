"""Token rows, placements and page tables of format cases: every kind of data is what it says."""

import pytest
import torch

from dsv4_conformance.cases.case import FormatCase
from dsv4_conformance.cases.format_inputs import page_tables, placement, rows
from dsv4_conformance.cases.generator import host_words

CPU = torch.device("cpu")


def tiles(data: str, tokens: int = 400, width: int = 512) -> torch.Tensor:
    case = FormatCase("KVPageFormat", tokens, 64, data)  # type: ignore[arg-type]
    x = rows(case, width, CPU)
    assert x.dtype == torch.bfloat16 and x.shape == (tokens, width) and x.isfinite().all()
    return x.double().view(tokens, width // 64, 64)


# Kills: tiny tiles that stay on one side of a floor. Up to here each rule's lowest exponent fits (docs, section 9.2).
def test_tiny_tiles_lie_below_every_floor_and_above_the_two_low_ones() -> None:
    top = tiles("tiny").abs().amax(-1)
    for lowest in (-35, -22, -13):
        assert (top < 448 * 2.0**lowest).sum() > 50
    assert (top > 448 * 2.0**-22).sum() > 50


# Kills: maxima that are not at the edge, gains shared by tiles, one sign only.
def test_powers_put_the_maximum_at_448_times_a_power_of_two_or_just_above() -> None:
    x = tiles("powers")
    top = x.abs().amax(-1)
    mantissa, exponent = torch.frexp(top / 448)
    assert (mantissa[::2] == 0.5).all()
    assert torch.equal(top[1::2] / 450 * 448, torch.ldexp(torch.full_like(top[1::2], 448.0), exponent[1::2] - 1))
    assert len(set(exponent.flatten().tolist())) == 40
    at = x.gather(2, x.abs().argmax(-1, keepdim=True))[..., 0]
    assert (at > 0).any() and (at < 0).any()
    assert (exponent[:, 0] != exponent[:, 1]).any()


# Kills: no zero tile, no negative zero.
def test_zeros_are_whole_tiles_of_both_signs() -> None:
    x = tiles("zeros")
    assert (x[:, ::2] == 0).all() and (x[:, 1::2] != 0).all()
    assert torch.signbit(x[:, ::2]).any() and not torch.signbit(x[:, ::2]).all()


# Kills: kinds that do not differ in range; a bf16 that overflows.
@pytest.mark.parametrize(("data", "low", "high"), [("normal", 2.0**-3, 2.0), ("huge", 2.0**-3, 2.0**101)])
def test_range_of_normal_and_huge_rows(data: str, low: float, high: float) -> None:
    size = tiles(data).abs()
    assert size.min() >= low and size.max() < high and size.max() > high / 4


# Kills: wide tiles whose small values still fit a normal fp8 code.
def test_wide_tiles_hold_values_below_the_smallest_fp8_code() -> None:
    x = tiles("wide").abs()
    step = torch.exp2((x.amax(-1, keepdim=True) / 448).log2().ceil())
    share = [((x / step) < bound).double().mean().item() for bound in (2.0**-10, 2.0**-6)]
    assert share[0] >= 0 and share[1] > 0.001


# Kills: two tokens in one slot, tokens in page 0 or beyond the last page, slots in order, pages that are not poisoned.
@pytest.mark.parametrize(("tokens", "page"), [(1, 2), (97, 64), (130, 53), (300, 256)])
def test_placement_is_a_permutation_that_leaves_page_0_and_some_slots_free(tokens: int, page: int) -> None:
    place = placement(FormatCase("KVPageFormat", tokens, page), CPU)
    slots = place.slots.tolist()
    assert len(set(slots)) == tokens and min(slots) >= page and max(slots) < len(place.pages) * page
    assert len(place.pages) * page - page > tokens
    assert tokens < 3 or slots != sorted(slots)
    assert (place.pages == 0xFF).all()


# Kills: tables that share a page, name page 0, or are too short for the tokens.
@pytest.mark.parametrize("tokens", [1, 515])
def test_page_tables_are_disjoint(tokens: int) -> None:
    tables = page_tables(FormatCase("SlotMapping", tokens, 64), 3, CPU)
    assert tables.dtype == torch.int32 and tables.shape == (3, -(-tokens // 256) + 1)
    listed = tables.flatten().tolist()
    assert sorted(listed) == list(range(1, len(listed) + 1)) and listed != sorted(listed)


# Kills: a case that does not feed its seed into the rows.
def test_rows_depend_on_the_case() -> None:
    one = rows(FormatCase("KVPageFormat", 5, 64), 512, CPU)
    assert torch.equal(one, rows(FormatCase("KVPageFormat", 5, 64), 512, CPU))
    assert not torch.equal(one, rows(FormatCase("KVPageFormat", 5, 64, seed=1), 512, CPU))
    assert len(set(host_words(1, "a", 100).tolist())) == 100
