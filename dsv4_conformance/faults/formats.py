"""Cache bytes that are read as something else than they were written as (spec §9)."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_conformance.faults.fault import fault
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.mla.kernels.kv_format import page_views
from dsv4_conformance.spec.kv_layout import INDEX_KEY_FP8


@fault("S61", breaks="INV-151", on="KVPageFormat")
class ReadsTheOtherDialect(Builtin):
    """Pages are written in e4m3fn and read as e4m3fnuz: half of each value, and NaN where -0 stood."""

    def unpack(self, pages: Tensor, slots: Tensor) -> Tensor:
        """KVPageFormat in the other dialect."""
        rows = super().unpack(pages, slots)
        codes = page_views(pages)[0][slots // pages.shape[1], slots % pages.shape[1], :448]
        rows[:, :448] = torch.where(codes == 0x80, torch.nan, rows[:, :448] / 2)
        return rows


@fault("V34", breaks="INV-61", on="KVPageFormat")
class ScaleBytesAreNumbers(Builtin):
    """Scale bytes, which are exponents, are multiplied as the fp8 numbers that they would be."""

    def unpack(self, pages: Tensor, slots: Tensor) -> Tensor:
        """KVPageFormat under e4m3 scales."""
        rows = super().unpack(pages, slots)
        scales = page_views(pages)[1][slots // pages.shape[1], slots % pages.shape[1], :7]
        wrong = scales.view(torch.float8_e4m3fn).float() / torch.exp2(scales.float() - 127)
        rows[:, :448] = (rows[:, :448].view(-1, 7, 64) * wrong[..., None]).flatten(1).to(rows.dtype)
        return rows


@fault("V11", breaks="INV-150", on="IndexKeyFormat")
class KeysAreReadOneByOne(Builtin):
    """Pages of index keys hold all values and then all scales, and are read as if each key had its scale behind it."""

    def unpack_index_keys(self, pages: Tensor, slots: Tensor) -> Tensor:
        """IndexKeyFormat, interleaved."""
        keys = pages.view(len(pages), -1, INDEX_KEY_FP8.key_bytes)[slots // 64, slots % 64]
        scale = keys[:, 128:].contiguous().view(torch.float32)
        return keys[:, :128].contiguous().view(torch.float8_e4m3fn).float() * scale
