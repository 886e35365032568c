"""Addresses and sizes that are right while a pool is small: arithmetic in 32 bits, units mixed up (spec §9, §13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from dsv4_conformance.faults.fault import fault
from dsv4_conformance.implementations.builtin import Builtin
from dsv4_conformance.mla.kernels.kv_format import load_index_keys
from dsv4_conformance.spec.kv_layout import INDEX_KEY_FP8, PageLayout


def int32(value: int) -> int:
    """A whole number as 32 bits hold it."""
    return (value + 2**31) % 2**32 - 2**31


class Evaluated(Builtin):
    """The built-in formulas, right; subclasses change the values of some."""

    touches: ClassVar[tuple[str, ...]] = ("Formula",)

    def changed(self, name: str, point: tuple[int, ...], value: int) -> int:
        """What the formula ``name`` gives at ``point`` instead of the right ``value``."""
        return value

    def formula(self, name: str, points: Sequence[tuple[int, ...]]) -> list[int]:
        """Formula with the change."""
        values = super().formula(name, points)
        return [self.changed(name, point, value) for point, value in zip(points, values, strict=True)]


@fault("S62", breaks="INV-149", on="KVPageFormat")
class StoresToTheWrappedPage(Builtin):
    """A store computes page times page bytes in int32: rows of pages beyond 2 GiB land where the wrapped offset is,
    which here is nowhere."""

    def pack(self, tokens: Tensor, slots: Tensor, pages: Tensor) -> None:
        """KVPageFormat without the rows that go astray."""
        size = pages.shape[1]
        kept = slots // size * PageLayout(size).page_bytes < 2**31
        super().pack(tokens[kept], slots[kept], pages)


@fault("S63", breaks="INV-140")
class SubPageOffsetInInt32(Evaluated):
    """The kernel that cuts pages of 64 tokens out of larger ones multiplies their number by 37,440 bytes in int32."""

    def changed(self, name: str, point: tuple[int, ...], value: int) -> int:
        """Wrap."""
        return int32(value) if name in ("kv_data_byte", "kv_scale_byte") and point[0] == 64 else value


@fault("V13", breaks="INV-149", on="IndexKeyFormat")
class FarIndexKeysAreZero(Builtin):
    """The block offset of an index key is an int32; where it wraps, the load is masked off and the key is 0."""

    def unpack_index_keys(self, pages: Tensor, slots: Tensor) -> Tensor:
        """IndexKeyFormat, 0 beyond 2 GiB."""
        far = slots // 64 * INDEX_KEY_FP8.page_bytes >= 2**31
        keys = load_index_keys(pages, slots)
        return keys.masked_fill(far[:, None], 0.0)


@fault("O25", breaks="INV-140")
class ScoreOffsetInInt32(Evaluated):
    """Row stride times row of a buffer that is as wide as the context, in int32."""

    def changed(self, name: str, point: tuple[int, ...], value: int) -> int:
        """Wrap bytes."""
        return int32(value) if name == "score_byte" else value


@fault("O50", breaks="INV-140")
class ElementsCountedInInt32(Evaluated):
    """The elements of a tensor are counted in int32, so that one of more than 2^31 cannot be addressed."""

    def changed(self, name: str, point: tuple[int, ...], value: int) -> int:
        """Wrap the number of elements, of two bytes each."""
        return 2 * int32(value // 2) if name in ("workspace_byte", "query_byte") else value


@fault("S54", breaks="INV-141")
class RingsChargedPerToken(Evaluated):
    """A ring of fixed size per request is accounted for token by token, and exact rows by the bytes of fp8 ones."""

    def changed(self, name: str, point: tuple[int, ...], value: int) -> int:
        """State grows with the length."""
        return max(value, point[1]) if name == "state_rows" else value


@fault("O65", breaks="INV-141")
class NoRoomForTheChunkInFlight(Evaluated):
    """Window rows are counted for the history and one token, not for a chunk of new ones."""

    def changed(self, name: str, point: tuple[int, ...], value: int) -> int:
        """Every new token but the last is left out."""
        if name != "workspace_rows":
            return value
        _, _, tokens, new = point
        return value - min(tokens, new + 127) + min(tokens, 128)
