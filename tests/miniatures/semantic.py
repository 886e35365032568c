"""The mistakes of numerics/mutants.py, under the same names in CamelCase, made on calls, lists, bytes and outputs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.implementations.api import DecodeCall, PrefillCall
from tests.miniatures.base import Miniature, keys_of, lists_of, with_bytes, with_lists


class Zeros(Miniature):
    """Writes zeros everywhere."""

    def after(self, call: Any, result: Any) -> Any:
        for output in result:
            output.zero_()
        return result


class SinkDropped(Miniature):
    """Ignores the sink."""

    def before(self, call: Any) -> Any:
        return replace(call, sink=None)


class SinkOfAnotherRank(Miniature):
    """Takes the other half of the sinks."""

    def before(self, call: Any) -> Any:
        return call if call.sink is None else replace(call, sink=call.sink.roll(call.sink.shape[0] // 2))


class SinkScaled(Miniature):
    """Multiplies the sink by the softmax scale, as if it were a dot product."""

    def before(self, call: Any) -> Any:
        return call if call.sink is None else replace(call, sink=call.sink * call.scale)


class SinkInLse(Miniature):
    """Counts the sink as a key in lse."""

    def after(self, call: Any, result: Any) -> Any:
        if call.sink is not None:
            sink = call.sink[:, None] if isinstance(call, DecodeCall) else call.sink
            result.lse.copy_(torch.logaddexp(result.lse, sink.expand_as(result.lse)))
        return result


class WindowMinusOne(Miniature):
    """Loses the last key of the window list."""

    def before(self, call: Any) -> Any:
        def change(number: int, lists: Tensor, valid: Tensor) -> Tensor:
            place = torch.arange(lists.shape[1])
            last = torch.where(valid, place, -1).amax(1, keepdim=True)
            return torch.where((place == last) & (number == 0), -1, lists)

        return with_lists(call, change)


class WindowPlusOne(Miniature):
    """Takes one key too many in the window: the first of the next row's list."""

    def before(self, call: Any) -> Any:
        def change(number: int, lists: Tensor, valid: Tensor) -> Tensor:
            first = torch.gather(lists, 1, valid.int().argmax(1, keepdim=True)).roll(-1, 0)
            return torch.cat((lists, first if number == 0 else torch.full_like(first, -1)), 1)

        return with_lists(call, change)


class KeyDropped(Miniature):
    """Loses the key that takes the largest share of any head."""

    def before(self, call: Any) -> Any:
        listed = lists_of(call)
        keys = keys_of(call, [torch.where(valid, lists, 0) for lists, valid in listed])
        queries = call.q.flatten(0, -3).float() if isinstance(call, DecodeCall) else call.q.float()
        named = torch.cat([valid for _, valid in listed], 1)
        logits = (queries @ keys.transpose(1, 2) * call.scale).masked_fill(~named[:, None], -math.inf)
        share = logits.softmax(-1).nan_to_num(nan=0.0).amax(1)
        heaviest = torch.zeros_like(named).scatter(1, share.argmax(1, keepdim=True), True)
        parts = torch.split(heaviest, [lists.shape[1] for lists, _ in listed], 1)
        return with_lists(call, lambda number, lists, valid: torch.where(parts[number], -1, lists))


class MinusOneAsSlot0(Miniature):
    """Reads every hole inside the length as slot 0 (prefill: row 0)."""

    def before(self, call: Any) -> Any:
        if isinstance(call, PrefillCall):
            hole = (call.indices < 0) | (call.indices >= call.kv.shape[0])
            return replace(call, indices=call.indices.masked_fill(hole, 0))
        scopes = {
            name: replace(scope, indices=scope.indices.masked_fill(scope.indices == -1, 0))
            for name, scope in (("window", call.window), ("extra", call.extra))
            if scope is not None
        }
        return replace(call, **scopes)


class TopkLengthIgnored(Miniature):
    """Processes lists to their full width, skipping what names no stored row."""

    def before(self, call: Any) -> Any:
        if isinstance(call, PrefillCall):
            return replace(call, topk_length=None)
        extra = None if call.extra is None else replace(call.extra, topk_length=None)
        return replace(call, window=replace(call.window, topk_length=None), extra=extra)


class LastBlockLost(Miniature):
    """Loses the last block of 64 list entries of the last scope that has keys."""

    def before(self, call: Any) -> Any:
        valids = [valid for _, valid in lists_of(call)]

        def change(number: int, lists: Tensor, valid: Tensor) -> Tensor:
            place = torch.arange(lists.shape[1])
            start = torch.where(valid, place, 0).amax(1, keepdim=True) // 64 * 64
            later = valids[1].any(1, keepdim=True) if number == 0 and len(valids) > 1 else torch.tensor(False)
            return torch.where((place >= start) & ~later, -1, lists)

        return with_lists(call, change)


class ExtraScopeLost(Miniature):
    """Attends to the window only."""

    def before(self, call: Any) -> Any:
        return replace(call, extra=None) if isinstance(call, DecodeCall) else call


class ScaleExponentPlusOne(Miniature):
    """Reads the last tile's scale byte one too high."""

    by = 1

    def before(self, call: Any) -> Any:
        def change(data: Tensor, scales: Tensor) -> None:
            scales[..., 6] += torch.tensor(self.by).to(torch.uint8)

        return with_bytes(call, change)


class ScaleExponentMinusOne(ScaleExponentPlusOne):
    """Reads the last tile's scale byte one too low."""

    by = -1


class RopePairingWrong(Miniature):
    """Takes the keys' rope dims as two halves instead of interleaved pairs."""

    order = torch.arange(64).view(2, 32).T.flatten()

    def before(self, call: Any) -> Any:
        if isinstance(call, PrefillCall):
            kv = call.kv.clone()
            kv[..., 448:] = call.kv[..., 448:][..., self.order]
            return replace(call, kv=kv)

        def change(data: Tensor, scales: Tensor) -> None:
            rope = data[..., 448:].unflatten(-1, (64, 2))  # type: ignore[no-untyped-call]
            data[..., 448:] = rope[..., self.order, :].flatten(-2)

        return with_bytes(call, change)


class NeighboursKeys(Miniature):
    """Reads the next row's keys."""

    def before(self, call: Any) -> Any:
        return with_lists(call, lambda number, lists, valid: lists.roll(-1, 0))


class LseBase2(Miniature):
    """Returns lse in base 2 and declares the natural logarithm."""

    def after(self, call: Any, result: Any) -> Any:
        result.lse.div_(math.log(2))
        return result


class SoftmaxScaleOf576(Miniature):
    """Scales as for a head of 576 dims."""

    def before(self, call: Any) -> Any:
        return replace(call, scale=call.scale * (512 / 576) ** 0.5)
