"""Sentences about wrong bytes: where, which codes, which mistake; none about right ones."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dsv4_conformance.numerics.format_diagnosis import mispacked, misread, misscaled, miswritten
from dsv4_conformance.oracle import kv_format
from dsv4_conformance.oracle.kv_format import Form
from dsv4_conformance.spec.kv_layout import E4M3FN, E4M3FNUZ

CODES = torch.arange(256, dtype=torch.uint8).repeat(2)[None, :448]
SCALES = torch.full((1, 7), 120, dtype=torch.uint8)
SLOT = torch.tensor([73])


def read(codes: Tensor, form: Form = kv_format.FORM) -> Tensor:
    return kv_format.e4m3_value(codes, form.dialect) * 2.0**-7


def flat(codes: Tensor) -> Tensor:
    return (codes >> 3) & 15 == 0


def normal(codes: Tensor) -> Tensor:
    sign, mantissa = 1 - 2 * (codes >> 7).double(), (codes & 7).double()
    return torch.where(flat(codes), sign * (1 + mantissa / 8) * 2.0**-14, read(codes))


@pytest.mark.parametrize(
    ("reader", "told"),
    [
        (normal, "of codes 0x00-0x07, 0x80-0x87: zeros and subnormals are read as normal numbers."),
        (lambda c: torch.where(flat(c), 0.0, read(c)), "0x01-0x07, 0x81-0x87: subnormals are read as zeros."),
        (lambda c: read(c, Form(dialect=E4M3FNUZ)), ": they are read as e4m3fnuz."),
        (lambda c: read(c) * 2, ": the scale's exponent is off by +1."),
        (lambda c: torch.where(c == 0x31, 7.0, read(c)), "2 of 448 values are wrong, of codes 0x31."),
    ],
)
def test_a_wrong_reader_is_named(reader: Callable[[Tensor], Tensor], told: str) -> None:
    sentence = misread(reader(CODES), CODES, SCALES, SLOT, kv_format.FORM)
    assert sentence.startswith("unpack: slot 73, dim ") and "under scale byte 120 is read as" in sentence
    assert told in sentence


def test_a_right_reader_gets_no_sentence() -> None:
    for form in (kv_format.FORM, Form(dialect=E4M3FNUZ, top=240)):
        assert misread(read(CODES, form), CODES, SCALES, SLOT, form) == ""


# Kills: half a step that is a whole one, or that of another dialect.
@pytest.mark.parametrize("dialect", [E4M3FN, E4M3FNUZ])
def test_written_codes_may_be_off_by_half_a_step(dialect: object) -> None:
    form = Form(dialect=E4M3FN if dialect is E4M3FN else E4M3FNUZ, top=448 if dialect is E4M3FN else 240)
    tokens = torch.randn(5, 448, generator=torch.Generator().manual_seed(3)).double()
    tokens[:, :64] *= torch.logspace(-6, 0, 64, dtype=torch.float64)
    data, scales = kv_format.quantise(tokens, form)
    slots = torch.arange(5)
    assert miswritten(data, scales, tokens, slots, form) == ""
    data[3, 70] += 1
    sentence = miswritten(data, scales, tokens, slots, form)
    assert sentence.startswith("pack: slot 3, dim 70: ") and "1 of 2240 values are off" in sentence
    assert f"and 0x{int(data[3, 70]) - 1:02x} is nearest" in sentence


def test_flushed_subnormals_are_named() -> None:
    tokens = torch.full((1, 448), 0.01, dtype=torch.float64)
    tokens[:, ::64] = 448
    data, scales = kv_format.quantise(tokens)
    told = miswritten(torch.where(flat(data), 0, data).to(torch.uint8), scales, tokens, SLOT, kv_format.FORM)
    assert "441 of 448 values" in told and told.endswith("subnormals are written as zeros.")


def test_the_floor_that_fits_is_named() -> None:
    maxima = torch.tensor([[0.0, 1e-6, 1e-3, 1.0, 448.0, 2.0, 3.0]], dtype=torch.float64)
    right = kv_format.scale_exponent(maxima, "amax_1e-4") + 127
    other = kv_format.scale_exponent(maxima, "scale_1e-4") + 127
    assert misscaled(right, right, maxima, SLOT, kv_format.FORM) == ""
    told = misscaled(other, right, maxima, SLOT, kv_format.FORM)
    assert "tile 0: its largest value is 0, its scale byte 114, and 105 is right. 3 of 7" in told
    assert told.endswith("all bytes are those of ue8m0_floor='scale_1e-4', and 'amax_1e-4' is declared.")
    assert misscaled(right + 1, right, maxima, SLOT, kv_format.FORM).endswith("; all of them by +1.")


# Kills: rows at slot -1 that are looked for, codes blamed where the scale is wrong.
def test_pages_are_read_where_they_were_written() -> None:
    tokens, slots = torch.randn(4, 512).bfloat16(), torch.tensor([5, -1, 3, 9])
    pages = torch.zeros(3, 4, 1, 584, dtype=torch.uint8)
    kv_format.pack(tokens[slots >= 0], slots[slots >= 0], pages)
    assert mispacked(pages, tokens, slots, kv_format.FORM) == ""
    kv_format.page_views(pages)[1][2, 1, 4] += 1
    assert mispacked(pages, tokens, slots, kv_format.FORM).startswith("pack: slot 9, tile 4: its largest value is ")
