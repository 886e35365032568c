"""Wrong writers and readers of cache pages, of index-key pages and of slots, and wrong head layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from dsv4_conformance.implementations.api import Convention
from dsv4_conformance.implementations.builtin import Builtin
from tests.miniatures.base import Miniature, tables_of


class WithoutAttention(Miniature):
    """Offers what this file breaks, and no attention. Right."""

    surfaces: ClassVar[Mapping[str, Convention]] = {
        name: convention for name, convention in Builtin.surfaces.items() if not name.startswith("Sparse")
    }


def _at(slots: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    kept = slots[slots >= 0]
    return kept // page_size, kept % page_size


class PacksScalesPlusOne(WithoutAttention):
    """Writes scale bytes one too high."""

    by = 1

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        super().pack(tokens, slots, pages)
        place = _at(slots, pages.shape[1])
        scales = tables_of(pages)[1]
        scales[(*place, slice(0, 7))] += torch.tensor(self.by).to(torch.uint8)


class PacksScalesMinusOne(PacksScalesPlusOne):
    """Writes scale bytes one too low."""

    by = -1


class PacksScalesBesideEachToken(WithoutAttention):
    """Writes 584 bytes per token in a row, as the kernel view suggests."""

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        size = pages.shape[1]
        one = torch.zeros(1, 3 * 576, dtype=torch.uint8).as_strided((1, 1, 1, 584), (3 * 576, 584, 584, 1))
        for token, slot in zip(tokens, slots.tolist(), strict=True):
            if slot >= 0:
                super().pack(token[None], torch.zeros(1, dtype=torch.int64), one)
                pages[slot // size, slot % size] = one[0, 0]


class PacksRopeFirst(WithoutAttention):
    """Takes the first 64 dims for the rope part."""

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        super().pack(torch.cat((tokens[:, 64:], tokens[:, :64]), 1), slots, pages)


class PacksRopeInHalves(WithoutAttention):
    """Stores rope pairs as two halves."""

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        super().pack(torch.cat((tokens[:, :448], tokens[:, 448::2], tokens[:, 449::2]), 1), slots, pages)


class PacksWithoutScaling(WithoutAttention):
    """Makes codes of the values as they are, and writes the scales nevertheless."""

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        super().pack(tokens, slots, pages)
        codes = tokens[slots >= 0, :448].float().clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
        tables_of(pages)[0][(*_at(slots, pages.shape[1]), slice(0, 448))] = codes


class PacksTowardsZero(WithoutAttention):
    """Truncates to e4m3 instead of rounding."""

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        super().pack(tokens, slots, pages)
        place = _at(slots, pages.shape[1])
        data = tables_of(pages)[0]
        codes = data[(*place, slice(0, 448))]
        got = self.unpack(pages, slots[slots >= 0])[:, :448].float().abs()
        away = got > tokens[slots >= 0, :448].float().abs()
        data[(*place, slice(0, 448))] = torch.where(away, codes - 1, codes)


class PacksMinusOneIntoSlot0(WithoutAttention):
    """Writes the row of slot -1 into slot 0 instead of skipping it."""

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        super().pack(tokens, slots.clamp(min=0), pages)


class PacksAtAStrideOf584P(WithoutAttention):
    """Computes page addresses without the padding up to a multiple of 576."""

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        tight = pages.as_strided(pages.shape, (584 * pages.shape[1], 584, 584, 1), pages.storage_offset())
        super().pack(tokens, slots, tight)


class PacksWithTheScaleFloor(WithoutAttention):
    """Clamps the scale at 1e-4, and declares the rule that clamps the maximum."""

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        tiles = tokens[:, :448].reshape(-1, 7, 64)
        small = tiles.abs().amax(-1, keepdim=True) < 448 * 2.0**-13
        raised = torch.where(small.expand_as(tiles), torch.full_like(tiles, 448 * 2.0**-13), tiles)
        super().pack(torch.cat((raised.flatten(1), tokens[:, 448:]), 1), slots, pages)
        codes = (tiles.float() * 2.0**13).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
        place = _at(slots, pages.shape[1])
        data = tables_of(pages)[0]
        written = data[(*place, slice(0, 448))].view(-1, 7, 64)
        fresh = torch.where(small, codes, torch.zeros_like(codes))[slots >= 0]
        data[(*place, slice(0, 448))] = torch.where(small[slots >= 0], fresh, written).flatten(1)


class UnpacksWithTheNextTilesScale(WithoutAttention):
    """Reads the next tile's scale."""

    def unpack(self, pages: Tensor, slots: Tensor) -> Tensor:
        place = _at(slots, pages.shape[1])
        scales = tables_of(pages)[1][place][:, :7]
        factor = torch.exp2(scales.roll(-1, 1).float() - scales.float()).repeat_interleave(64, 1)
        rows = super().unpack(pages, slots).clone()
        rows[:, :448] = rows[:, :448].float() * factor
        return rows


class UnpacksThroughFp16(WithoutAttention):
    """Rounds to fp16 on the way, which overflows and flushes what bf16 holds."""

    def unpack(self, pages: Tensor, slots: Tensor) -> Tensor:
        return super().unpack(pages, slots).half().bfloat16()


class IndexScalesBesideEachKey(WithoutAttention):
    """Stores 132 bytes per index key in a row."""

    def pack_index_keys(self, keys: Tensor, slots: Tensor, pages: Tensor) -> None:
        one = torch.zeros(1, 64 * 132, dtype=torch.uint8)
        for key, slot in zip(keys, slots.tolist(), strict=True):
            super().pack_index_keys(key[None], torch.zeros(1, dtype=torch.int64), one)
            row = torch.cat((one[0, :128], one[0, 64 * 128 : 64 * 128 + 4]))
            pages[slot // 64, slot % 64 * 132 : slot % 64 * 132 + 132] = row


class IndexScalesArePowersOfTwo(WithoutAttention):
    """Rounds an index key's scale up to a power of two."""

    def pack_index_keys(self, keys: Tensor, slots: Tensor, pages: Tensor) -> None:
        super().pack_index_keys(keys, slots, pages)
        exact = keys.abs().amax(1).clamp(min=1e-4) / 448
        scale = torch.exp2(exact.log2().ceil())
        codes = (keys / scale[:, None]).to(torch.float8_e4m3fn).view(torch.uint8)
        pages[:, : 64 * 128].view(-1, 64, 128)[slots // 64, slots % 64] = codes
        pages[:, 64 * 128 :].view(-1, 64, 4)[slots // 64, slots % 64] = scale.view(torch.uint8).view(-1, 4)


class UnpacksIndexKeysWithoutScale(WithoutAttention):
    """Returns an index key's codes unscaled."""

    def unpack_index_keys(self, pages: Tensor, slots: Tensor) -> Tensor:
        codes = pages[:, : 64 * 128].view(-1, 64, 128)[slots // 64, slots % 64]
        return codes.view(torch.float8_e4m3fn).float()


class SlotsOfRatio4ForAll(WithoutAttention):
    """Numbers C128 entries as if 64 of them filled a page."""

    def compressed_slots(self, page_table: Tensor, entries: Tensor, ratio: int) -> Tensor:
        safe = entries.clamp(min=0)
        page = torch.gather(page_table.long(), 1, (safe // 64).clamp(max=page_table.shape[1] - 1))
        return torch.where(entries < 0, -1, page * 64 + safe % 64)


class SlotOfAHoleIsASlot(WithoutAttention):
    """Maps -1 to the last entry of the first page."""

    def compressed_slots(self, page_table: Tensor, entries: Tensor, ratio: int) -> Tensor:
        per_page = 256 // ratio
        right = super().compressed_slots(page_table, entries, ratio)
        return torch.where(entries < 0, page_table[:, :1].long() * per_page + per_page - 1, right)


class PadsToAllHeads(WithoutAttention):
    """Pads to the model's head count on every rank: wasteful (INV-52 is a SHOULD), not wrong."""

    def padded_heads(self, n_heads: int, tp: int) -> int:
        return n_heads


class PadsInFront(WithoutAttention):
    """Puts real heads last."""

    def pad_query(self, q: Tensor, padded: int) -> Tensor:
        return torch.cat((q.new_zeros(q.shape[0], padded - q.shape[1], 512), q), 1)


class SinkOfRank0Everywhere(WithoutAttention):
    """Gives every rank the first rank's sinks."""

    def local_sink(self, sink: Tensor, rank: int, tp: int) -> Tensor:
        return super().local_sink(sink, 0, tp)


class SinkSliceOfPaddedWidth(WithoutAttention):
    """Slices sinks by the padded head count instead of the rank's own."""

    def local_sink(self, sink: Tensor, rank: int, tp: int) -> Tensor:
        padded = self.padded_heads(sink.shape[0], tp)
        start = min(rank * padded, sink.shape[0] - padded)
        local = super().local_sink(sink, rank, tp)
        return local if tp == 1 else local.copy_(sink[start : start + padded].clone())


class SinkCopiedOnEveryCall(WithoutAttention):
    """Returns a new tensor from every call on a part of the heads, which a captured graph does not read."""

    def local_sink(self, sink: Tensor, rank: int, tp: int) -> Tensor:
        local = super().local_sink(sink, rank, tp)
        return local if tp == 1 else local.clone()


class SinkNeverRefreshed(WithoutAttention):
    """Keeps the sinks of the first call after a weight update."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._kept: dict[tuple[int, int, int], Tensor] = {}

    def local_sink(self, sink: Tensor, rank: int, tp: int) -> Tensor:
        key = (rank, tp, sink.data_ptr())
        if key not in self._kept:
            self._kept[key] = super().local_sink(sink, rank, tp).clone()
        return self._kept[key]

    def refresh_sink(self, sink: Tensor, rank: int, tp: int) -> None:
        return None


class UnpacksRopeThroughFp8(WithoutAttention):
    """Returns rope dims as fp8 would hold them."""

    def unpack(self, pages: Tensor, slots: Tensor) -> Tensor:
        rows = super().unpack(pages, slots).clone()
        rows[:, 448:] = rows[:, 448:].float().clamp(-448, 448).to(torch.float8_e4m3fn).to(torch.bfloat16)
        return rows


class PacksDoubleTokens(WithoutAttention):
    """Scales the tokens it is given, in place."""

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        tokens.mul_(2)
        super().pack(tokens / 2, slots, pages)


class IndexPagesAreClearedFirst(WithoutAttention):
    """Zeroes the whole page before it writes an index key."""

    def pack_index_keys(self, keys: Tensor, slots: Tensor, pages: Tensor) -> None:
        pages[slots // 64] = 0
        super().pack_index_keys(keys, slots, pages)


class IndexCodesAreTruncated(WithoutAttention):
    """Truncates index keys to e4m3 instead of rounding."""

    def pack_index_keys(self, keys: Tensor, slots: Tensor, pages: Tensor) -> None:
        super().pack_index_keys(keys, slots, pages)
        got = self.unpack_index_keys(pages, slots).abs()
        values = pages[:, : 64 * 128].view(-1, 64, 128)
        codes = values[slots // 64, slots % 64]
        values[slots // 64, slots % 64] = torch.where(got > keys.abs() * (1 + 1e-6), codes - 1, codes)


class SinkCopiedWithoutTensorParallelism(WithoutAttention):
    """Copies the parameter at tp = 1, where it must be used itself."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._copies: dict[tuple[int, int], Tensor] = {}

    def local_sink(self, sink: Tensor, rank: int, tp: int) -> Tensor:
        local = super().local_sink(sink, rank, tp)
        if tp > 1:
            return local
        key = (sink.shape[0], sink.data_ptr())
        return self._copies.setdefault(key, local.clone()).copy_(local)


class SinkMovedByARefresh(WithoutAttention):
    """Puts refreshed sinks into new memory and keeps the old one right too."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._moved: set[tuple[int, int]] = set()

    def local_sink(self, sink: Tensor, rank: int, tp: int) -> Tensor:
        local = super().local_sink(sink, rank, tp)
        return local.clone() if (rank, tp) in self._moved else local

    def refresh_sink(self, sink: Tensor, rank: int, tp: int) -> None:
        super().refresh_sink(sink, rank, tp)
        self._moved.add((rank, tp))
