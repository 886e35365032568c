"""Kernels of their own, in float32: right where nothing is overridden, then with the mistakes kernels really make."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dsv4_conformance.faults import lists_and_rows
from dsv4_conformance.implementations.api import DecodeCall, DecodeResult, PrefillCall, PrefillResult
from tests.miniatures.base import Call, Miniature, keys_of, lists_of, with_lists


@dataclass
class Rows:
    """What a kernel sees: q ``(R, H, 512)``, keys ``(R, N, 512)``, valid ``(R, N)``, all float32 but ``valid``."""

    q: Tensor
    keys: Tensor
    valid: Tensor
    sink: Tensor | None
    scale: float


class Kernel(Miniature):
    """A kernel in float32 with P rounded to bf16. Right."""

    def gather(self, call: Call) -> tuple[Tensor, Tensor]:
        """Keys and their validity; rows that are not valid hold zeros."""
        listed = lists_of(call)
        keys = keys_of(call, [torch.where(valid, lists, 0) for lists, valid in listed])
        valid = torch.cat([valid for _, valid in listed], 1)
        return keys.masked_fill(~valid[..., None], 0), valid

    def shift(self, logits: Tensor) -> Tensor:
        """What is subtracted before exp, ``(R, H, 1)``."""
        return logits.amax(-1, keepdim=True).clamp(min=-1e30)

    def weigh(self, weights: Tensor, keys: Tensor) -> Tensor:
        """The sum of values, ``(R, H, 512)``."""
        return weights.bfloat16().float() @ keys

    def dot(self, rows: Rows) -> Tensor:
        """Logits ``(R, H, N)`` of all keys."""
        return rows.q @ rows.keys.transpose(1, 2) * rows.scale

    def attend(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """out, max_logits and lse."""
        logits = self.dot(rows).masked_fill(~rows.valid[:, None], -math.inf)
        shift = self.shift(logits)
        weights = (logits - shift).exp()
        total = weights.sum(-1, keepdim=True)
        below = total if rows.sink is None else total + (rows.sink[:, None] - shift).exp()
        lonely = ~rows.valid.any(1)[:, None]
        out = (self.weigh(weights, rows.keys) / below).masked_fill(lonely[..., None], 0)
        lse = (total.log() + shift)[..., 0].masked_fill(lonely, math.inf)
        return out, logits.amax(-1), lse

    def _run(self, call: Call) -> tuple[Tensor, Tensor, Tensor]:
        keys, valid = self.gather(call)
        q = call.q.reshape(-1, *call.q.shape[-2:]).float()
        return self.attend(Rows(q, keys, valid, call.sink, call.scale))

    def decode(self, call: DecodeCall) -> DecodeResult:
        out, _, lse = self._run(call)
        out, lse = out.view(call.q.shape), lse.view(*call.q.shape[:3]).transpose(1, 2)
        if call.out is None or call.lse is None:
            return DecodeResult(out.bfloat16(), lse.contiguous())
        return DecodeResult(call.out.copy_(out), call.lse.copy_(lse))

    def prefill(self, call: PrefillCall) -> PrefillResult:
        out, top, lse = self._run(call)
        if call.out is None or call.lse is None or call.max_logits is None:
            return PrefillResult(out.bfloat16(), top, lse)
        return PrefillResult(call.out.copy_(out), call.max_logits.copy_(top), call.lse.copy_(lse))


class HolesMaskedInLogitsOnly(Miniature, lists_and_rows.HolesMaskedInLogitsOnly):
    """Fetches row 0 for holes and gives them weight 0, which does not silence a NaN there."""


class TailsMaskedInLogitsOnly(Kernel):
    """Fetches what stands beyond topk_length, if it is a slot, and gives it weight 0."""

    def gather(self, call: Call) -> tuple[Tensor, Tensor]:
        listed = lists_of(call)
        if isinstance(call, PrefillCall):
            stored = [call.kv.shape[0]]
        else:
            stored = [s.pages.shape[0] * s.pages.shape[1] for s in (call.window, call.extra) if s is not None]
        at = [lists.clamp(0, count - 1) for (lists, _), count in zip(listed, stored, strict=True)]
        return keys_of(call, at), torch.cat([valid for _, valid in listed], 1)


class WeightsInFp8(Kernel):
    """Rounds P to e4m3 before it meets the values."""

    def weigh(self, weights: Tensor, keys: Tensor) -> Tensor:
        return weights.to(torch.float8_e4m3fn).float() @ keys


class AccumulatesInBf16(Kernel):
    """Rounds the running sum of values to bf16 after every block of 64 keys."""

    def weigh(self, weights: Tensor, keys: Tensor) -> Tensor:
        total = torch.zeros(*weights.shape[:2], 512)
        for start in range(0, keys.shape[1], 64):
            block = slice(start, start + 64)
            total = (total + weights[..., block].bfloat16().float() @ keys[:, block]).bfloat16().float()
        return total


class LogitsInBf16(Kernel):
    """Rounds logits to bf16."""

    def dot(self, rows: Rows) -> Tensor:
        return super().dot(rows).bfloat16().float()


class NoCareForRowsWithoutKeys(Kernel):
    """Subtracts a maximum of -inf and divides by the sum: NaN where a row has no key."""

    def attend(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.dot(rows).masked_fill(~rows.valid[:, None], -math.inf)
        top = logits.amax(-1, keepdim=True)
        weights = (logits - top).exp()
        total = weights.sum(-1, keepdim=True)
        below = total if rows.sink is None else total + (rows.sink[:, None] - top).exp()
        return self.weigh(weights, rows.keys) / below, top[..., 0], (total.log() + top)[..., 0]


class InfiniteSinkBecomesNan(Kernel):
    """Puts the sink into the maximum: inf - inf."""

    def attend(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        out, top, lse = super().attend(rows)
        if rows.sink is not None:
            out = out.masked_fill(rows.sink.isposinf()[:, None], math.nan)
        return out, top, lse


class RepeatedIndexCountsOnce(Kernel):
    """Builds a mask over the cache, so that a repeated index counts once."""

    def gather(self, call: Call) -> tuple[Tensor, Tensor]:
        keys, valid = super().gather(call)
        lists = lists_of(call)[0][0]
        width = lists.shape[1]
        earlier = torch.tril(torch.ones(width, width, dtype=torch.bool), -1)
        same = (lists[:, :, None] == lists[:, None, :]) & valid[:, None, :width]
        valid[:, :width] &= ~(same & earlier).any(-1)
        return keys.masked_fill(~valid[..., None], 0), valid


class RepeatsAcrossABlockSEdgeCountOnce(Miniature):
    """A block of 64 entries leaves out its first one where that is the last of the block before."""

    def before(self, call: Call) -> Call:
        def change(_: int, lists: Tensor, valid: Tensor) -> Tensor:
            place = torch.arange(lists.shape[1])
            again = (lists == lists.roll(1, 1)) & valid & (place % 64 == 0) & (place > 0)
            return torch.where(again, -1, lists)

        return with_lists(call, change)


class LosesAKeyThatIsAloneInItsBlock(Miniature):
    """The extra list's last entry is lost where it begins a block of 64."""

    def before(self, call: Call) -> Call:
        if not isinstance(call, DecodeCall) or call.extra is None or call.extra.topk_length is None:
            return call
        length = call.extra.topk_length
        shorter = torch.where((length % 64 == 1) & (length > 1), length - 1, length)
        return replace(call, extra=replace(call.extra, topk_length=shorter))


class HoleEndsTheList(Kernel):
    """Stops at the first -1."""

    def gather(self, call: Call) -> tuple[Tensor, Tensor]:
        keys, valid = super().gather(call)
        width = lists_of(call)[0][0].shape[1]
        valid[:, :width] &= valid[:, :width].long().cumprod(1).bool()
        return keys.masked_fill(~valid[..., None], 0), valid


class MaximumOverTheBatch(Kernel):
    """Shifts every row by the batch's maximum: right, but a row's bits depend on the others."""

    def shift(self, logits: Tensor) -> Tensor:
        return logits.amax((0, 2), keepdim=True).clamp(min=-1e30).expand(logits.shape[0], -1, -1)


class MaximumOverTheHeads(Kernel):
    """Shifts every head by the row's maximum over heads, so that a NaN query reaches the other heads."""

    def shift(self, logits: Tensor) -> Tensor:
        return logits.amax((1, 2), keepdim=True).clamp(min=-1e30).expand(-1, logits.shape[1], -1)


class AnotherKernelFor128Heads(Kernel):
    """Drops the last key when it is called with 128 heads."""

    def gather(self, call: Call) -> tuple[Tensor, Tensor]:
        keys, valid = super().gather(call)
        if call.q.shape[-2] == 128:
            place = torch.arange(valid.shape[1])
            valid = valid & (place != torch.where(valid, place, -1).amax(1, keepdim=True))
        return keys.masked_fill(~valid[..., None], 0), valid


class PageSizeTakenForGranted(Kernel):
    """Reads pages of any size but 2 with a stride of 584 bytes per token, without the padding up to 576."""

    def gather(self, call: Call) -> tuple[Tensor, Tensor]:
        keys, valid = super().gather(call)
        if isinstance(call, PrefillCall) or call.window.page_size == 2:
            return keys, valid
        pages, size = call.window.pages, call.window.page_size
        tight = pages.as_strided(pages.shape, (584 * size, 584, 584, 1), pages.storage_offset())
        from dsv4_conformance.mla.kernels.kv_format import unpack_slots

        lists, mine = lists_of(call)[0]
        at = torch.where(mine, lists, 0)
        wrong = unpack_slots(tight, at.flatten()).view(*at.shape, 512).float()
        keys[:, : at.shape[1]] = wrong.masked_fill(~mine[..., None], 0)
        return keys, valid


class NoisyFromRunToRun(Kernel):
    """Adds a different rounding error in every run, within the budget."""

    def attend(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        out, top, lse = super().attend(rows)
        return out * (1 + 2**-9 * (torch.rand(out.shape) - 0.5)), top, lse


class SinkLimitsAreNotExact(Kernel):
    """Replaces infinite sinks by large finite ones, which lie beyond any logit; right to the last bit or nearly."""

    def attend(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        sink = None if rows.sink is None else rows.sink.clamp(-20.0, 20.0)
        return super().attend(Rows(rows.q, rows.keys, rows.valid, sink, rows.scale))


class SinkInTheMaximum(Kernel):
    """Sums relative to a maximum that includes the sink: right, but the bits of lse depend on the sink."""

    def attend(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        out, top, lse = super().attend(rows)
        if rows.sink is not None:
            shift = torch.maximum(top, rows.sink.clamp(-40, 40).expand_as(top))
            finite = lse.isfinite()
            moved = shift + (lse - shift).exp().log()
            lse = torch.where(finite, moved, lse)
        return out, top, lse
