"""Wrong addresses, plans and counts, and an adapter whose pages are e4m3fnuz, right and wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from dsv4_conformance.implementations.api import AttentionConvention, Convention, FormatConvention, PrefillCall
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.implementations.extent_api import PlannerSession, PrefixSession
from dsv4_conformance.mla.planner import Piece, Planner
from dsv4_conformance.mla.prefix_cache import PrefixCache
from dsv4_conformance.mla.sequences import PAGE
from dsv4_conformance.oracle import kv_format
from dsv4_conformance.oracle.kv_format import Form
from dsv4_conformance.spec.kv_layout import E4M3FNUZ, PageLayout
from dsv4_conformance.spec.weights import LayerSpec
from tests.miniatures.base import Miniature


class GathersByCapacity(Miniature):
    """A prefill gathers as many compressed rows as the page table could name."""

    def formula(self, name: str, points: Sequence[tuple[int, ...]]) -> list[int]:
        values = super().formula(name, points)
        if name != "workspace_rows":
            return values
        more = [(c - t) // r if r else 0 for r, c, t, _ in points]
        return [value + extra for value, extra in zip(values, more, strict=True)]


class PageOffsetInFloat32(Miniature):
    """Slots are divided in float32, whose whole numbers end at 2^24."""

    def formula(self, name: str, points: Sequence[tuple[int, ...]]) -> list[int]:
        if name == "index_value_byte":
            points = [(int(torch.tensor(float(slot), dtype=torch.float32)),) for (slot,) in points]
        return super().formula(name, [(min(p[0], 2**31 - 1), *p[1:]) for p in points])


class _Overlapping(Planner):
    def plan(self, seq_lens: Sequence[int], extend_lens: Sequence[int]) -> list[list[Piece]]:
        chunks = super().plan(seq_lens, extend_lens)
        for chunk in chunks[1:]:
            first = chunk[0]
            if first.count > 1:
                chunk[0] = replace(first, start=first.start + 1, count=first.count - 1)
        return chunks


class LosesATokenPerChunk(Miniature):
    """Every chunk after the first leaves out its first token."""

    def open_planner(self, rows: int, ratios: Sequence[int]) -> PlannerSession:
        return cast("PlannerSession", _Overlapping(rows, ratios))


class _Named(PrefixCache):
    """A page is known by a part of what it should be known by: ``part`` of the tokens up to its end."""

    part: Callable[[Sequence[int]], Sequence[int]]

    def _names(self, ids: Sequence[int]) -> list[bytes]:
        ends = range(PAGE, len(ids) + 1, PAGE)
        return [repr((end, list(type(self).part(ids[:end])))).encode() for end in ends]

    def _found(self, ids: Sequence[int]) -> list[bytes]:
        names = self._names(ids[: max(len(ids) - 1, 0)])
        return list(itertools.takewhile(lambda name: name in self._owners, names))

    def _name_pages(self, number: int) -> None:
        for name in self._names(self._ids[number]):
            self._owners.setdefault(name, number)


class _ByItself(_Named):
    part = staticmethod(lambda ids: ids[-PAGE:])


class _ByTheLastTwo(_Named):
    part = staticmethod(lambda ids: ids[-2 * PAGE :])


class _ByAllButOneToken(_Named):
    part = staticmethod(lambda ids: [token for place, token in enumerate(ids) if place % PAGE != 100])


class _Prefixes(Miniature):
    cache: type[PrefixCache]

    def open_prefix_cache(self, spec: LayerSpec) -> PrefixSession:
        return cast("PrefixSession", self.cache(spec, self.device))


class PagesKnownByThemselves(_Prefixes):
    """A page is found by its own tokens and its place, whatever stood before it."""

    cache = _ByItself


class PagesKnownByTheLastTwo(_Prefixes):
    """A page is found by its own tokens and those of the page before."""

    cache = _ByTheLastTwo


class PagesKnownButForAToken(_Prefixes):
    """One token of each page is left out of what it is found by."""

    cache = _ByAllButOneToken


class OneKeyTooMany(Miniature):
    """The key at the last place of a list counts twice."""

    def before(self, call: Any) -> Any:
        if isinstance(call, PrefillCall):
            return replace(
                call, indices=torch.cat((call.indices[..., :1], call.indices), -1), topk_length=_one_more(call)
            )
        window = call.window
        length = None if window.topk_length is None else window.topk_length + (window.topk_length > 0).int()
        lists = torch.cat((window.indices[..., :1], window.indices), -1)
        return replace(call, window=replace(window, indices=lists, topk_length=length))


def _one_more(call: PrefillCall) -> Tensor | None:
    return None if call.topk_length is None else call.topk_length + (call.topk_length > 0).int()


class ReadsSinksAsTheyLie(Miniature):
    """Sinks of any type are read as float32 bits."""

    def before(self, call: Any) -> Any:
        if call.sink is None or call.sink.dtype == torch.float32:
            return call
        bits = call.sink.contiguous().view(torch.uint8)[: 4 * (call.sink.nbytes // 4)].view(torch.float32)
        sink = torch.zeros(len(call.sink))
        sink[: min(len(bits), len(sink))] = bits[: len(sink)].nan_to_num()
        return replace(call, sink=sink)


class TakesEveryHeadCount(Miniature):
    """Declares 64 and 128 heads, and answers for others with the first ones repeated."""

    surfaces: ClassVar[Mapping[str, Convention]] = {
        **Builtin.surfaces,
        "SparseDecode": AttentionConvention(h_q=(64, 128), topk_multiple=1, accepts_out=True),
        "SparsePrefill": AttentionConvention(h_q=(64, 128), topk_multiple=1, accepts_out=True),
    }

    def before(self, call: Any) -> Any:
        heads = call.q.shape[-2]
        return call if heads in (64, 128) else replace(call, q=call.q[..., :1, :].expand(call.q.shape).contiguous())


class FnuzPages(Miniature):
    """Pages and index keys in e4m3fnuz, their scales divided by 240: right."""

    form: ClassVar[Form] = Form("amax_1e-4", E4M3FNUZ, 240)
    surfaces: ClassVar[Mapping[str, Convention]] = {
        **Builtin.surfaces,
        "KVPageFormat": FormatConvention(fp8="e4m3fnuz"),
        "IndexKeyFormat": FormatConvention(fp8="e4m3fnuz"),
    }

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        kv_format.pack(tokens, slots, pages, self.form)

    def unpack(self, pages: Tensor, slots: Tensor) -> Tensor:
        data, scales = kv_format.page_views(pages)
        page, row = slots // pages.shape[1], slots % pages.shape[1]
        bytes_ = data[page, row]
        value = self.value(bytes_[:, : PageLayout.NOPE]).view(-1, 7, 64)
        factor = torch.exp2(scales[page, row, :7].double() - 127)[..., None]
        rope = bytes_[:, PageLayout.NOPE :].contiguous().view(torch.bfloat16)
        return torch.cat(((value * factor).flatten(1).to(torch.bfloat16), rope), 1)

    def value(self, codes: Tensor) -> Tensor:
        return kv_format.e4m3_value(codes, self.form.dialect)

    def pack_index_keys(self, keys: Tensor, slots: Tensor, pages: Tensor) -> None:
        codes, scales = kv_format.quantise_index_keys(keys, self.form)
        if len(keys):
            values, where = pages[:, : 64 * 128].view(-1, 64, 128), pages[:, 64 * 128 :].view(-1, 64, 4)
            values[slots // 64, slots % 64] = codes
            where[slots // 64, slots % 64] = scales[:, None].view(torch.uint8)

    def unpack_index_keys(self, pages: Tensor, slots: Tensor) -> Tensor:
        values, where = pages[:, : 64 * 128].view(-1, 64, 128), pages[:, 64 * 128 :].view(-1, 64, 4)
        scale = where[slots // 64, slots % 64].contiguous().view(torch.float32)
        return (self.value(values[slots // 64, slots % 64]) * scale.double()).float()


class FnuzUnderflowIsNan(FnuzPages):
    """A negative value that underflows is written as -0, which is NaN there."""

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        super().pack(tokens, slots, pages)
        kept = slots >= 0
        page, row = slots[kept] // pages.shape[1], slots[kept] % pages.shape[1]
        data, _ = kv_format.page_views(pages)
        codes = data[page, row, :448]
        data[page, row, :448] = torch.where((codes == 0) & tokens[kept, :448].signbit(), 0x80, codes)


class FnuzReadAsFn(FnuzPages):
    """Written in the one dialect and read in the other."""

    def value(self, codes: Tensor) -> Tensor:
        return kv_format.e4m3_value(codes)
