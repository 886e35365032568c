"""Wrong writers of the KV page: each must give other bytes, on some case of every format requirement."""

from collections.abc import Callable

import torch
from torch import Tensor

from dsv4_conformance.numerics.discrimination import CAP, Margins
from dsv4_conformance.oracle.kv_format import Floor, Form, pack, page_views

Writer = Callable[[Tensor, Tensor, Tensor, Floor | Form], None]


def _shift_scales(by: int) -> Writer:
    def write(tokens: Tensor, slots: Tensor, pages: Tensor, floor: Floor | Form) -> None:
        pack(tokens, slots, pages, floor)
        scales = page_views(pages)[1]
        page, row = slots // pages.shape[1], slots % pages.shape[1]
        scales[page, row, :7] = (scales[page, row, :7].to(torch.int16) + by).to(torch.uint8)

    return write


def _token_interleaved(tokens: Tensor, slots: Tensor, pages: Tensor, floor: Floor | Form) -> None:
    """576 data bytes and 8 scale bytes of a token side by side, as the 584-byte view suggests."""
    good = copy_pages(pages)
    pack(tokens, slots, good, floor)
    data, scales = page_views(good)
    page, row = slots // pages.shape[1], slots % pages.shape[1]
    pages[page, row, 0] = torch.cat((data[page, row], scales[page, row]), -1)


def _rope_first(tokens: Tensor, slots: Tensor, pages: Tensor, floor: Floor | Form) -> None:
    """The first 64 dims taken for the rope part."""
    pack(torch.cat((tokens[:, 64:], tokens[:, :64]), -1), slots, pages, floor)


def _rope_in_halves(tokens: Tensor, slots: Tensor, pages: Tensor, floor: Floor | Form) -> None:
    """Rope pairs stored as halves instead of interleaved."""
    rope = torch.unflatten(tokens[:, 448:], -1, (32, 2)).transpose(-1, -2).flatten(-2)
    pack(torch.cat((tokens[:, :448], rope), -1), slots, pages, floor)


def _unscaled(tokens: Tensor, slots: Tensor, pages: Tensor, floor: Floor | Form) -> None:
    """Codes made without dividing by the scale."""
    data, _ = page_views(pages)
    pack(tokens, slots, pages, floor)
    page, row = slots // pages.shape[1], slots % pages.shape[1]
    plain = tokens[:, :448].to(torch.float32).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    data[page, row, :448] = plain


WRITERS: dict[str, Writer] = {
    "scale_exponent_plus_one": _shift_scales(1),
    "scale_exponent_minus_one": _shift_scales(-1),
    "scales_beside_each_token": _token_interleaved,
    "rope_first": _rope_first,
    "rope_pairing_wrong": _rope_in_halves,
    "scale_not_applied": _unscaled,
}


def format_margins(tokens: Tensor, slots: Tensor, pages: Tensor, floor: Floor | Form) -> Margins:
    """mutant -> {"bytes": CAP} for every wrong writer whose bytes differ from the right ones on these tokens."""
    found: Margins = {}
    fresh = copy_pages(pages)
    pack(tokens, slots, fresh, floor)
    right = whole_storage(fresh)
    for name, write in WRITERS.items():
        wrong = copy_pages(pages)
        write(tokens, slots, wrong, floor)
        if not torch.equal(whole_storage(wrong), right):
            found[name] = {"bytes": CAP}
    return found


def whole_storage(pages: Tensor) -> Tensor:
    """Every byte behind ``pages``, red zones included, as flat uint8."""
    return torch.empty(0, dtype=torch.uint8, device=pages.device).set_(pages.untyped_storage())


def copy_pages(pages: Tensor) -> Tensor:
    """A kernel view over a copy of the whole storage."""
    return whole_storage(pages).clone().as_strided(pages.shape, pages.stride(), pages.storage_offset())
