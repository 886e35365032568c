"""Adapters that compute the right thing and break the contract: inputs, outputs, shapes, declarations, exceptions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.implementations.api import DecodeCall, DecodeResult, PrefillCall, PrefillResult
from dsv4_conformance.implementations.builtin import Builtin
from tests.miniatures.base import Miniature, declaring, tables_of, with_lists


class ScalesQueriesInPlace(Miniature):
    """Multiplies the scale into q."""

    def before(self, call: Any) -> Any:
        call.q.mul_(0.5)
        return replace(call, scale=call.scale * 2)


class ClearsPadBytes(Miniature):
    """Writes 0 into the pad byte of a cached token's scales (prefill: into the row after the lists)."""

    def after(self, call: Any, result: Any) -> Any:
        if isinstance(call, DecodeCall):
            tables_of(call.window.pages)[1][0, 0, 7] ^= 1
        else:
            call.kv[-1, 0, 0] += 1
        return result


class FillsHolesInPlace(Miniature):
    """Overwrites -1 in the caller's lists."""

    def after(self, call: Any, result: Any) -> Any:
        lists = call.indices if isinstance(call, PrefillCall) else call.window.indices
        lists.masked_fill_(lists == -1, -2)
        return result


class TransposedLse(Miniature):
    """Returns lse with its last two dims exchanged."""

    surfaces = declaring(accepts_out=False)

    def after(self, call: Any, result: Any) -> Any:
        return result._replace(lse=result.lse.transpose(-1, -2).contiguous())


class OutInFloat32(Miniature):
    """Returns out as float32."""

    surfaces = declaring(accepts_out=False)

    def after(self, call: Any, result: Any) -> Any:
        return result._replace(out=result.out.float())


class ReturnsNothingForLse(Miniature):
    """Returns None where lse is promised."""

    surfaces = declaring(accepts_out=False)

    def after(self, call: Any, result: Any) -> Any:
        return result._replace(lse=None)


class WritesBeyondItsOutput(Miniature):
    """Writes one element past the end of out."""

    def after(self, call: Any, result: Any) -> Any:
        if call.out is not None:
            beyond = call.out.as_strided((1,), (1,), call.out.storage_offset() + call.out.numel())
            beyond.fill_(0.0)
        return result


class WritesBeforeItsLse(Miniature):
    """Writes one element in front of lse."""

    def after(self, call: Any, result: Any) -> Any:
        if call.lse is not None:
            call.lse.as_strided((1,), (1,), call.lse.storage_offset() - 1).fill_(0.0)
        return result


class IgnoresTheGivenOutput(Miniature):
    """Declares accepts_out and returns tensors of its own."""

    def before(self, call: Any) -> Any:
        call = replace(call, out=None, lse=None)
        return replace(call, max_logits=None) if isinstance(call, PrefillCall) else call


class LeavesTheLastRowUnwritten(Miniature):
    """Does not write the last query row of out."""

    def after(self, call: Any, result: Any) -> Any:
        if call.out is None:
            return result
        kept = result.out.clone()
        call.out.fill_(torch.nan)
        rows = call.out.flatten(0, -3)
        rows[:-1] = kept.flatten(0, -3)[:-1]
        return result


class ReturnsUninitialisedRows(Miniature):
    """Allocates out itself and writes all rows but the last one."""

    surfaces = declaring(accepts_out=False)

    def decode(self, call: DecodeCall) -> DecodeResult:
        out = torch.empty(call.q.shape, dtype=call.q.dtype)
        done = super().decode(call)
        out.flatten(0, 1)[:-1] = done.out.flatten(0, 1)[:-1]
        return done._replace(out=out)

    def prefill(self, call: PrefillCall) -> PrefillResult:
        out = torch.empty(call.q.shape, dtype=call.q.dtype)
        done = super().prefill(call)
        out[:-1] = done.out[:-1]
        return done._replace(out=out)


class DeclaresBase2(Miniature):
    """Declares lse in base 2 and returns natural logarithms."""

    surfaces = declaring(lse_base="2")


class DeclaresMinusInfinity(Miniature):
    """Declares lse -inf for rows without keys and returns +inf."""

    surfaces = declaring(lonely_lse="-inf")


class DeclaresEveryHeadCount(Miniature):
    """Declares any head count and refuses less than 8."""

    def before(self, call: Any) -> Any:
        if call.q.shape[-2] < 8:
            raise ValueError("unsupported number of heads")
        return call


class DeclaresEveryWidth(Miniature):
    """Declares lists of any width and reads whole blocks of 64 only."""

    def before(self, call: Any) -> Any:
        def whole(number: int, lists: Tensor, valid: Tensor) -> Tensor:
            return torch.where(torch.arange(lists.shape[1]) < lists.shape[1] // 64 * 64, lists, -1)

        return with_lists(call, whole)


class DeclaresBitwiseHeads(Miniature):
    """Declares that permuted heads give permuted bits, and computes the second half of the heads in another way."""

    surfaces = declaring(head_permutation="bitwise")

    def after(self, call: Any, result: Any) -> Any:
        half = call.q.shape[-2] // 2
        part = result.out[..., half:, :]
        part.copy_(part.float() * (1 + 2**-8))
        return result


class Raises(Miniature):
    """Raises in every call."""

    def before(self, call: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nand a second line")


class RefusesWhatItDeclares(Miniature):
    """Answers every call with NotApplicable, as if the call lay outside its declaration."""

    def before(self, call: Any) -> Any:
        from dsv4_conformance.errors import NotApplicable

        raise NotApplicable("this shape is not tuned yet")


class RemembersTheFirstCall(Miniature):
    """Keeps scheduler metadata of the first call of a shape, lengths included."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._lengths: dict[tuple[int, ...], Tensor | None] = {}

    def before(self, call: Any) -> Any:
        if isinstance(call, PrefillCall):
            kept = self._lengths.setdefault(tuple(call.indices.shape), call.topk_length)
            return replace(call, topk_length=kept)
        kept = self._lengths.setdefault(tuple(call.window.indices.shape), call.window.topk_length)
        return replace(call, window=replace(call.window, topk_length=kept))


class KeepsResultsOfTheLastCall(Miniature):
    """Returns the outputs of the call before, from the second call of a shape on."""

    surfaces = declaring(accepts_out=False)

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._last: dict[tuple[int, ...], Any] = {}

    def after(self, call: Any, result: Any) -> Any:
        before = self._last.get(tuple(call.q.shape), result)
        self._last[tuple(call.q.shape)] = result
        return before


Right = Builtin
