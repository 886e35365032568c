"""What a kernel makes of index lists, lengths, empty rows and bytes around them (spec §8, §10, §11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dsv4_conformance.faults.calls import Called, keys_of, lists_of, per_head, with_lists, with_scopes
from dsv4_conformance.faults.fault import fault
from dsv4_conformance.implementations.api import DecodeCall, KVScope, PrefillCall
from dsv4_conformance.spec.kv_layout import PageLayout

BLOCK = 64
"""Index widths that kernels are built for are multiples of this."""


@fault("S09", breaks="INV-101")
class MissingWidthsPaddedWithSlot0(Called):
    """A width that no kernel is built for is padded to the next one with 0 in place of -1, at the padded length."""

    def before(self, call: Any) -> Any:
        """Widen lists; lengths of lists that were full grow with them."""

        def widened(indices: Tensor, length: Tensor | None) -> tuple[Tensor, Tensor | None]:
            missing = -indices.shape[-1] % BLOCK
            wide = torch.nn.functional.pad(indices, (0, missing), value=0)
            full = None if length is None else torch.where(length == indices.shape[-1], wide.shape[-1], length)
            return wide, full

        return with_scopes(call, widened)


@fault("V08", breaks="INV-16")
class PaddedWidthIsTheLength(Called):
    """A list's padded width is passed as its length: each entry behind the keys adds a logit of 0 to the sum."""

    def after(self, call: Any, result: Any) -> Any:
        """Put the padding of the first list into the softmax's denominator."""
        lists, valid = lists_of(call)[0]
        padding = (lists.shape[1] - valid.sum(1)).float()[:, None]
        lse = per_head(call, result.lse)
        keyed = lse.isfinite()
        held = torch.where(keyed, lse, 0).double().exp()
        sink = 0.0 if call.sink is None else call.sink.double().exp()
        share = torch.where(keyed, (held + sink) / (held + sink + padding), 1).nan_to_num(nan=0.0)
        out = result.out.flatten(0, -3)
        out.copy_((out.double() * share[..., None]).to(out.dtype))
        lse.copy_(torch.where(keyed, (held + padding).log(), lse.double()))
        return result


@fault("V09", breaks="INV-13")
class WindowListCutTo128(Called):
    """The reader of the window list takes the model's window for its width."""

    def before(self, call: Any) -> Any:
        """Drop the columns of the first list from 128 on."""

        def change(number: int, lists: Tensor, valid: Tensor) -> Tensor:
            place = torch.arange(lists.shape[1])
            return torch.where((place >= 128) & (number == 0), -1, lists)

        return with_lists(call, change) if isinstance(call, DecodeCall) else call


@fault("V26", breaks="INV-01")
class StridedListsReadInOrder(Called):
    """Index lists are read from their first element on, whatever their strides are."""

    def before(self, call: Any) -> Any:
        """The same storage as if it were contiguous."""

        def flat(indices: Tensor, length: Tensor | None) -> tuple[Tensor, Tensor | None]:
            strides = [1]
            for size in reversed(indices.shape[1:]):
                strides.insert(0, strides[0] * size)
            return indices.as_strided(indices.shape, strides, indices.storage_offset()), length

        return with_scopes(call, flat)


@fault("V45", breaks="INV-01")
class EmptyPartsAreMerged(Called):
    """Window and extra keys are attended apart and merged by their lse; that of an empty part makes inf - inf."""

    def after(self, call: Any, result: Any) -> Any:
        """NaN in rows of which one part has keys and the other none."""
        parts = [valid.any(1) for _, valid in lists_of(call)]
        if len(parts) == 2:
            result.out.flatten(0, -3)[parts[0] != parts[1]] = torch.nan
        return result


@fault("F07", breaks="INV-14")
class LengthsIgnoredBeyond64Queries(Called):
    """With more than 64 query tokens a prefill goes on to the end of its lists."""

    def before(self, call: Any) -> Any:
        """Without lengths."""
        long = isinstance(call, PrefillCall) and call.q.shape[0] > 64
        return replace(call, topk_length=None) if long else call


@fault("F08", breaks="INV-06")
class MaskedKeysShareEmptyRows(Called):
    """Masked logits are -1e30, which is also the maximum of a row without keys: each of its entries weighs 1."""

    def after(self, call: Any, result: Any) -> Any:
        """The mean of what the masked entries of empty rows address."""
        listed = lists_of(call)
        empty = ~torch.cat([valid for _, valid in listed], 1).any(1)
        keys = keys_of(call, [torch.zeros_like(lists) for lists, _ in listed])
        result.out.flatten(0, -3)[empty] = keys.mean(1, keepdim=True)[empty].to(result.out.dtype)
        per_head(call, result.lse)[empty] = -1e30
        return result


@fault("F09", breaks="INV-09")
class MinusFiftyThousandIsMinusInfinity(Called):
    """Masked logits are -5e4; a row whose true logits all lie below counts as a row without keys."""

    def after(self, call: Any, result: Any) -> Any:
        """Silence heads of such rows."""
        lse = per_head(call, result.lse)
        low = lse < -5e4
        result.out.flatten(0, -3)[low] = 0
        lse[low] = torch.inf
        return result


@fault("F10", breaks="INV-15")
class HolesMaskedInLogitsOnly(Called):
    """Holes fetch slot 0 and get weight 0, which does not silence a NaN there."""

    def after(self, call: Any, result: Any) -> Any:
        """Add 0 times what holes address."""
        listed = lists_of(call)
        keys = keys_of(call, [torch.zeros_like(lists) for lists, _ in listed])
        masked = ~torch.cat([valid for _, valid in listed], 1)
        rest = (0 * keys).masked_fill(~masked[..., None], 0).sum(1, keepdim=True)
        out = result.out.flatten(0, -3)
        out.copy_((out.float() + rest).to(out.dtype))
        return result


@fault("F13", breaks="INV-101", symptom="raises")
class PairWithoutAKernel(Called):
    """No kernel is built for 16 heads and lists wider than 128; such a call falls through to another that refuses."""

    def before(self, call: Any) -> Any:
        """Refuse what the declaration covers."""
        width = max(lists.shape[1] for lists, _ in lists_of(call))
        if call.q.shape[-2] <= 16 and width > 128:
            raise ValueError("num_tokens must be greater than 64")
        return call


@fault("F14", breaks="INV-103")
class CountersAreNotCleared(Called):
    """Splits count down a counter that the next call of the same shape finds at zero: its last split is not added."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._used: set[tuple[int, ...]] = set()

    def before(self, call: Any) -> Any:
        """From the second call of a shape on, drop the later half of each row's keys."""
        shape = tuple(call.q.shape)
        if shape not in self._used:
            self._used.add(shape)
            return call

        def change(number: int, lists: Tensor, valid: Tensor) -> Tensor:
            half = (valid.sum(1, keepdim=True) + 1) // 2
            return torch.where(valid.cumsum(1) > half, -1, lists)

        return with_lists(call, change)


@fault("O24", breaks="INV-06")
class HalfPrecisionMask(Called):
    """The mask's -1e9 is minus infinity in half precision, and a row of nothing else gives NaN."""

    def after(self, call: Any, result: Any) -> Any:
        """NaN in rows without keys."""
        empty = ~torch.cat([valid for _, valid in lists_of(call)], 1).any(1)
        result.out.flatten(0, -3)[empty] = torch.nan
        return result


def _page_bytes(scope: KVScope) -> int:
    return PageLayout(scope.page_size).page_bytes


@fault("V10", breaks="INV-18", on="SparseDecode")
class PagesTakenToLieSideBySide(Called):
    """A slot's address is its number times the bytes of a token; how far apart pages lie is not looked at."""

    def before(self, call: Any) -> Any:
        """Pages at the stride of a pool of their own."""

        def tight(scope: KVScope) -> KVScope:
            strides = (_page_bytes(scope), *scope.pages.stride()[1:])
            view = scope.pages.as_strided(scope.pages.shape, strides, scope.pages.storage_offset())
            return replace(scope, pages=view)

        if not isinstance(call, DecodeCall):
            return call
        extra = None if call.extra is None else tight(call.extra)
        return replace(call, window=tight(call.window), extra=extra)


@fault("V54", breaks="INV-18", on="SparseDecode")
class StridedSlotsRemappedTwice(Called):
    """Slots of a pool whose pages lie further apart are spread by the engine, and by the kernel's library once more."""

    def before(self, call: Any) -> Any:
        """Multiply page numbers by the factor of the spread, modulo what there is."""

        def spread(scope: KVScope) -> KVScope:
            factor = -(-scope.pages.stride(0) // _page_bytes(scope))
            size, slots = scope.page_size, scope.indices.long()
            moved = slots // size * factor % scope.pages.shape[0] * size + slots % size
            inside = (slots >= 0) & (slots < scope.pages.shape[0] * size)
            return replace(scope, indices=torch.where(inside, moved, slots).to(torch.int32))

        if not isinstance(call, DecodeCall):
            return call
        extra = None if call.extra is None else spread(call.extra)
        return replace(call, window=spread(call.window), extra=extra)


@fault("S10", breaks="INV-90", on="DecodePlan")
class PlanOfFewerRows(Called):
    """A plan that was made before the batch was padded is used for it; rows that it does not know stay as they were."""

    def new_plan(self) -> Any:
        """Nothing planned yet."""
        return []

    def decode_planned(self, call: DecodeCall, plan: Any) -> Any:
        """Decode; rows beyond the planned ones are not computed."""
        if not plan:
            plan.append(call.q.shape[0])
        result = self.decode(call)
        result.out[plan[0] :] = 0
        return result
